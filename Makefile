# `make` alone lists what there is. A target that needs an environment makes it
# first: .venv/<Python>-<JAX>, from the lock, one for each such pair.
#
#   PYTHON=python3.13   the Python to use; without it one is looked for
#   JAX=0.11.2          the JAX to use; without it the lock's
#   ARGS="-k swap"      more arguments for what is run: pytest, the demo, ...
#   UPGRADE=--upgrade   for `make lock`: move to the newest releases
#   JAX_PLATFORMS=...   where JAX runs; without it on the CPU

SHELL := bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

UV := uv==0.13.9
LOCK := requirements_lock.txt
LOCKED_JAX := $(shell sed -n 's/^jax==\([^ ]*\).*/\1/p' $(LOCK))
JAX ?= $(LOCKED_JAX)
ifneq ($(JAX),$(LOCKED_JAX))
  OVERLAY := requirements_jax_$(subst .,_,$(JAX)).txt
endif

# Prints "3.12.1 /usr/bin/python3.12", or nothing. Candidates are run, not just
# found: in this folder pyenv's shims work for .python-version's Python alone (so
# its other ones are looked for where they lie), and some Pythons have no venv.
NAMES := $(or $(PYTHON),python3.12 python3.13 python3.14 python3 python)
find_python = $(shell for python in $(NAMES) \
  $(addprefix $$(pyenv root 2>/dev/null)/versions/3.*/bin/,$(NAMES)); do \
  "$$python" -c 'import sys; sys.version_info >= (3, 12) or sys.exit(1); \
    import ensurepip, venv; \
    print("%d.%d.%d" % sys.version_info[:3], sys.executable)' \
    2>/dev/null </dev/null && break; done)

ifneq ($(filter-out help clean,$(MAKECMDGOALS)),)
  FOUND := $(find_python)
  ifeq ($(FOUND),)
    $(error No Python >= 3.12 with venv $(if $(PYTHON),at \
      PYTHON=$(PYTHON),on PATH or in pyenv): install one, or name one with \
      make PYTHON=/path/to/python3.12)
  endif
  ifneq ($(OVERLAY),$(wildcard $(OVERLAY)))
    $(error No lock for JAX=$(JAX): there are $(LOCK) (JAX $(LOCKED_JAX)) and \
      $(wildcard requirements_jax_*.txt))
  endif
endif

VENV := .venv/$(word 1,$(FOUND))-$(JAX)
BIN := $(VENV)/bin
ON := with JAX $(JAX) on Python $(word 1,$(FOUND))
# Of what pip says: the large downloads, and what goes wrong. That an extra
# index of the machine's lacks a package is neither.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-deps
TERSELY := 2> >(grep -v '^WARNING: Location' >&2) | \
  awk '/Downloading|Using cached/ && /[0-9] MB\)/ { \
    print "    " $$2, $$3, $$4; fflush() }'
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses=8 --dist worksteal

JAX_PLATFORMS ?= cpu
export JAX_PLATFORMS
# libtpu then compiles in several processes at once, and off a TPU machine.
export ALLOW_MULTIPLE_LIBTPU_LOAD := 1
export TPU_WORKER_HOSTNAMES := localhost

.PHONY: help env demo test test-quick lint bazel dist bench docs \
  docs/support.md notebooks lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.\/-]+:.*## / { printf "%-17s%s\n", $$1, $$2 }' Makefile

env: $(VENV)/ready ## make the environment
	@echo "==> The environment is ready: $(VENV)"

$(VENV)/locked: $(LOCK) $(OVERLAY)
	@echo "==> Making $(VENV) from $^ (2.6 GB; a minute or more)"
	@rm -rf $(VENV)
	@$(word 2,$(FOUND)) -m venv $(VENV)
	@set -o pipefail; \
	  $(foreach lock,$^,$(PIP) --require-hashes -r $(lock) $(TERSELY) &&) \
	  touch $@

$(VENV)/ready: $(VENV)/locked pyproject.toml jax_swapext/version.py
	@echo "==> Installing jax_swapext itself, editable"
	@$(PIP) --quiet --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/ready ## run the headline kernels on real input
	@echo "==> Running the demo $(ON): python -m jax_swapext"
	@$(BIN)/python -m jax_swapext $(ARGS)

test: $(VENV)/ready ## run all tests
	@echo "==> Running all tests $(ON)"
	@$(PYTEST) $(ARGS)

test-quick: $(VENV)/ready ## run the tests that take a few seconds at most
	@echo "==> Running the quick tests $(ON)"
	@$(PYTEST) -m "not slow" $(ARGS)

lint: $(VENV)/ready ## check style (ruff) and types (pyrefly)
	@echo "==> Checking style: ruff check"
	@$(BIN)/ruff check
	@echo "==> Checking types: pyrefly check"
	@$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

bazel: $(VENV)/ready ## check BUILD (buildifier, Bazel), as far as these are there
	@echo "==> Checking BUILD $(ON)"
	@.ci/check_build $(BIN)

dist: $(VENV)/ready ## build the wheel and the sdist, and check them
	@echo "==> Building dist/*, and trying the wheel in an empty environment"
	@.ci/build_dist $(BIN)

bench: $(VENV)/ready ## print the benchmarks' tables
	@for bench in benchmarks/*.py; do \
	  echo "==> Running $$bench $(ON)"; \
	  $(BIN)/python $$bench $(ARGS) || exit; \
	done

notebooks: $(VENV)/ready ## run the notebooks; ARGS=--store keeps the outputs
	@echo "==> Running the notebooks $(ON)"
	@$(BIN)/python notebooks/run.py $(ARGS)

docs: $(VENV)/ready ## build the pages of docs/ with sphinx
	@echo "==> Building build/docs/index.html, warnings being errors"
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/docs

docs/support.md: $(VENV)/ready ## write the page of the support matrix
	@echo "==> Writing $@ from jax_swapext.support()"
	@mkdir -p docs
	@$(BIN)/python -c "import jax_swapext as jsx; \
	  print('# What works where\n'); \
	  print('Written by \`make docs/support.md\` from \`jsx.support()\`.\n'); \
	  print(jsx.support().markdown())" > $@

# Versions stay as the lock has them unless UPGRADE says otherwise. 3.12 is the
# floor: --universal makes the answer hold for later Pythons too.
compile = .venv/lock/bin/uv pip compile $(1) --quiet --universal \
  --python-version 3.12 --generate-hashes \
  --custom-compile-command "make lock" --output-file $(2)

lock: ## write the lock files from pyproject.toml
	@echo "==> Locking pyproject.toml: $(LOCK)"
	@$(word 2,$(FOUND)) -m venv .venv/lock
	@.venv/lock/bin/python -m pip --disable-pip-version-check install -q $(UV)
	@$(call compile,pyproject.toml --extra dev $(UPGRADE),$(LOCK))
	@echo "==> Locking the oldest JAX: requirements_jax_0_11_2.txt"
	@printf '%s\n' jax==0.11.2 jaxlib==0.11.2 \
	  'jax-cuda13-plugin==0.11.2; sys_platform == "linux"' \
	  'jax-cuda13-pjrt==0.11.2; sys_platform == "linux"' \
	  'libtpu==0.0.48.1; sys_platform == "linux"' \
	  | $(call compile,- --no-deps,requirements_jax_0_11_2.txt)

clean: ## remove environments, caches and build outputs
	@echo "==> Removing environments, caches and build outputs"
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
