# All of these set up what they need, once: see scripts/setup.
.DEFAULT_GOAL := help
.PHONY: help run dev test test-slow cluster-test chaos check docs format bench bench-check setup clean distclean

BIN := .venv/bin
# Port of the Dagster UI of `make dev`.
PORT ?= 3000
# What fills the topics of `make dev`; empty: nothing does.
DEV_SEED ?= $(BIN)/python -m examples.flights seed
# Passed on, for example: make test PYTEST_ARGS="-k slices -x"
PYTEST_ARGS ?=
# Processes of `make test`, each with a broker of its own; of three, two have a Spark session. 0: one process for all.
TEST_JOBS ?= 3
# JUnit reports: python -m kpipe_platform_tests.timings build/junit/*.xml prints the slowest files.
JUNIT := build/junit
CHAOS_MINUTES ?=
CHAOS_SEED ?=
RUN_ARGS ?=
DEV_ARGS ?=
BENCH_ARGS ?=

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## "; print "usage: make TARGET\n" } \
		/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## A year of flights through Kafka, Spark and Dagster, exactly once, with a summary
	@sh scripts/setup run
	@$(BIN)/python -m examples.flights run $(RUN_ARGS)

dev: ## Kafka and the Dagster UI with the flights platform, on PORT (3000); Ctrl-C lets runs finish, then stops all of it
	@sh scripts/setup run
	@$(BIN)/kpipe dev --port $(PORT) --seed "$(DEV_SEED)" $(DEV_ARGS)

test: ## The fast tests: everything that a change can break, in 15 minutes (PYTEST_ARGS are passed on)
	@sh scripts/setup test
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --junitxml=$(JUNIT)/test.xml $(PYTEST_ARGS)

test-slow: ## The slow tests: processes killed, real dagster dev and kpipe dev, the UI, many records; 20 minutes
	@sh scripts/setup test
	@$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --junitxml=$(JUNIT)/test-slow.xml $(PYTEST_ARGS)

cluster-test: ## The flights platform on a Spark cluster and three brokers, one of which is killed; takes minutes
	@sh scripts/setup run
	@$(BIN)/python -m pytest -m cluster kpipe_platform_tests/cluster $(PYTEST_ARGS)

chaos: ## Kills everything in turn while orders come, for CHAOS_MINUTES (5), then checks each order; CHAOS_SEED repeats a sequence
	@sh scripts/setup run
	@KPIPE_CHAOS_MINUTES=$(CHAOS_MINUTES) KPIPE_CHAOS_SEED=$(CHAOS_SEED) \
		$(BIN)/python -m pytest -m chaos kpipe_platform_tests/chaos $(PYTEST_ARGS)

check: ## Lint, formatting, types and the layers of the package
	@sh scripts/setup tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: ## Build the documentation as a site into build/site; fails on a broken link or a warning
	@sh scripts/setup tools
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: ## Format the code, and fix what Ruff can fix
	@sh scripts/setup tools
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ## Measure kpipe and its alternatives (QUICK=1: in minutes); figures go to build/bench.json
	@sh scripts/setup run
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: ## A quick run, compared with the committed baseline; fails if a ratio is worse by more than noise
	@sh scripts/setup run
	@$(BIN)/python -m benchmarks --quick --check $(BENCH_ARGS)

setup: ## Only set up: packages, jars, browser
	@sh scripts/setup test

clean: ## Remove what runs and tests left here, the data of `make dev` included
	rm -rf build .kpipe .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info spark-warehouse
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too; jars stay in the cache
	rm -rf .venv
