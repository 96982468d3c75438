"""The shape of the package: who imports whom, how files are named and how large they may grow."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tilewise"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 600


def module_id(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


# Import contract


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml against the package that lies in a folder."""
    code = "from importlinter.cli import lint_imports_command as main; main()"
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"]
    return subprocess.run(
        [sys.executable, "-c", code, *options], cwd=source, capture_output=True, text=True, check=False
    )


def test_import_contract_is_kept() -> None:
    result = lint_imports(PACKAGE.parent)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "code", "broken"),
    [
        ("errors.py", "import tilewise.spaces", "Folders import in one direction"),
        ("offender.py", "", "Folders import in one direction"),
        ("errors.py", "def f():\n    import mpi4py.MPI", "Only engines.mpi imports mpi4py"),
        ("errors.py", "import pyscf.gto", "Only chemistry.integrals imports pyscf"),
        ("errors.py", "from matplotlib import pyplot", "Only reports.plots imports matplotlib"),
        ("errors.py", "import cupy", "Only engines.device.libraries imports array libraries besides NumPy"),
        ("errors.py", "from numba import njit", "Compiled code lives in engines and plans"),
    ],
    ids=["upward", "unlisted", "mpi4py", "pyscf", "matplotlib", "cupy", "numba"],
)
def test_import_contract_catches(tmp_path: Path, module: str, code: str, broken: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "tilewise", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "tilewise" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{code}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{broken} BROKEN" in result.stdout


WATCH_IMPORTS = """
import json, sys

class Watch:
    names = []

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)

sys.meta_path.insert(0, Watch())
import tilewise
print(json.dumps(Watch.names))
"""


@pytest.fixture(scope="module")
def imported_names() -> set[str]:
    """Top-level packages that `import tilewise` asks for, whether they are installed or not."""
    run = [sys.executable, "-c", WATCH_IMPORTS]
    result = subprocess.run(run, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


def test_import_watch_sees_imports(imported_names: set[str]) -> None:
    assert {"tilewise", "numpy"} <= imported_names


@pytest.mark.parametrize("optional", ["mpi4py", "pyscf", "matplotlib", "cupy", "mtkahypar"])
def test_import_of_tilewise_leaves_out(optional: str, imported_names: set[str]) -> None:
    assert optional not in imported_names


# Names and sizes

VAGUE_NAMES = {"core", "common", "util", "utils", "misc", "helper", "helpers"}


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_module_has_a_name_that_says_something(path: Path) -> None:
    words = {word for part in path.relative_to(PACKAGE).with_suffix("").parts for word in part.split("_")}
    vague = words & VAGUE_NAMES
    assert not vague, f"{module_id(path)}: {vague} says nothing; name the noun this file is about"


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_module_is_not_too_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{module_id(path)} has {lines} lines, more than {MAX_LINES}: find the seam"


def test_tests_mirror_the_folders_of_the_package() -> None:
    package = {path.parent.relative_to(PACKAGE) for path in MODULES}
    tests = {path.parent.relative_to(ROOT / "tests") for path in ROOT.glob("tests/**/test_*.py")}
    tested = {folder.parts[:1] for folder in tests}
    assert not tests - package, "folders of tests that mirror nothing"
    assert not {folder.parts[:1] for folder in package} - tested, "folders of the package without tests"


# State

MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CALLS = {
    *("list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
    *("array", "asarray", "zeros", "ones", "empty", "full", "arange"),
}
READ_ONLY_TYPES = {"Mapping", "Sequence", "Collection", "Set", "AbstractSet"}


def called_name(node: ast.AST) -> str:
    """Last part of the name that is called or subscripted: ``deque`` of ``collections.deque()``."""
    if isinstance(node, ast.Call):
        return called_name(node.func)
    if isinstance(node, ast.Subscript):
        return called_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import, those under `if`, `try`, `with` and loops too, but not in classes."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            inner += [handler.body for handler in getattr(statement, "handlers", [])]
            for block in inner:
                yield from module_statements(block)


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return called_name(value) in MUTABLE_CALLS
    return isinstance(value, MUTABLE_LITERALS)


def promises_read_only(annotation: ast.expr) -> bool:
    """Whether an annotation is `Final[Mapping[...]]` or another read-only view, which mypy then enforces."""
    if called_name(annotation) != "Final" or not isinstance(annotation, ast.Subscript):
        return False
    return called_name(annotation.slice) in READ_ONLY_TYPES


def mutable_state(tree: ast.Module) -> list[str]:
    """Names bound to something mutable on import, and functions' `global` statements, with their lines."""
    found = []
    for statement in module_statements(tree.body):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and not promises_read_only(statement.annotation):
            targets = [statement.target]
        else:
            continue
        names = [ast.unparse(target) for target in targets]
        if is_mutable(statement.value) and names != ["__all__"]:
            found.append(f"line {statement.lineno}: {', '.join(names)}")
    found += [f"line {node.lineno}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_module_has_no_mutable_state(path: Path) -> None:
    found = mutable_state(ast.parse(path.read_text(encoding="utf-8")))
    assert not found, f"{module_id(path)}: {found}; use a tuple, a frozenset or a Final[Mapping]"


def test_mutable_state_is_recognised() -> None:
    code = """
        __all__ = ["f"]
        TUPLE = (1, 2)
        VIEW: Final[Mapping[str, int]] = {"a": 1}
        PROXY = MappingProxyType({"a": 1})
        cache = {}
        try:
            table: dict[str, int] = dict(a=1)
        except ValueError:
            rows: Final[list[int]] = []
        buffer = np.zeros(3)
        def f():
            global buffer
            local = []
    """
    lines = mutable_state(ast.parse(textwrap.dedent(code)))
    assert [line.partition(": ")[2] for line in lines] == ["cache", "table", "rows", "buffer", "global"]


def test_only_the_engine_and_functions_at_work_are_context_variables() -> None:
    trees = {module_id(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    made = [
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called_name(node) == "ContextVar"
    ]
    assert sorted(made) == ["engines/current.py", "tensors/generated.py"]
