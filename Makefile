# Every target creates the environment it needs; a fresh clone wants only Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev
# One more than the cores of a small machine: some tests only wait for a clock.
WORKERS ?= 3

.PHONY: env demo test test-cuda check fast format docs release-check clean

env: $(BASE)

demo: $(BASE)
	$(BIN)/equiav demo

test: $(STAMP)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests

# On a machine with a CUDA GPU: what only a GPU can show, in a few minutes. Elsewhere every test says why it is skipped.
test-cuda: $(BASE)
	@! nvidia-smi > /dev/null 2>&1 || $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  || { echo "nvidia-smi works, but torch in $(VENV) sees no GPU; put a CUDA build in its place: $(BIN)/python -m pip" \
	  "install --force-reinstall torch, with the --index-url that pytorch.org/get-started names for your driver"; exit 2; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pytest beartype
	$(BIN)/python -m pytest -rs -m cuda tests/cuda

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) fast

fast: $(STAMP)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) -q -m "not process" tests

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site
	@echo "Look at site/index.html"

release-check:
	$(PYTHON) tools/release_check.py

# What the package itself needs, enough for the demo; then what tests, checks and documentation need beside it.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "equiav needs Python 3.10 or newer; set PYTHON=/path/to/python3.x"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
