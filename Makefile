# Two commands do everything on a fresh machine with Python >= 3.11, Java 17 or 21, and Maven: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tests run side by side: three for each core, because they wait for more than they compute, and two with clusters of their
# own (about 3 GB each).
WORKERS      ?= $(shell n=$$((3 * $$(getconf _NPROCESSORS_ONLN))); echo $$((n < 12 ? n : 12)))
REAL_WORKERS ?= 2
# Where this is set, each of the sidecars that are started here would compile all it loads, which none that is installed does.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-containers lint format bench bench-soak chaos fleet-figures clients reports sim sim-mutations clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml requirements-build.lock requirements-dev.lock wire/frames/_walk.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# A package that comes as source is built with the setuptools of the first line, not with whatever is newest.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	# As pip does with what it installs for good: a sidecar that has to compile itself holds a MiB more from then on.
	$(BIN)/python -m compileall -q wire controller fleet fetcher router groups validator admin linker
	touch $@

demo: $(STAMP)  ## a source and a target cluster, live clients, link, mirror, promote, switch; report in build/demo
	$(BIN)/linker demo --out build/demo

test: $(STAMP)  ## the whole suite: fast part on fakes, then real brokers
	rm -f build/fast.xml build/real.xml build/unstable.txt
	# Each worker imports all that it is shown, so neither part is shown the other's; tests/conftest.py keeps them apart.
	$(BIN)/python -m pytest -m "not real and not slow" --ignore=tests/real -n $(WORKERS) \
		--junitxml=build/fast.xml -o junit_family=xunit1
	$(BIN)/python -m pytest tests/real -m "real and not slow" -p no:randomly -n $(REAL_WORKERS) \
		--dist loadfile --no-loadscope-reorder \
		--junitxml=build/real.xml -o junit_family=xunit1 || $(BIN)/python -m tests.again build/real.xml

test-fast: $(STAMP)  ## only what needs no broker
	$(BIN)/python -m pytest -m "not real and not slow" --ignore=tests/real -n $(WORKERS)

test-containers: $(STAMP)  ## the main story in containers; skipped without a Docker engine; MAKER=jars on jars instead
	@MAKER=$(MAKER) $(BIN)/python -m tests.containers

lint: $(STAMP)  ## ruff, mypy --strict, import contracts and circles, how pages are written, generated tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/import_circles.py
	$(BIN)/python scripts/unique_names.py
	$(BIN)/python scripts/check_test_calls.py
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/check_english.py
	$(BIN)/python scripts/generate_metadata_schemas.py --check "$$($(BIN)/python -m scripts.kafka_metadata_jar)"

format: $(STAMP)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## beside Kafka's own follower and MirrorMaker 2; QUICK=1 for a short look, CASE="a b" only these; PARTITIONS=1,100 ROUNDS=n
	$(BIN)/python -m lab.bench.run $(if $(QUICK),--quick) $(foreach one,$(CASE),--case $(one)) \
		$(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(ROUNDS),--rounds $(ROUNDS)) --out build/bench

bench-soak: $(STAMP)  ## half an hour of everything at once: memory and open files stay flat; MINUTES=n
	$(BIN)/python -m lab.bench.run --case soak $(if $(MINUTES),--soak-minutes $(MINUTES)) --out build/bench-soak

chaos: $(STAMP)  ## random faults on real clusters while topics are promoted or switched; RUNS=n SEED=n ONLY=switch|promote
	$(BIN)/python -m tests.chaos --runs $(or $(RUNS),3) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) --out build/chaos

fleet-figures: $(STAMP)  ## how long producers pause when sidecars die or drain, against the goals; on a quiet machine
	rm -f build/fleet/figures.json
	LINKER_FLEET_GOALS=1 $(BIN)/python -m pytest tests/real/test_fleet_figures.py -p no:randomly; \
		code=$$?; $(BIN)/python -m tests.real.fleet_figures; exit $$code

clients: $(STAMP)  ## client libraries through link, move, promote and switch; ALL=1 all of them, ONLY=names, GATE_MINUTES=n, PLAIN=1 without a link
	$(BIN)/python -m tests.clients $(if $(ALL),--all) $(if $(ONLY),--only $(ONLY)) $(if $(PLAIN),--plain) \
		$(if $(GATE_MINUTES),--gate-minutes $(GATE_MINUTES) --at-once 9 --demote) --out build/clients

reports: $(STAMP)  ## the slow tests on real brokers: public reports, and further ways of what `make test` tries in one; ONLY=words picks
	$(BIN)/python -m pytest -m "real and slow" -p no:randomly $(if $(ONLY),-k "$(ONLY)") tests/real

sim: $(STAMP)  ## a fleet in a simulated world, stories out of seeds; SEEDS=n, or SEED=n for one with its trace
	$(BIN)/python -m tests.sim --seeds $(or $(SEEDS),1000) $(if $(SEED),--seed $(SEED)) $(if $(MUTATE),--mutate $(MUTATE))

sim-mutations: $(STAMP)  ## which rule, taken out, is missed by which story
	$(BIN)/python -m tests.sim --mutations

clean:  ## everything that was built here
	rm -rf $(VENV) build artifacts *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
