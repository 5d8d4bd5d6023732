# Every target makes the virtual environment it needs; nothing has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
HOST   ?=
ARGS   ?=
PROTOS := $(wildcard proto/*.proto)

.PHONY: run demo-cluster test lint docs unit mutations guest bench proto image clean system-packages manifests-matrix
.DEFAULT_GOAL := test

# `venv --without-pip` and pip's own --python work where Debian's python3-venv is not installed.
PIP := $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check
# what has no wheel is built with the setuptools of the lock file
SET_UP := --require-hashes --no-build-isolation --use-pep517

$(VENV)/run.stamp: requirements.lock requirements-build.lock pyproject.toml
	@echo "setting up $(VENV), once"
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements-dev.lock
	@echo "adding to $(VENV) what tests and checks need, once"
	@$(PIP) $(SET_UP) -r requirements-dev.lock
	@touch $@

$(VENV)/demo.stamp: $(VENV)/run.stamp requirements-demo.lock
	@echo "adding to $(VENV) what the demonstration needs, once"
	@$(PIP) --require-hashes -r requirements.lock -r requirements-demo.lock
	@touch $@

$(VENV)/proto.stamp: $(VENV)/run.stamp requirements-proto.lock
	@$(PIP) --require-hashes -r requirements-proto.lock
	@touch $@

run: $(VENV)/run.stamp   ## the agent on this machine, or on a recorded one: make run HOST=fixtures/hosts/NAME
	@$(BIN)/python -m agent run --standalone $(if $(HOST),--host '$(HOST)',--demo-host fixtures/hosts/qemu-4numa-8xh100) $(ARGS)

# Three agents on recorded hosts, xpu-scheduler and a strict API server: make demo-cluster ARGS="--once"
demo-cluster: $(VENV)/demo.stamp
	@$(BIN)/python -m tests.demo_cluster $(ARGS)

test: lint unit          ## everything that continuous integration runs

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy agent plugins bench tests .ci
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_tree.py
	$(BIN)/python .ci/check_circles.py
	$(BIN)/python .ci/write_metrics_reference.py --check
	$(BIN)/python .ci/write_configuration_reference.py --check
	$(BIN)/python .ci/write_runbook.py --check
	$(BIN)/python .ci/write_observe.py --check

docs: $(VENV)/dev.stamp   ## what is generated: parts of docs/, dashboards and rules
	$(BIN)/python .ci/write_metrics_reference.py
	$(BIN)/python .ci/write_configuration_reference.py
	$(BIN)/python .ci/write_runbook.py
	$(BIN)/python .ci/write_observe.py

# Twice as many workers as cores: the tests of processes wait as long as they compute.
unit: $(VENV)/dev.stamp $(VENV)/proto.stamp system-packages
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n 4 --dist worksteal

# Small faults, put into a copy of the tree one by one: which do the tests find? About twenty
# minutes, so not part of `test`. make mutations ARGS="NAME... --jobs 2"
mutations: $(VENV)/dev.stamp $(VENV)/proto.stamp
	@$(BIN)/python -m tests.mutations $(ARGS)

# The manifests against the types of Kubernetes 1.28 to 1.36, whose clients it downloads once.
manifests-matrix: $(VENV)/dev.stamp
	@PYTHON="$(PYTHON)" PYTHONPATH="$(CURDIR)" $(BIN)/python .ci/check_manifests.py

# In a virtual machine with a kernel of its own: minutes, so not part of `test`. Root and apt.
guest: $(VENV)/dev.stamp
	$(BIN)/pytest --timeout 900 tests/guest/check_*.py $(ARGS)

# What the tests use besides Python; where apt or root is missing, the tests that need it say so.
system-packages: $(VENV)/dev.stamp
	@.ci/system-packages "$(CURDIR)/$(BIN)"

# What daemonset/Dockerfile builds, without a container engine: layers as folders below build/image.
image: $(VENV)/run.stamp
	@rm -rf build/image
	@$(BIN)/python -m daemonset.image --out build/image $(ARGS)

bench: $(VENV)/dev.stamp
	$(BIN)/python -m bench $(ARGS)

ifeq ($(PROTOS),)
proto:
	@echo "nothing to generate: proto/ holds no .proto file"
else
proto: $(VENV)/proto.stamp   ## proto/gen, anew from proto/*.proto
	rm -rf proto/gen && mkdir proto/gen
	$(BIN)/python -m grpc_tools.protoc -Iproto/gen=proto --python_out=. --pyi_out=. $(PROTOS)
endif

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache xpu-agent-out
