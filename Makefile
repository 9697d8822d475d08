# headrace: every command. `make help` lists them.
SHELL := bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARCHIVE := build/spark.jsa
DEMO ?=
BENCH ?= all
TESTS ?= tests
SOAK ?= 60

# Spark: the one in requirements.lock, and older ones that headrace runs on too, each in an environment of its own
LOCKED := $(shell sed -nE 's/^pyspark==([0-9]+\.[0-9]+)\..*/\1/p' requirements.lock)
SPARK ?= $(LOCKED)
SPARK_4.0 := 4.0.5
SPARK_4.1 := 4.1.4
SPARK_4.2 := 4.2.1
OLDER := $(sort $(patsubst SPARK_%,%,$(filter SPARK_4.%,$(.VARIABLES))))
OTHER := build/spark-$(SPARK)
DOCS := build/docs-venv

.PHONY: help setup java postgres broker demo test lint format unit soak look bench wheel docs clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "headrace needs Python 3.11 or newer; found $$($(PYTHON) --version); set PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null 2>&1 || { echo "headrace needs Java 17 or newer for Spark, and there is none: install a JDK (Debian: apt-get install openjdk-17-jre-headless)"; exit 1; }
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p'); [ "$${version:-0}" -ge 17 ] || { echo "headrace needs Java 17 or newer for Spark; found Java $$version: install a newer JDK"; exit 1; }

setup: java $(READY) postgres broker ## a virtual environment in .venv with pinned dependencies

postgres: $(READY)
	@$(BIN)/python -m tests.sinks.postgres

broker: java $(READY)
	@$(BIN)/python -m tests.kafka.broker

demo: setup ## phone fraud: generate calls, find planted frauds live, verify against the reference
	$(BIN)/headrace demo $(DEMO)

$(ARCHIVE): $(READY)
	-$(BIN)/python -m tests.jvm

ifeq ($(SPARK),$(LOCKED))
test: setup ## everything that must pass: lint, types, all tests; SPARK=4.0 (4.1, 4.2): a few of them on that Spark
	@$(MAKE) --no-print-directory -j2 lint $(ARCHIVE)
	-@$(MAKE) --no-print-directory $(DOCS)/.ready
	$(BIN)/python -m pytest $(TESTS) -m "not long" -n 2 --dist loadfile --no-loadscope-reorder
else ifdef SPARK_$(SPARK)
test: java $(OTHER)/.ready
	$(OTHER)/bin/python -m pytest $(TESTS) -m smoke -n 2 --dist loadfile --no-loadscope-reorder
else
test:
	$(error SPARK=$(SPARK) is none that headrace is tried on: give one of $(OLDER), or nothing for $(LOCKED))
endif

$(OTHER)/.ready: requirements.lock pyproject.toml Makefile
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	sed 's/^pyspark==.*/pyspark==$(SPARK_$(SPARK))/' requirements.lock > $(OTHER)/requirements.lock
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check -r $(OTHER)/requirements.lock
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

lint: $(READY) ## ruff and mypy (strict on src)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: $(READY) ## in three minutes: a few cases of every test that needs no Spark
	$(BIN)/python -m pytest tests/unit tests/oracle tests/golden tests/linearroad -m "not spark and not long and not thorough" --few 2 -n 2 --dist loadfile

soak: setup $(ARCHIVE) ## what make test does in seconds for longer, with fresh seeds: broken files (SOAK=60 seconds of each kind), kill -9
	@seed=$${SEED:-$$RANDOM}; echo "SEED=$$seed make soak repeats it"; \
	HEADRACE_FUZZ_SEED=$$seed HEADRACE_FUZZ_SECONDS=$(SOAK) $(BIN)/python -m pytest tests/fuzz --timeout 0 && \
	HEADRACE_SOAK_SEED=$$seed HEADRACE_SOAK_KILLS=$(SOAK) $(BIN)/python -m pytest tests -m "soak or long" --timeout 0

look: setup ## a first look at speed and memory, some five minutes: joins beside Spark, 500 epochs
	$(BIN)/python benchmarks/first_look.py

bench: setup ## headrace beside Spark and Flink (hours; BENCH="join --quick" for less); figures and charts in build/bench
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/headrace bench $(BENCH) --json build/bench/bench.json --charts build/bench

wheel: java ## build the wheel in dist/, install it in an empty environment and run a query there
	rm -rf dist build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	build/wheel/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock dist/*.whl
	cd build/wheel && env -u PYTHONPATH bin/python -P ../../tests/wheel.py

$(DOCS)/.ready: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/requirements.txt
	@touch $@

docs: $(READY) $(DOCS)/.ready ## the documentation as a site in build/site, with every link and anchor checked
	$(BIN)/python -m docs_site.build

clean: ## remove what the other commands made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
