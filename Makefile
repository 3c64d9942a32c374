# Needs Python 3.11 or newer with pip and venv, nothing else: everything is installed into .venv.
#   make demo     train a GCN (DEMO=FILE.npz: on your graph)  make test       lint, types and every test
#   make bench    measure against torch, SciPy and others     make test-full  the same at full counts
#   make bench-quick   a few cases of every kernel: minutes   BENCH="--data FOLDER"   on matrices of your own
#   make dashboard  all of it as a site, in .benchmarks/site  make test-browser  the site in a headless Chromium
#   make bench-record  keep what was measured                 make bench-check  has anything become slower? (BASE=, CASES=, ROUNDS=)
#   make docs     the documentation site, in .site         make coverage  the share of the code that tests run
#   make wheel    build it, install it into an empty environment, and use it there
#
# On Linux, PyPI's torch is the CUDA build (gigabytes). Take the CPU one with
#   make test TORCH_INDEX=<an index of CPU builds of torch>

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
WORKERS ?= 2
DEMO ?=
REPOSITORY ?=
BENCH ?=
BASE ?=
CASES ?=
ROUNDS ?=
RESULTS ?= .benchmarks/results.json
# make docs EXECUTE=0 shows tutorials without their outputs: seconds instead of minutes
EXECUTE ?= 1

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: all venv demo test test-full test-browser docs coverage bench bench-quick bench-record bench-check dashboard lint wheel clean

all: test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing numscorch and what the demo needs into $(VENV) (a minute or more)"
	@$(PIP) -e ".[examples]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing numscorch and what its tests need into $(VENV) (a minute or more)"
	@$(PIP) -e ".[dev,examples]"
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	@echo "installing the libraries that are measured against into $(VENV)"
	@$(PIP) -e ".[dev,examples,bench]"
	@touch $@

venv: $(VENV)/.dev

demo: $(VENV)/.demo
	$(BIN)/python -m numscorch demo $(DEMO)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python packaging/check_names.py numscorch
	$(BIN)/python packaging/check_imports.py numscorch
	$(BIN)/python packaging/check_names.py tests
	$(BIN)/python packaging/check_statements.py

test: lint
	NUMSCORCH_TEST_SCALE=0.04 $(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -m "not browser" -q numscorch tests

test-full: lint
	NUMSCORCH_TEST_SCALE=1 $(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -m "not browser" -q numscorch tests

# where Chromium or what drives it can't be had, these tests are skipped and say so
test-browser: venv
	@sh tests/browser/chromium.sh
	@$(BIN)/python -c "import playwright" 2>/dev/null || $(PIP) -e ".[dev,examples,browser]" || echo "playwright can't be installed: tests that need it are skipped"
	$(BIN)/python -m pytest -m browser -p no:benchmark -q -rs tests/browser

$(VENV)/.docs: $(VENV)/.dev
	@echo "installing what builds the documentation into $(VENV)"
	@$(PIP) -e ".[dev,examples,docs]"
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 NUMSCORCH_DOCS_EXECUTE=$(EXECUTE) $(BIN)/python -m mkdocs build --strict --clean
	@echo "open .site/index.html"

# jitted functions are counted where tests run them as Python
coverage: venv
	@$(BIN)/python -c "import pytest_cov" 2>/dev/null || $(PIP) -e ".[dev,examples,coverage]"
	NUMSCORCH_TEST_SCALE=0.04 $(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -m "not browser" -q --cov --cov-report=term --cov-report=html numscorch tests

MEASURE = $(BIN)/python -m pytest benchmarks -p no:xdist -q -rs --benchmark-disable-gc --benchmark-quiet $(BENCH)

bench: $(VENV)/.bench
	@mkdir -p .benchmarks
	$(MEASURE) --benchmark-json=.benchmarks/results.json

bench-quick: $(VENV)/.bench
	@mkdir -p .benchmarks
	$(MEASURE) --quick --benchmark-json=.benchmarks/quick.json

# what make bench measured, into the history; then into the tables that README.md and docs/performance.md show
bench-record: $(VENV)/.bench
	$(BIN)/python -m benchmarks.history add $(RESULTS)
	$(BIN)/python docs/refresh.py measurements highlights compiling

# what was measured here and what is in the history, as pages; REPOSITORY is the address at which commits are looked at
dashboard: $(VENV)/.bench
	$(BIN)/python -m benchmarks.dashboard $(if $(REPOSITORY),--repository $(REPOSITORY))

bench-check: $(VENV)/.bench
	$(BIN)/python -m benchmarks.gate $(if $(BASE),--base $(BASE)) $(if $(CASES),--cases "$(CASES)") $(if $(ROUNDS),--rounds $(ROUNDS))

wheel:
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(PYTHON) packaging/check_wheel.py dist

clean:
	rm -rf $(VENV) numscorch-demo build dist .site .cache .coverage htmlcov *.egg-info .pytest_cache .mypy_cache .ruff_cache .benchmarks
