"""``python -m tilewise``: the command line."""

from __future__ import annotations

import sys

from tilewise.cli import main

sys.exit(main())
