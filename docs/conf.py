"""Settings of the documentation; `make docs` builds it."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = "Tilewise"
author = "Tilewise developers"
copyright = "2026, Tilewise developers"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
# The docstrings name the types in words; spelled out, an `ArrayLike` would bury the signature.
autodoc_typehints = "none"
# In docstrings `name` is code, as in the rest of the source; a reference is written :class:`name`.
default_role = "code"
napoleon_google_docstring = False
napoleon_use_ivar = True
# Types of parameters are words too, not references.
napoleon_use_param = False

html_theme = "pydata_sphinx_theme"
html_title = f"Tilewise {release}"
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
