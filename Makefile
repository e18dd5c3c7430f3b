# Each target does all its own set-up: the first one that runs on a fresh machine makes $(VENV).
#
#   make help                      every target, a line each
#   make test PYTHON=python3.12    another Python
#   make test VENV=~/envs/gnn      an environment of your own: missing packages are installed into it
#   make venv TORCH=torch==2.5.1   another torch, where none is there yet

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# Processes of the tests. One more than two cores have: many tests wait for processes of their own. All tests took
# 14 minutes with 3, and 19 with 2.
JOBS ?= 3

BIN := $(VENV)/bin
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
READY := $(VENV)/.pagraph-installed
DEMO := .demo/sbm
PICTURES := docs/pictures/batch-way.svg docs/pictures/hit-rates.svg docs/pictures/parts.svg
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off

# Without it a first `import dgl` prints a line to stdout, and writes to the home.
export DGLBACKEND ?= pytorch

# libgomp's waiting threads spin by default: tests that share few cores take them from each other. Benchmarks and the
# demo measure both settings themselves.
test test-all test-wheel matrix chaos: export OMP_WAIT_POLICY ?= passive

# Without bytecode on disk each process of the tests compiles our modules again, and pytest rewrites 400 files of asserts.
unexport PYTHONDONTWRITEBYTECODE

# Neighbouring tests share fixtures and compiled kernels: each process gets whole stretches, and takes over what is left.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: help venv demo test test-all test-wheel matrix bench large chaos gpu lint docs release clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

venv: $(READY)  ## Create .venv with torch, DGL, PyG and the development tools

# A torch that $(PYTHON) already has is kept, unless that is a virtual environment's, which another one cannot see. Else
# torch comes first: several packages depend on it and would bring the default build, which on Linux means gigabytes of
# CUDA libraries, driver or no driver.
$(READY): pyproject.toml setup.py
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  if $(PYTHON) -c 'import sys, torch; sys.exit(sys.prefix != sys.base_prefix)' 2>/dev/null; then flag=--system-site-packages; fi; \
	  echo "step 1 of 3: making the environment $(VENV)"; $(PYTHON) -m venv $$flag $(VENV); }
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "step 2 of 3: installing $(TORCH)"; $(INSTALL_TORCH); }
	@echo "step 3 of 3: installing pagraph, DGL, PyG and the development tools"
	@$(PIP) --editable '.[dev]'
	@touch $@

ifneq ($(shell command -v nvidia-smi),)
INSTALL_TORCH = $(PIP) '$(TORCH)'
else
INSTALL_TORCH = $(PIP) '$(TORCH)+cpu' 2>/dev/null \
	|| $(PIP) --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu '$(TORCH)' 2>/dev/null \
	|| $(PIP) '$(TORCH)'
endif

test: $(READY)  ## The first tier of the tests: every promise once, in minutes
	$(PYTEST) --tier first

test-all: $(READY)  ## All tests
	$(PYTEST)

# What only a wheel can break, away from the checkout, so that only what is packaged can be imported.
test-wheel: $(READY)  ## Build the wheel and test it away from the checkout
	.ci/test-wheel $(BIN)/python

lint: $(READY)  ## ruff, mypy, and the figures of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p pagraph
	$(BIN)/python benchmarks/house.py

# The tests with the lowest, the newest and other versions, each set in an environment of its own: gigabytes, and hours.
#
#   make matrix NOX_OPTIONS='-s lowest'        one of them; see noxfile.py
matrix: $(READY)  ## The tests with other versions, in environments of their own (hours)
	$(BIN)/nox $(NOX_OPTIONS)

bench: $(READY)  ## All benchmarks
	$(BIN)/python benchmarks/run.py

# Graphs larger than memory, from disk, under a limit of memory that takes root to set: hours, and 40 GB of disk. Broken
# off, it goes on where it was.
#
#   make large LARGE_OPTIONS='--before ../before --pyg-lib ~/pyg-lib --graphbolt ~/graphbolt/bin/python --minutes 60'
large: $(READY)  ## Benchmarks of graphs larger than memory (hours, root, 40 GB)
	$(BIN)/python benchmarks/larger_than_memory.py --large --out benchmarks/results $(LARGE_OPTIONS)

