# Two commands do everything on a fresh machine with Python >= 3.11, Java 17 and Maven: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test test-fast lint format bench chaos clients clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	touch $@

demo: $(STAMP)  ## a source and a target cluster, live clients, link, mirror, promote; report in build/demo
	$(BIN)/linker demo --out build/demo

test: $(STAMP)  ## the whole suite: fast part on fakes, then real brokers
	$(BIN)/python -m pytest -m "not real and not slow"
	$(BIN)/python -m pytest -m "real and not slow" -p no:randomly

test-fast: $(STAMP)  ## only what needs no broker
	$(BIN)/python -m pytest -m "not real and not slow"

lint: $(STAMP)  ## ruff, mypy --strict, import contracts, generated tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/generate_metadata_schemas.py --check "$$($(BIN)/python scripts/kafka_metadata_jar.py)"

format: $(STAMP)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## throughput, CPU and memory beside Kafka's own follower; QUICK=1 for a short look
	$(BIN)/python -m bench.run $(if $(QUICK),--quick) --out build/bench

chaos: $(STAMP)  ## random faults on real clusters while mirrors are promoted; RUNS=n SEED=n
	$(BIN)/python -m tests.chaos --runs $(or $(RUNS),3) $(if $(SEED),--seed $(SEED)) --out build/chaos

clients: $(STAMP)  ## every client library through link, move and promote; report in build/clients
	$(BIN)/python -m tests.clients --out build/clients

clean:  ## everything that was built here
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
