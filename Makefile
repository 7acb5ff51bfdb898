# Each target sets up what it needs, once: see scripts/setup.
.DEFAULT_GOAL := help
.PHONY: help run dev test test-slow cluster-test chaos check docs format bench bench-check setup clean distclean

BIN := .venv/bin
# Port of the Dagster UI of `make dev`.
PORT ?= 3000
# Command that fills the topics of `make dev`; empty for none.
DEV_SEED ?= $(BIN)/python -m examples.flights seed
# Passed on, for example: make test PYTEST_ARGS="-k slices -x"
PYTEST_ARGS ?=
# Processes of `make test`, each with its own broker. Of three, two have a Spark session. 0 means a single process.
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

run: ## Process a year of flights with Kafka, Spark and Dagster, exactly once, and print a summary
	@sh scripts/setup run
	@$(BIN)/python -m examples.flights run $(RUN_ARGS)

dev: ## Start Kafka and the Dagster UI with the flights platform on PORT (3000); Ctrl-C finishes active runs and shuts down
	@sh scripts/setup run
	@$(BIN)/kpipe dev --port $(PORT) --seed "$(DEV_SEED)" $(DEV_ARGS)

test: ## Run the fast tests, in 15 minutes (PYTEST_ARGS are passed on)
	@sh scripts/setup test
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --junitxml=$(JUNIT)/test.xml $(PYTEST_ARGS)

test-slow: ## Run the slow tests, in 20 minutes: killed processes, real dagster dev and kpipe dev, the UI, many records
	@sh scripts/setup test
	@$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --junitxml=$(JUNIT)/test-slow.xml $(PYTEST_ARGS)

cluster-test: ## Run the flights platform on a Spark cluster and three brokers, and kill one of them; takes minutes
	@sh scripts/setup run
	@$(BIN)/python -m pytest -m cluster kpipe_platform_tests/cluster $(PYTEST_ARGS)

chaos: ## Kill processes while orders arrive, for CHAOS_MINUTES (5), and check each order; CHAOS_SEED repeats a sequence
	@sh scripts/setup run
	@KPIPE_CHAOS_MINUTES=$(CHAOS_MINUTES) KPIPE_CHAOS_SEED=$(CHAOS_SEED) \
		$(BIN)/python -m pytest -m chaos kpipe_platform_tests/chaos $(PYTEST_ARGS)

check: ## Check lint, formatting, types and the package's layers
	@sh scripts/setup tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: ## Build the documentation site in build/site; fails on a broken link or a warning
	@sh scripts/setup tools
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: ## Format the code and apply Ruff's fixes
	@sh scripts/setup tools
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ## Measure kpipe and its alternatives (QUICK=1: in minutes); writes build/bench.json
	@sh scripts/setup run
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: ## Run the quick benchmarks and compare with the baseline; fails if a ratio is worse by more than noise
	@sh scripts/setup run
	@$(BIN)/python -m benchmarks --quick --check $(BENCH_ARGS)

setup: ## Set up packages, jars and a browser, and run nothing
	@sh scripts/setup test

clean: ## Delete the files that runs and tests created, including the data of `make dev`
	rm -rf build .kpipe .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info spark-warehouse
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## Delete .venv too; jars stay in the cache
	rm -rf .venv