# Random attacks for ten minutes: see tests/chaos/__init__.py. What failed is kept in .chaos/.
#
#   make chaos CHAOS_SECONDS=3600 CHAOS_SEED=1000 CHAOS_PARTS=files,kills
chaos: export CHAOS_SECONDS ?= 600
chaos: export CHAOS_SEED ?= 1
chaos: export CHAOS_PARTS ?=
chaos: $(READY)  ## Random attacks for ten minutes
	$(BIN)/python -m tests.chaos

# What needs a GPU: the tests, then the benchmarks, whatever becomes of the tests. Installs nothing, so that it runs
# where nothing can be downloaded: with the environment's Python if there is one, else with $(PYTHON).
#
#   make gpu PYTHON=python3        the Python that has torch with CUDA and Triton
#   make gpu GPU_OPTIONS=--quick   see benchmarks/gpu.py
gpu: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu:  ## Tests and benchmarks that need a GPU
	@$(GPU_PYTHON) benchmarks/gpu_ready.py
	@failed=0; \
	$(GPU_PYTHON) -m pytest -m gpu $$(grep -rlE 'mark\.gpu' tests) || failed=1; \
	$(GPU_PYTHON) benchmarks/gpu.py $(GPU_OPTIONS) || failed=1; \
	exit $$failed

# Wide features and a narrow model: the loading is what differs. A minute and a half on 2 cores.
demo: $(READY) $(DEMO)  ## Generate a graph, train on it with two loaders, and compare them
	$(BIN)/python benchmarks/demo.py $(DEMO)

$(DEMO): | $(READY)
	@mkdir -p $(@D)
	$(BIN)/pagraph generate sbm $(DEMO) --nodes 200000 --features 200

# The documentation site, site/index.html, without the network; a warning is an error. NO_MKDOCS_2_WARNING: nor is what
# its theme says of other programs printed.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY) $(PICTURES)  ## The documentation site, in site/
	$(BIN)/mkdocs build --strict

# Delete a picture to have it drawn again.
docs/pictures/batch-way.svg: | $(READY)
	$(BIN)/python docs/pictures/batch_way.py $@

docs/pictures/hit-rates.svg: | $(READY)
	rm -rf .demo/rmat
	$(BIN)/pagraph generate rmat .demo/rmat --scale 16 --features 64 --classes 8
	$(BIN)/pagraph profile .demo/rmat --train-fraction 0.1 --fanout 15,10 --plot $@

docs/pictures/parts.svg: | $(READY)
	rm -rf .demo/groups .demo/parts
	$(BIN)/pagraph generate sbm .demo/groups --nodes 20000 --classes 40 --homophily 0.999 --exponent 3
	$(BIN)/pagraph partition .demo/groups .demo/parts -k 4 --hops 2 --plot $@

# What a release consists of, built and tested, in dist/: sdist, wheel and the release's text. Uploads nothing; see
# RELEASING.md. The wheel's tests take environments of their own: gigabytes.
#
#   make release RELEASE_TESTS=wheel_newest      without the lowest dependencies
#   make release RELEASE_SECTION=Unreleased      a rehearsal, before the changelog has a section of the version
release: RELEASE_TESTS ?= wheel_newest wheel_lowest
release: $(READY)  ## Build and test sdist and wheel, in dist/
	@mkdir -p dist
	$(BIN)/python .ci/release-notes $(RELEASE_SECTION) > dist/notes.tmp || { rm dist/notes.tmp; exit 1; }
	rm -rf build dist/*.whl dist/*.tar.gz && mv dist/notes.tmp dist/RELEASE_NOTES.md
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(if $(strip $(RELEASE_TESTS)),$(BIN)/nox -s $(RELEASE_TESTS))

clean:  ## Delete what the other targets made, but not .venv
	rm -rf build dist site .demo .chaos
