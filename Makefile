# Each goal sets up .venv by itself from a fresh clone; PYTHON picks the interpreter.
PYTHON ?= python3
BIN := .venv/bin
# A process per core: tests mostly compile, which takes one core. A file's tests stay together, with their fixtures.
PYTEST := $(BIN)/pytest -n auto --dist loadfile

.PHONY: demo test slow fuzz lint docs tools clean

demo: .venv/ready
	$(BIN)/python experiments/run.py

test: lint
	$(PYTEST)

slow: .venv/ready
	$(BIN)/pytest -n auto --dist worksteal -m slow # few and long, and without fixtures that take long

fuzz: .venv/ready # 20,000 random inputs instead of the 1,000 fixed ones of `make test`
	$(PYTEST) --hypothesis-profile=fuzz tests/fuzz

docs: .venv/ready
	$(BIN)/python docs/import_graph.py
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build

# Labelling tools, whose readers the tests try our exports with. Apart from .venv: they hold NumPy back.
tools: .venv-tools/ready

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

.venv-tools/ready:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/pip install --quiet 'fiftyone>=1.0' 'label-studio-sdk>=1.0'
	touch $@

clean:
	rm -rf .venv .venv-tools build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
