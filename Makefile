# Seven verbs. Everything happens in .venv, which `make` builds when it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test texts check bench soak clean help

help:
	@echo "make demo   compare five policies on a federation of ten learners"
	@echo "make test   run all tests"
	@echo "make texts  write what the command line prints to tests/golden/terminal; read the diff"
	@echo "make check  formatting, lint, types"
	@echo "make bench  the measured claims (writes docs/results/)"
	@echo "make soak   what takes longer: full fuzzing, kill sweeps, storms, strangers, a 3 GB model"
	@echo "make clean  remove what make made"

$(READY): pyproject.toml papers/pyproject.toml constraints.txt constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --constraint constraints-dev.txt \
		--editable '.[all,dev]' --editable papers
	touch $(READY)

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/metis compare examples/demo.toml --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

texts: $(READY)
	$(BIN)/python -m tests.golden.texts

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/community.py --out docs/results/figure2.json --plot docs/results/figure2.png
	$(BIN)/python benchmarks/agenda.py --out docs/results/agenda.json
	$(BIN)/python benchmarks/simulate.py --workload w1 --out docs/results/simulate-w1.json
	$(BIN)/python benchmarks/simulate.py --workload w2 --out docs/results/simulate-w2.json
	$(BIN)/python benchmarks/simulate.py --workload async --seconds 20 --out docs/results/simulate-async.json
	$(BIN)/python benchmarks/scaling.py --out docs/results/scaling.json --plot docs/results/scaling.png
	$(BIN)/python benchmarks/codecs.py --out docs/results/codecs.json
	$(BIN)/python benchmarks/wire.py --out docs/results/wire.json
	$(BIN)/python benchmarks/load.py --out docs/results/load.json --plot docs/results/load.png
	$(BIN)/python benchmarks/tables.py

soak: $(READY)
	$(BIN)/python -m tests.fuzz.soak --schedules 20000
	$(BIN)/python -m pytest -m soak --timeout 7200 tests

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info papers/src/*.egg-info
