# shardctl: `make demo` and `make example` show it, `make test` proves it, `make bench` measures it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
BIN := $(VENV)/bin
# Tests start Python some thousand times; each time it would compile all of shardctl.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo example test slow chaos lint unit bench docs pictures site dist lock newest clean

help: ## Name the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 10

demo: $(VENV)/.for-demo ## Show the whole story on a throw-away fleet
	@$(BIN)/shardctl demo

example: $(VENV)/.for-example ## Run an application on a throw-away fleet: photos, with a page to look at
	@exec $(BIN)/python examples/photos/run.py

# Longest files first: the many short ones fill the end, when a worker would be idle.
PYTEST := tests/in-memory.sh $(BIN)/pytest --dist loadfile --no-loadscope-reorder --durations 10 --again

# What the garbage collector meets, and when, is no test's subject.
test: lint ## Run all that a change must pass, and CI runs: style, types, and the tests
	@$(PYTEST) -n 2 -m 'not (embedded or timed or long)' -W default::pytest.PytestUnraisableExceptionWarning \
		tests/lint tests/integration tests/unit shardctl

slow: $(VENV)/.for-test ## Run what takes long or needs a quiet machine, other versions, whole stories, and attacks
	@tests/system-packages.sh chromium chromium-driver prometheus
	@$(PYTEST) -n 4 -m 'embedded or timed or long' tests/integration tests/unit
	@$(PYTEST) -n 4 tests/slow
	@$(MAKE) --no-print-directory chaos MINUTES=5

MINUTES := 60
SEED := $(shell date +%j)
chaos: $(VENV)/.for-test ## Let moves and faults of a seed meet, and judge what clients saw; `make chaos MINUTES=5 SEED=7`
	@tests/system-packages.sh libfaketime
	@$(BIN)/python -m tests.chaos.run $(MINUTES) $(SEED) build/chaos

lint: $(VENV)/.for-test ## Check style, types and who imports whom
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports | tail -n 2

unit: $(VENV)/.for-test ## Run the tests that need no server
	@$(BIN)/pytest tests/unit shardctl

# `make bench pause` names benches; they are no targets.
NAMED := $(if $(filter bench,$(firstword $(MAKECMDGOALS))),$(wordlist 2,99,$(MAKECMDGOALS)))
bench: $(VENV)/.for-test ## Measure what the documentation claims; takes minutes; `make bench NAME...`
	@$(BIN)/python tests/bench/run.py $(NAMED)
ifneq ($(NAMED),)
.PHONY: $(NAMED)
$(NAMED): bench ; @:
endif

docs: $(VENV)/.for-test ## Write docs/reference, the man page, the list of messages, and the router's face for threads
	@$(BIN)/python -m tests.reference
	@$(BIN)/python -m tests.messages
	@$(BIN)/python -m tests.man_page
	@$(BIN)/python -m tests.router_face

pictures: $(VENV)/.for-test ## Draw the pictures of docs/images from a fleet and a move; takes a minute
	@$(BIN)/python -m tests.pictures

site: $(VENV)-site/.made ## Build the pages as a site, build/site; broken links fail
	@tests/site.sh $(VENV)-site

$(VENV)-site/.made: pyproject.toml tests/make-venv.sh
	@tests/make-venv.sh $(VENV)-site site
	@touch $@

dist: ## Build wheel and sdist, and use the wheel in an empty environment
	@tests/dist.sh

lock: ## Write the newest releases and their hashes into tests/constraints-*.txt
	@python3 -m venv .venv-lock
	@.venv-lock/bin/pip install --quiet --disable-pip-version-check --upgrade uv
	@$(LOCK) --extra sandbox -o tests/constraints-demo.txt
	@$(LOCK) --extra sandbox --extra django -c tests/constraints-demo.txt -o tests/constraints-example.txt
	@$(LOCK) --extra dev --extra sandbox --extra testing --extra sqlalchemy -c tests/constraints-demo.txt -o tests/constraints-test.txt
	@rm -rf .venv-lock

# What builds shardctl is locked with it. No address of a registry is written.
LOCK := printf '%s\n' hatchling editables | .venv-lock/bin/uv pip compile \
	--quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command 'make lock' pyproject.toml -

newest: ## Run lint, unit tests and demo with the newest release of everything
	@rm -rf .venv-newest
	@$(MAKE) --no-print-directory VENV=.venv-newest PINNED= lint unit demo

clean: ## Remove what was built
	rm -rf .venv .venv-newest .venv-lock .venv-site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find shardctl tests -name __pycache__ -prune -exec rm -rf {} +

# The stamps make a second run quick; other requirements or releases install again.
PINNED := yes
INSTALLS := pyproject.toml tests/make-venv.sh tests/system-packages.sh
$(VENV)/.for-demo: $(INSTALLS) tests/constraints-demo.txt
	@tests/system-packages.sh pgbouncer
	@tests/make-venv.sh $(VENV) sandbox $(PINNED:yes=demo)
	@touch $@

$(VENV)/.for-example: $(INSTALLS) tests/constraints-example.txt
	@tests/system-packages.sh pgbouncer
	@tests/make-venv.sh $(VENV) sandbox,django $(PINNED:yes=example)
	@touch $@

$(VENV)/.for-test: $(INSTALLS) tests/constraints-test.txt
	@tests/system-packages.sh postgresql pgbouncer openssh-server sudo iproute2 \
		repmgr patroni python3-pysyncobj zsh fish groff-base
	@tests/system-packages.sh $$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -n 1 | sed 's/.*/postgresql-&-repack/')
	@tests/make-venv.sh $(VENV) dev,sandbox $(PINNED:yes=test)
	@touch $@
