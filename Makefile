# Needs Python 3.10+ and git; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test lint demo bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP)  ## make .venv and install flor with its development tools

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) not found: install Python 3.10 or newer, or name one: make PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "flor needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
	       "name another one: make PYTHON=python3.12"; exit 1; }
	@command -v git >/dev/null || { echo "git not found: install it"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv"; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@# Where pip is told not to compile, the first imports would be ten times slower.
	-@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1
	@touch $@

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## all checks and all tests
	$(BIN)/pytest

demo: setup  ## a tour: three edits of a training script, one table
	$(BIN)/python examples/demo.py

bench: setup  ## the figures of benchmarks/README.md, ours and the peers'
	$(BIN)/python benchmarks/run.py

clean:  ## remove what make made
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
