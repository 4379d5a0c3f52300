# Everything happens in .venv. Once that is there, only wheels of SGLang that were not fetched yet need a network.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# Stamps: what is installed in .venv, and from which pyproject.toml.
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help test demo matrix lint types format check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  PYTHON=$(PYTHON) makes $(VENV); ARGS=... goes to pytest and the demo; JOBS=$(JOBS) test processes"

test: $(DEV) ## Run the tests
	$(BIN)/python -m pytest -q -n $(JOBS) $(ARGS)

demo: $(RUNTIME) ## Patch a real release, look at it, and take the patch out again
	$(BIN)/python -m scripts.demo

matrix: $(RUNTIME) ## Try every release (110 wheels, about 1 GB once) and write docs/compatibility.md
	$(BIN)/python -m scripts.matrix

lint: $(DEV) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## Check types
	$(BIN)/mypy

format: $(DEV) ## Fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint types test ## All of the above that can fail

clean: ## Remove what was built; the fetched wheels in .cache/wheels stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage
	find . -path ./.git -prune -o -path ./.cache -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian's python3 comes without ensurepip: then pip installs pip.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: $(PYTHON) is missing or older than 3.10; try: make PYTHON=python3.11" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	    rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $@ install -q pip; \
	  } || { rm -rf $(VENV); $(PYTHON) -m virtualenv -q $(VENV); } || { rm -rf $(VENV); \
	    echo "make: $(PYTHON) cannot make $(VENV): install python3-venv, or virtualenv, or pip >= 22.3" >&2; exit 1; }
	@$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'

$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "installing sglang-patch in $(VENV)"
	@$(BIN)/python -m pip install -q -e . --group scripts
	@touch $@

$(DEV): pyproject.toml $(RUNTIME)
	@echo "installing the development tools in $(VENV)"
	@$(BIN)/python -m pip install -q -e . --group dev
	@touch $@
