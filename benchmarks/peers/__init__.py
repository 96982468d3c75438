"""The programs that multiply the benchmark problems: ours, its peers and the dense peak.

`worker` runs one of the Python contenders in a process of its own; `process` is the other end of its pipe.
`dbcsr` runs the C++ driver, which `build.sh` makes.
"""
