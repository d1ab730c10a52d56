# `make demo` shows what fencelock is for, and `make check` is what to run while writing.
# Every target creates what it needs inside this folder (.venv*, .cache), and may be
# interrupted and run again.
#
#   PYTHON=python3.12 make test     choose the interpreter (3.11 or newer)
#   WORKERS=8 make test             run so many tests at once, on a machine with more cores
#   make test PYTEST='-k lease'     hand arguments to pytest: some tests, of all tiers
#   make campaigns MINUTES=10       begin no test after ten minutes
#   make bench BENCH='--help'       hand arguments to the harness
#   make bench STORE=all            measure everything, and write what the documents show
#   make mutants MUTANTS='--help'   hand arguments to the mutants' runner
#   make verify VERIFY='--help'     hand arguments to fencelock_lab.campaigns
#   make demo DEMO='--svg out.svg'  hand arguments to `fencelock demo`
#   make docs DOCS='--jobs 2'      hand arguments to Sphinx

MAKEFLAGS += --no-print-directory
export PYTHON PYTEST WORKERS MINUTES BENCH STORE MUTANTS VERIFY DOCS

.PHONY: help demo example check test campaigns coverage lint docs bench verify mutants clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

demo: ## see a split brain, without and with fencing
	@scripts/venv .venv-demo fencelock --editable '.[cli]' --editable ./lab
	@.venv-demo/bin/fencelock demo $(DEMO)

example: ## see two fenced services refuse a nightly job that was frozen
	@scripts/venv .venv-example packages --require-hashes --requirement requirements/example.txt
	@scripts/venv .venv-example fencelock --editable . --editable ./lab
	@.venv-example/bin/python examples/fenced_services/run.py

check: ## lint, types, and the quick tests that need no server: two minutes
	@scripts/check

test: ## lint, build the wheels, and run check's and the servers' tests against them
	@scripts/test

campaigns: ## prove what takes longer: faults, power cuts, more versions, fresh seeds
	@scripts/campaigns

coverage: ## run check's tests, and list the lines of the library that they do not reach
	@scripts/coverage

lint: ## ruff, mypy --strict, pyright, shellcheck
	@scripts/lint

docs: ## build the documentation site into .cache/site, to be read offline
	@scripts/docs

bench: ## measure fencelock and other lock libraries, and write the page with the results
	@scripts/bench

verify: ## attack each store for a minute, and write the page with the results
	@scripts/verify

mutants: ## break the rules' code in many small ways, and check that the tests fail
	@scripts/mutants

clean: ## remove everything that make has created
	for made in .venv*; do \
	    if [ -e "$$made/.made-with" ] || [ -e "$$made/.unfinished" ]; then rm -rf "$$made"; fi; \
	done
	rm -rf .venv.outdated .venv-*.outdated .cache dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
