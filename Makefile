# Every target sets up what it needs, from a bare clone: a virtual environment in .venv, and the package in it.
#   make PYTHON=python3.13 test     another interpreter (remove .venv first)
#   make PYTEST_ARGS="-k retile" test

PYTHON ?= python3
PYTEST_ARGS ?=
PROCESSES ?= 2
ENERGY_ARGS ?= examples/ethene.xyz --basis cc-pvdz --method ccsd --frozen core --explain
BENCH_ARGS ?=

# Paths are relative, so that a checkout whose own path has spaces works.
BIN := .venv/bin
USE := .venv/installed-use
DEV := .venv/installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help energy test test-slow lint types imports format bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

energy: $(USE) ## CCSD energy of ethene, with progress and the explained plan (ENERGY_ARGS= for another)
	@$(BIN)/tilewise energy $(ENERGY_ARGS)

# Processes of tests run side by side: more threads of PySCF in each would wait for each other.
test test-slow: export OMP_NUM_THREADS ?= 1

test: lint types imports ## all checks: lint, types, imports and the tests that are not slow
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(PYTEST_ARGS)

test-slow: $(DEV) ## every test, the slow ones too, with many more generated examples
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal -m "slow or not slow" --hypothesis-profile=slow tests $(PYTEST_ARGS)

lint: $(DEV) ## ruff: rules and formatting
	@$(BIN)/python -m ruff check --quiet
	@$(BIN)/python -m ruff format --check --quiet || { echo "The files above are not formatted: run 'make format'."; exit 1; }

types: $(DEV) ## mypy, strict
	@$(BIN)/python -m mypy

imports: $(DEV) ## the import contract between the folders
	@$(BIN)/lint-imports --no-logo

format: $(DEV) ## mend what ruff can mend
	@$(BIN)/python -m ruff check --fix --quiet
	@$(BIN)/python -m ruff format --quiet

bench: $(USE) ## block-sparse GEMM against the dense peak (BENCH_ARGS= for its options)
	@$(BIN)/python benchmarks/block_gemm.py $(BENCH_ARGS)

docs: $(DEV) ## the documentation, into docs/_build/html; warnings are errors
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean: ## remove the environment, the caches and the built documentation
	rm -rf .venv docs/_build build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(USE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tilewise needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name one: make PYTHON=python3.12 ..."; \
	  exit 1; }
	@echo "Installing tilewise into .venv (once, and whenever pyproject.toml changes)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --editable ".[chem,mkl,mpi,plot]"
	@touch $@

$(DEV): $(USE)
	@echo "Installing the development tools into .venv"
	@$(PIP) install --editable ".[dev]"
	@touch $@
