# Everything a newcomer needs is `make demo` and `make test`; both set the project up first.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# torch is pinned: left to a dependency, pip may fetch a build with several GB of CUDA libraries. Ten thousand files are
# not compiled by pip, one after another: Python compiles those that are imported, and keeps what it has compiled, whatever
# the environment says. Else each process would compile torch again, which takes longer than to run it.
TORCH ?= torch==2.13.0
unexport PYTHONDONTWRITEBYTECODE
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.ready
# The Python of the machine with the GPU, for which make gpu-build compiles.
PYTHON312 ?= python3.12
# Processes that run tests; make test WORKERS=0 runs them in the first, for a debugger.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n : 4)))
PYTEST := $(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal -m "not exhaustive and not gpu and not flower"
# What takes long to show what changes rarely: Triton's interpreter, compilers, other processes, runs of commands.
UNHURRIED := tests/triton tests/ptx/test_cuda.py tests/test_sign.py tests/test_typing.py tests/test_gpu_run.py \
  tests/test_import.py tests/test_cli.py tests/streams tests/planning tests/distributed \
  $(addprefix tests/federated/test_,fl_cli.py workers.py papers.py)
# Libraries beside which make bench measures; where one cannot be installed, its rows are left out.
PEERS := "opendp>=0.12" "diffprivlib>=0.6"

# As pyproject.toml's extra of that name has it.
FLOWER := "flwr[simulation]>=1.32,<2"

.PHONY: demo test tests quick numpy lint integrations flower sanitize fuzz bench bench-short battery cost ptx exhaustive gpu gpu-build neon dist \
  docs clean help

help:
	@echo "make demo        train a small federated model under local differential privacy, and draw the result"
	@echo "make test        lint, types, every test but the longest; what CI runs"
	@echo "make quick       lint, types and most tests, for between two edits; CONTRIBUTING says what is left out"
	@echo "make numpy       the tests that need no torch, where there is none; PYTHON names the interpreter"
	@echo "make integrations  Hugging Face's Trainer, PEFT, Lightning, Accelerate, Opacus, NVFLARE, ranks of torch.distributed"
	@echo "make sanitize    the native tests under the address and undefined-behaviour sanitizers, threads under all three (minutes)"
	@echo "make fuzz        mutated bytes into everything that reads bytes, SECONDS_EACH=30 for each reader"
	@echo "make flower      installs Flower and Ray, and runs tests/flower whole: SuperLink, SuperNodes, simulation (minutes)"
	@echo "make bench       throughput beside others and the memory floor: a table and a picture for each suite"
	@echo "make bench-short  one sweep of perturb_, reports and a server, with their targets: some two minutes"
	@echo "make cost        instructions and cache misses of every kernel and call, held to benchmarks/cost/table.json; needs valgrind"
	@echo "make battery     dieharder on the random streams as mechanisms use them (about an hour; needs dieharder)"
	@echo "make exhaustive  every one of the 2^32 floats, for several settings (about 10 minutes)"
	@echo "make ptx         the GPU's kernels, compiled for one (PTX_ARCH=90) and executed without one (minutes)"
	@echo "make gpu         GPU tests and benchmarks with the machine's own python3, torch and nvcc; needs no network"
	@echo "make gpu-build   compile the modules for such a machine here, so that make gpu need not (PYTHON312=python3.12)"
	@echo "make dist        wheels for CPython 3.10 to 3.14 on x86-64 and aarch64, each built twice and tested, in dist/"
	@echo "make docs        the documentation as a site, in build/site; open build/site/index.html"
	@echo "make neon        cross-compile the AArch64 kernels and run them under qemu"

# The module compiles while all else is fetched and unpacked: it needs nothing of it.
$(STAMP): pyproject.toml CMakeLists.txt $(shell find csrc -type f)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"  # knows dependency groups
	$(PIP) --no-compile "$(TORCH)" --group test & rest=$$!; $(PIP) --no-compile --no-deps --editable .; built=$$?; \
	  wait $$rest && exit $$built
	touch $@

demo: $(STAMP)
	$(PY) -m ldpkernels demo --out out/demo.png

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(shell find csrc -type f)

# Types are checked by one process beside the first tests. A failure of either is a failure of both.
test: $(STAMP)
	$(MAKE) --jobs 2 lint tests

tests: $(STAMP)
	$(PYTEST)

quick: lint
	$(PYTEST) $(addprefix --ignore=,$(UNHURRIED))

# One environment for each version: make numpy PYTHON=python3.13.
NUMPY_ONLY = build/numpy-only-$(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])")
NUMPY_TESTS := pytest pytest-xdist pytest-benchmark hypothesis ml_dtypes mpmath

numpy:
	test -x $(NUMPY_ONLY)/bin/python || $(PYTHON) -m venv $(NUMPY_ONLY)
	$(NUMPY_ONLY)/bin/python -m pip install --quiet --disable-pip-version-check $(NUMPY_TESTS) \
	  --config-settings=cmake.define.LDPKERNELS_CUDA=OFF --config-settings=build-dir=$(NUMPY_ONLY)/cmake --editable ".[audit,secure]"
	$(NUMPY_ONLY)/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "not exhaustive and not gpu" \
	  --doctest-ignore-import-errors --ignore ldpkernels/calls/dp_sgd.py --ignore ldpkernels/trainers

