# Needs Python 3.11 or newer with pip and venv, nothing else: everything is installed into .venv.
#   make demo     train and run a GCN on a real graph         make test       lint, types and every test
#   make bench    measure against torch, SciPy and others     make test-full  the same at full counts
#   make bench-quick   a few cases of every kernel: minutes   BENCH="--data FOLDER"   on matrices of your own
#   make bench-record  keep what was measured                 make bench-check  has anything become slower? (BASE=, CASES=, ROUNDS=)
#   make dashboard     what was measured, as a site           make test-browser  its pages in Chromium
#
# On Linux, PyPI's torch is the CUDA build (gigabytes). Take the CPU one with
#   make test TORCH_INDEX=<an index of CPU builds of torch>

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
WORKERS ?= 2
DEMO ?=
BENCH ?=
BASE ?=
CASES ?=
ROUNDS ?=
REPOSITORY ?=
RESULTS ?= .benchmarks/results.json

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: all venv demo test test-full bench bench-quick bench-record bench-check dashboard test-browser lint clean

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

$(VENV)/.browser: $(VENV)/.dev
	@echo "installing what drives a browser into $(VENV)"
	@$(PIP) -e ".[dev,examples,browser]"
	@touch $@

venv: $(VENV)/.dev

demo: $(VENV)/.demo
	$(BIN)/python -m numscorch demo $(DEMO)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	NUMSCORCH_TEST_SCALE=0.1 $(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -q numscorch tests

test-full: lint
	NUMSCORCH_TEST_SCALE=1 $(BIN)/python -m pytest -n $(WORKERS) -p no:benchmark -q numscorch tests

# Debian's Chromium is installed where that may be done; where there is none, these tests are skipped, and say so
APT = DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20

test-browser: $(VENV)/.browser
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Debian's chromium"; $(APT) update && $(APT) install -y --no-install-recommends chromium >/dev/null; true; fi
	$(BIN)/python -m pytest -m browser -p no:benchmark -q -rs tests/browser

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
	$(BIN)/python docs/refresh.py performance measurements

bench-check: $(VENV)/.bench
	$(BIN)/python -m benchmarks.gate $(if $(BASE),--base $(BASE)) $(if $(CASES),--cases "$(CASES)") $(if $(ROUNDS),--rounds $(ROUNDS))

# what was recorded, and what was measured here since; REPOSITORY=its address makes commits links
dashboard: $(VENV)/.dev
	$(BIN)/python -m benchmarks.dashboard $(if $(REPOSITORY),--repository "$(REPOSITORY)")

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .benchmarks
