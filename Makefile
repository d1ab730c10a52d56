# Two commands are enough: `make demo` and `make test`. Both create what they need
# inside this folder (.venv*, .cache) and may be interrupted and run again.
#
#   PYTHON=python3.12 make test     choose the interpreter (3.11 or newer)
#   make test PYTEST='-k lease'     hand arguments to pytest, under one Python only
#   make bench BENCH='--help'       hand arguments to the harness
#   make bench STORE=all            measure everything, and write what the documents show
#   make mutants MUTANTS='--help'   hand arguments to the mutants' runner
#   make verify VERIFY='--help'     hand arguments to the campaigns
#   make demo DEMO='--svg out.svg'  hand arguments to `fencelock demo`

MAKEFLAGS += --no-print-directory
export PYTHON PYTEST BENCH STORE MUTANTS VERIFY

.PHONY: help demo test lint verify mutants clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: ## see a split brain, without and with fencing
	@scripts/venv .venv fencelock --editable '.[cli]'
	@.venv/bin/fencelock demo $(DEMO)

test: ## lint, type-check, build the wheel, and run every test against it
	@scripts/test

lint: ## ruff, mypy --strict, pyright
	@scripts/lint

ifneq ($(wildcard lab/src/fencelock_lab/benchmarks/__main__.py),)
.PHONY: bench
bench: ## measure fencelock and everybody else, and write the page of what came out
	@scripts/bench
endif

verify: ## attack each store for a minute, and write the page of what came out
	@scripts/verify

mutants: ## change the rules' code in many small ways, and see tests notice
	@scripts/mutants

clean: ## remove everything that make has created
	rm -rf .venv* .cache dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
