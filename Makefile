# `make demo` and `make test` do all set-up themselves; `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/.runs
READY := .venv/.ready
SITE := .venv/.site
EXTRA := .venv-integrations
DEMO := comparisons/demo
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# oneDNN's AMX bf16 kernels die with SIGILL on some virtual CPUs; this keeps to the instructions they have.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.DEFAULT_GOAL := demo
.PHONY: help install demo test test-core test-slow test-integrations test-machines check format docs gallery \
	site tutorials dist clean

help:           ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(READY)  ## set up .venv with everything the tests and the demo need

$(RUNS): pyproject.toml constraints.txt
	@echo "Setting up .venv (once; redone when pyproject.toml or constraints.txt change) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "hypermargin needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) torch
	@$(PIP) -e '.[cli,learn,plot,train]'
	@touch $@

$(READY): $(RUNS)
	@echo "Adding what the tests need …"
	@$(PIP) -e '.[dev]'
	@touch $@

$(SITE): $(RUNS)
	@echo "Adding what the site needs …"
	@$(PIP) -e '.[docs]'
	@touch $@

demo: $(RUNS)  ## what s and a margin do, in two minutes: twelve small trainings, one page to look at
	@$(BIN)/hypermargin demo --out $(DEMO)

test: $(READY)  ## the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile -rs

# Without the kernels in Triton's interpreter, which take as long as all the rest: `pytest tests/core/test_fused*.py`.
test-core: $(READY)  ## the loss alone: margins, rules, backends, sharding, files of old versions; under a minute
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/core tests/parallel tests/test_stored.py \
		--ignore-glob "tests/core/test_fused*"

# The processor, as far as an environment can change it: each line is run with other kernels, and other threads.
MACHINES := \
	ATEN_CPU_CAPABILITY=default|MKL_CBWR=COMPATIBLE|ONEDNN_MAX_CPU_ISA=SSE41|OPENBLAS_CORETYPE=Nehalem|OMP_NUM_THREADS=1 \
	ATEN_CPU_CAPABILITY=avx2|MKL_CBWR=AVX2|ONEDNN_MAX_CPU_ISA=AVX2|OPENBLAS_CORETYPE=Haswell|OMP_NUM_THREADS=2 \
	OMP_NUM_THREADS=3

test-machines: $(READY)  ## the tests as other processors would run them; three times as long
	@failed=; for machine in $(foreach each,$(MACHINES),'$(each)'); do \
		echo "== $$machine"; \
		env $$(echo "$$machine" | tr '|' ' ') $(BIN)/python -m pytest -n 2 --dist loadfile || failed=1; \
	done; test -z "$$failed"

test-slow: $(READY) $(SITE)  ## the slow tests too (inductor, the site, every tutorial)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not gpu'

# 3D-Speaker. It asks for an old numpy; what the tests use of it works with the other frameworks' packages.
SPEAKERLAB := speakerlab==0.0.6

# Frameworks in an environment of their own, which sees .venv's packages, so that torch is the same and not replaced.
$(EXTRA)/.ready: $(READY) requirements-integrations.txt tests/integrations/cpu_wheels.py
	@echo "Setting up $(EXTRA) with the frameworks of hypermargin.integrations …"
	@test -x $(EXTRA)/bin/python || $(BIN)/python -m venv $(EXTRA)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(EXTRA)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/hypermargin-venv.pth"
	@$(EXTRA)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r requirements-integrations.txt
	@$(EXTRA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(SPEAKERLAB)
	@$(EXTRA)/bin/python tests/integrations/cpu_wheels.py
	@touch $@

test-integrations: $(EXTRA)/.ready  ## heads inside other frameworks, which this installs beside .venv; some minutes
	@PYTHONPATH="$(CURDIR)/src" $(EXTRA)/bin/python -m pytest -m 'not gpu' -rs tests/integrations

check: $(READY)  ## ruff (lint and format) and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict src benchmarks

format: $(READY)  ## apply ruff's format and its safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY)  ## write the tables of docs/family.md, after-arcface.md, diagnose.md and integrations/
	@$(BIN)/python docs/write_tables.py
	@$(BIN)/python docs/write_verdicts.py

gallery: $(READY) demo  ## draw every picture of the docs anew, and photograph the pages
	@$(BIN)/python docs/make_gallery.py $(DEMO)

site: $(SITE)   ## build the documentation site in build/site/html; any broken link ends it
	@$(BIN)/python -m docs.site

tutorials: $(SITE)  ## run the notebooks of docs/tutorials in Jupyter and store what they print and draw
	@$(BIN)/python -m docs.site.notebooks

dist:           ## sdist and wheel, checked, and tried in fresh environments with each extra
	@$(PYTHON) tools/dist.py

clean:          ## remove .venv and caches
	@rm -rf .venv $(EXTRA) .pytest_cache .mypy_cache .ruff_cache .hypothesis