sanitize: $(STAMP)
	$(PIP) "pybind11>=2.12"
	PYTHON=$(CURDIR)/$(PY) WORKERS=$(WORKERS) tests/sanitize/run address
	PYTHON=$(CURDIR)/$(PY) tests/sanitize/run thread

flower: $(STAMP)
	$(PIP) "$(TORCH)" $(FLOWER)
	$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal -m "not flower" tests/flower
	$(PY) -m pytest -m flower tests/flower tests/planning/test_app.py

# What tests/integrations asks for and the group `test` leaves out: over 100 MB, for a minute of tests.
TRAINERS := "transformers>=5" "peft>=0.18" "lightning>=2.5" "accelerate>=1.10" "opacus>=1.5" "nvflare>=2.9"

integrations: $(STAMP)
	$(PIP) "$(TORCH)" $(TRAINERS)
	$(PYTEST) tests/integrations tests/distributed

SECONDS_EACH ?= 30
FUZZED := answer report report-header aggregate aggregate-header ledger ledger-records cldp-upload vector-report code \
  sum-state sum-keys sum-boxes sum-at-server sum-at-client checkpoint checkpoint-pickle idx cifar10 adult
# What Flower's messages, nodes and servers have, where it is installed.
FUZZED_FLOWER := flower-message flower-checkpoint node-file

fuzz: $(STAMP)
	$(PIP) "atheris>=2.3"
	@failed=; for target in $(FUZZED) $$($(PY) -c "import flwr" 2> /dev/null && echo $(FUZZED_FLOWER)); do \
	  echo "== $$target"; $(PY) -m tests.fuzz $$target --seconds $(SECONDS_EACH) || failed="$$failed $$target"; \
	done; test -z "$$failed" || { echo "what failed is in build/fuzz/found:$$failed"; exit 1; }

bench: $(STAMP)
	-$(PIP) $(PEERS)
	$(PY) -m benchmarks.report --out out/bench

# One sweep of what users call most, and of a server: no stored results.
bench-short: $(STAMP)
	$(PY) -m benchmarks.report --suite two-point --sweeps 1 --elements 4194304 --out out/bench-short

# A gate without noise: instructions, counted. NVCC's machine code likewise, where nvcc is found.
cost: $(STAMP)
	$(PY) -m benchmarks.cost $(COST)

# The compute capability that is compiled for: 80, 90, 100 or 120. What was compiled stays in build/ptx-cache.
PTX_ARCH ?= 90
# Whose code is changed at random: one question of each of these kernels.
SOME := $(addprefix --kernel ,two_point sign votes tally next_key) $(addprefix --dtype ,float32 uint8 int64)
# test_vectors.py calls with arrays, whose memory the machine is not told of.
ptx: export TRITON_CACHE_DIR := $(CURDIR)/build/ptx-cache
ptx: $(STAMP)
	$(PY) -m pytest -m exhaustive tests/triton/test_static.py
	LDPKERNELS_TEST_PTX=$(PTX_ARCH) $(PY) -m pytest -m exhaustive tests/ptx tests/test_narrow_laws.py
	LDPKERNELS_TEST_PTX=$(PTX_ARCH) $(PYTEST) -m "not gpu" tests/triton --ignore tests/triton/test_static.py \
	  --ignore tests/triton/test_vectors.py
	for backend in triton cuda; do \
	  $(PY) -m tests.ptx.coverage --arch $(PTX_ARCH) --backend $$backend && \
	  $(PY) -m tests.ptx.changes --arch $(PTX_ARCH) --backend $$backend $(SOME) || exit 1; done

battery: $(STAMP)
	$(PY) -m tests.streams.battery

exhaustive: $(STAMP)
	$(PY) -m pytest -m exhaustive --capture=no

neon: $(STAMP)
	PYTHON=$(CURDIR)/$(PY) tests/neon/run

# DIST="--python /path/to/python3.14" adds an interpreter; python -m release.wheels --help says more.
dist: $(STAMP)
	$(PY) -m release.wheels $(DIST)

# An environment of its own: what writes pages is no part of the package.
DOCS := build/docs-venv

# Some four minutes of CPU: the plans of docs/explore.md.
ANSWERS := build/answers.json
$(ANSWERS): release/explore.py $(wildcard ldpkernels/planning/*.py ldpkernels/accounting/*.py) | $(STAMP)
	mkdir -p build
	$(PY) -m release.explore $@

docs: $(ANSWERS)
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement release/docs.txt
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet --clean

gpu:
	$(PYTHON) -m benchmarks.gpu.run

gpu-build: $(STAMP)
	$(PY) -m benchmarks.gpu.run --prebuild --python $(PYTHON312)

clean:
	rm -rf build out $(VENV) .pytest_cache .mypy_cache .ruff_cache
