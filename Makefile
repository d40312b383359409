# shardctl: `make demo` shows it, `make test` and `make slow` prove it, `make bench` measures it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
BIN := .venv/bin
# Tests start Python some thousand times; each time it would compile all of shardctl.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test slow fault soak lint unit bench docs dist clean

help: ## Name the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 10

demo: .venv/.for-demo ## Show the whole story on a throw-away fleet
	@$(BIN)/shardctl demo

# Longest files first: the many short ones fill the end, when a worker would be idle.
PYTEST := tests/in-memory.sh $(BIN)/pytest --dist loadfile --no-loadscope-reorder --durations 10

test: .venv/.for-test ## Run what a developer runs; checks style and types beside it
	@$(PYTEST) -n 4 -m 'not embedded' tests/lint tests/integration tests/unit shardctl

slow: .venv/.for-test ## Run whole stories, other versions, and break moves at every twelfth point
	@$(PYTEST) -n 4 -m embedded tests/integration
	@$(PYTEST) -n 4 tests/slow tests/fault

fault: .venv/.for-test ## Break moves at every point
	@SHARDCTL_EVERY_POINT=1 $(PYTEST) -n 4 tests/fault

soak: .venv/.for-test ## Break a fleet at random beside clients, an hour or SOAK_SECONDS; SOAK_SEED repeats
	@tests/in-memory.sh $(BIN)/python -m tests.soak --seconds $(or $(SOAK_SECONDS),3600) \
		$(addprefix --seed ,$(SOAK_SEED))

lint: .venv/.for-test ## Check style, types and who imports whom
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports | tail -n 2

unit: .venv/.for-test ## Run the tests that need no server
	@$(BIN)/pytest tests/unit shardctl

# `make bench pause` names benches; they are no targets.
NAMED := $(if $(filter bench,$(firstword $(MAKECMDGOALS))),$(wordlist 2,99,$(MAKECMDGOALS)))
bench: .venv/.for-test ## Measure what the documentation claims; takes minutes; `make bench NAME...`
	@$(BIN)/python tests/bench/run.py $(NAMED)
ifneq ($(NAMED),)
.PHONY: $(NAMED)
$(NAMED): bench ; @:
endif

docs: .venv/.for-test ## Write docs/reference and the man page from the commands, and the router's face for threads
	@$(BIN)/python -m tests.reference
	@$(BIN)/python -m tests.man_page
	@$(BIN)/python -m tests.router_face

dist: .venv/.for-test ## Build the wheels of shardctl and of shardctl-router into dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist . ./shardctl/router
	@ls dist

clean: ## Remove what was built
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find shardctl tests -name __pycache__ -prune -exec rm -rf {} +

# The stamps make a second run quick; a changed pyproject.toml installs again.
.venv/.for-demo: pyproject.toml shardctl/router/pyproject.toml tests/make-venv.sh tests/system-packages.sh
	@tests/system-packages.sh pgbouncer
	@tests/make-venv.sh sandbox
	@touch $@

.venv/.for-test: pyproject.toml shardctl/router/pyproject.toml tests/make-venv.sh tests/system-packages.sh tests/promtool.sh
	@tests/system-packages.sh postgresql pgbouncer openssh-server sudo iproute2 \
		repmgr patroni python3-pysyncobj zsh fish groff-base
	@tests/system-packages.sh $$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -n 1 | sed 's/.*/postgresql-&-repack/')
	@tests/make-venv.sh dev,sandbox
	@tests/promtool.sh
	@touch $@
