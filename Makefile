# Every target makes the virtual environment it needs; nothing has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
HOST   ?=
ARGS   ?=

.PHONY: run test lint unit bench proto clean system-packages
.DEFAULT_GOAL := test

# `venv --without-pip` and pip's own --python work where Debian's python3-venv is not installed.
PIP := $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check

$(VENV)/run.stamp: requirements.lock requirements-build.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements-dev.lock
	$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

run: $(VENV)/run.stamp   ## the agent on this machine, or on a recorded one: make run HOST=fixtures/hosts/NAME
	$(BIN)/python -m agent run --standalone $(if $(HOST),--host $(HOST),--demo-host fixtures/hosts/qemu-4numa-8xh100) $(ARGS)

test: lint unit          ## everything that continuous integration runs

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy agent plugins bench tests .ci
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_tree.py

unit: $(VENV)/dev.stamp system-packages
	$(BIN)/pytest -n 2 --dist worksteal

# What the tests use besides Python; where apt or root is missing, the tests that need it say so.
system-packages:
	@.ci/system-packages

bench: $(VENV)/dev.stamp
	$(BIN)/python -m bench $(ARGS)

proto:
	@echo "no generated code yet"

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache xpu-agent-out
