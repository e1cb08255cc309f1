# Each target does all its own set-up in .venv; Python 3.11 or newer and make are all that is needed.
#
#   make demo     a chat through the proxy, in front of a stand-in model; then serve until Ctrl-C
#   make run      serve in front of PROXY_UPSTREAM_URL
#   make test     every test that needs only Python (make test ARGS="tests/unit -k key")
#   make test-clients   the promises as real clients see them; prints figures (ARGS as above)
#   make test-live      the promises in front of real engines; prints figures (ARGS as above)
#   make test-e2e       the containers: a real engine, the real compose files, a fake LAN (as root)
#   make fuzz     feeds the reader of responses with malformed ones (5 minutes; Linux on x86-64)
#   make bench    CPU, latency and memory of the data plane, beside other proxies (10 minutes)
#   make bench-instructions   what a request and an event take, counted by valgrind (a minute)
#   make bench-admission   admission under three times the load of an engine, simulated (5 minutes)
#   make bench-admission-cost   what admission costs in CPU, with 10,000 keys
#   make lint     ruff, mypy, the direction of imports, shellcheck, shfmt and hadolint
#   make format   what can be corrected by itself
#   make docs     the README's tables and docker/proxy.env.example, from the code
#   make lock     every lock file (make lock ARGS=--upgrade)
#   make clean    remove .venv and every cache

.DEFAULT_GOAL := help
.PHONY: help demo run test test-clients test-live test-e2e fuzz bench bench-instructions bench-admission bench-admission-cost lint format docs lock clean

VENV := .venv
PY := $(VENV)/bin/python
# Not the scripts in bin: their first line has the path of another checkout once this one was moved.
PIP := $(PY) -m pip --disable-pip-version-check --quiet
ARGS ?=

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

demo: $(VENV)/.runtime
	@$(PY) -m proxy demo $(ARGS)

run: $(VENV)/.runtime
	@$(PY) -m proxy serve $(ARGS)

# In two processes, for half of it is waiting: make test JOBS=0 ARGS="-x -s -k caps".
JOBS ?= 2
test: $(VENV)/.dev
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(ARGS)

# The first time installs frameworks, Node and its packages, 0.7 GB in 3 minutes, in the same place
# as the engines below. Chromium comes with them where the system has none.
test-clients: $(VENV)/.dev
	@tests/clients/frameworks/install
	@tests/clients/node/install
	$(PY) -m pytest tests/clients $(ARGS)

# The first time installs vLLM, 2.5 GB in 4 minutes, under BULWARK_CACHE (~/.cache/bulwark).
# llama.cpp is tested where scripts/engines/install-llamacpp has built it (8 minutes).
test-live: $(VENV)/.dev
	@scripts/engines/install-vllm
	@scripts/engines/install-transformers
	$(PY) -m pytest tests/live $(ARGS)

# The first time fetches a container engine and makes a base image, under BULWARK_CACHE.
test-e2e: $(VENV)/.dev
	@tests/e2e/install
	@tests/e2e/install-prometheus
	$(PY) -m pytest tests/e2e $(ARGS)

# New inputs go where atheris is; one that breaks something becomes a file of the corpus.
FUZZ_SECONDS ?= 300
fuzz:
	@python=$$(tests/fuzz/install) && found=$$(dirname "$$(dirname "$$(dirname "$$python")")")/found \
		&& mkdir -p "$$found" && PYTHONPATH=. "$$python" -m tests.fuzz.run responses \
		-max_total_time=$(FUZZ_SECONDS) $(ARGS) "$$found" tests/fuzz/corpus/responses \
		&& echo "Nothing was found: no response broke what tests/fuzz/README.md holds to be true."

# Needs a C compiler; of the others it measures those that are installed (bench/install-peers).
bench: $(VENV)/.dev
	$(PY) -m bench.dataplane $(ARGS)

# Fails where either has grown by more than a twentieth. Needs valgrind and a C compiler.
bench-instructions: $(VENV)/.dev
	$(PY) -m bench.counting $(ARGS)

# Both fail where a target is missed. With figures, and how they came about, in bench/README.md.
bench-admission: $(VENV)/.dev
	$(PY) -m bench.admission $(ARGS)

bench-admission-cost: $(VENV)/.dev
	$(PY) -m bench.admission_cost $(ARGS)

# By their first line, for most have no ending. Asked only in a recipe: shfmt has to be installed.
SCRIPTS = $(shell $(VENV)/bin/shfmt --find $(wildcard .ci docker firewall scripts tests))
SHFMT := $(VENV)/bin/shfmt --indent 4 --case-indent --binary-next-line --simplify
# The system's where no wheel has it (Linux on arm64).
SHELLCHECK = $(or $(wildcard $(VENV)/bin/shellcheck),shellcheck)

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(SHELLCHECK) --external-sources --source-path=SCRIPTDIR:. $(SCRIPTS)
	$(SHFMT) --diff $(SCRIPTS)
	$(addprefix $(VENV)/bin/hadolint ,$(wildcard docker/Dockerfile))

format: $(VENV)/.dev
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .
	$(SHFMT) --write $(SCRIPTS)

docs: $(VENV)/.dev
	$(PY) -m scripts.docs

# --no-config and no index in the output: whoever installs decides where from, the hashes decide what.
COMPILE = $(VENV)/bin/uv --no-config --quiet pip compile --universal --python-version 3.11 \
	--generate-hashes --no-header --no-emit-index-url $(ARGS)

FRAMEWORKS := tests/clients/frameworks/requirements

lock: $(VENV)/.dev
	$(COMPILE) pyproject.toml --group build --output-file requirements.txt
	$(COMPILE) pyproject.toml --group dev --constraint requirements.txt --output-file requirements-dev.txt
	$(COMPILE) $(FRAMEWORKS).in --output-file $(FRAMEWORKS).txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than what was installed from.
$(VENV)/.runtime: requirements.txt pyproject.toml | $(VENV)/.made
	@echo "Installing what requirements.txt names into $(VENV) (once) …"
	@$(PIP) install --require-hashes -r requirements.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements-dev.txt pyproject.toml | $(VENV)/.made
	@echo "Installing what requirements-dev.txt names into $(VENV) (once) …"
	@$(PIP) install --require-hashes -r requirements-dev.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.made:
	@python=$$(sh scripts/find-python) && "$$python" -m venv $(VENV)
	@touch $@
