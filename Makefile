# `make setup` once, then `make test`. A shell of your own with the environment: . .venv/bin/activate
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
NNUNET := $(VENV)/.nnunet
# Same pin as constraints.txt. Installed first and alone, so that resolving the rest never swaps the build of torch.
TORCH := torch==2.13.0
# Scripts of benchmarks/ that `make bench` runs, in this order.
BENCHMARKS := cache feed engine augment networks predict pathology doctor scale ladder

# Compiling modules when they are first imported takes less time than compiling all of them here, one after another.
INSTALL := $(BIN)/python -m pip install --no-compile -c constraints.txt

# The oldest supported torch, and the newest that pip finds, as `pip install .` does: each in an environment of its own.
TORCH_oldest := torch==2.10.0
TORCH_newest := torch>=2.14

# Test files are dealt out to so many processes: one more than CI has cores, as many tests wait for processes of theirs.
JOBS ?= 3

# Where this is set, each of the many processes of the tests and benchmarks would compile every module again.
export PYTHONDONTWRITEBYTECODE =

# `make gpu-dry` has an environment of its own: a CUDA build of torch, which imports without a GPU. Triton's interpreter
# can't run loops over an argument with a newer NumPy.
DRY := .venv-gpu-dry
DRY_READY := $(DRY)/.ready
DRY_TORCH := torch==2.11.0
DRY_CHECKS := $(filter $(basename $(notdir $(wildcard tools/gpu_dry/*.py))),fake_cuda fused builds compile_kernels)

# Tests of kernels that Triton's interpreter runs, which is chosen when Triton is imported.
DRY_INTERPRETED := tests/sample/test_random_triton.py $(addprefix tests/augment/test_,read.py smooth_triton.py fused.py)

.PHONY: help setup lint docs docs-links test test-all test-oldest test-newest test-environments horovod nnunet gpu-dry \
	images wheel demo bench clean

help:
	@echo "make setup     create $(VENV) and install hasten with its development tools (PYTHON=$(PYTHON))"
	@echo "make lint      style, types, layers, spelling, sizes, docstrings"
	@echo "make docs      build the documentation into docs/_build/html; a broken link or name fails"
	@echo "make docs-links  ask whether the pages that the documentation links to are there (needs the internet)"
	@echo "make test      lint, documentation and the fast tests, those with nnU-Net too, which it installs"
	@echo "make test-all  lint and every test, the slow ones too"
	@echo "make test-oldest  the fast tests with the oldest supported torch, in $(VENV)-oldest"
	@echo "make test-newest  the same with the newest torch, in $(VENV)-newest (remove it to take a newer one)"
	@echo "make test-environments  the doctor on a script under Python 3.9 to 3.13 with torch 2.1 to the newest (20 GB)"
	@echo "make horovod   build Horovod for the installed torch (5 minutes; needs cmake and g++)"
	@echo "make nnunet    install nnU-Net, for the comparison with it and its tests"
	@echo "make gpu-dry   check the CUDA paths on a machine without a GPU (a CUDA build of torch: 5 GB in $(DRY))"
	@echo "make images    take the Dockerfile's steps in a Debian root and try it (as root, with mmdebstrap; 2 GB in build/)"
	@echo "make wheel     build the wheel into dist/"
	@echo "make demo      train twice on made-up CT, the regular way and with Hasten, and write report.html"
	@echo "make bench     run the benchmarks behind the speed claims"
	@echo "make clean     remove caches and build outputs"

setup: $(READY)

# What a user installs: enough for `make demo` and `make wheel`.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Hasten needs Python 3.11 or newer, and $(PYTHON) is older or missing: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) -e .
	@touch $@

$(READY): $(INSTALLED)
	$(INSTALL) -e '.[dev]'
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python tools/check_size.py
	$(BIN)/python tools/check_docstrings.py

docs: $(READY)
	$(BIN)/python tools/benchmark_tables.py --check
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

docs-links: $(READY)
	$(BIN)/sphinx-build -q -b linkcheck docs docs/_build/links

test: $(READY) $(NNUNET)
	$(MAKE) -j2 --output-sync=target lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --durations=10

horovod: $(READY)
	$(BIN)/python tools/build_horovod.py

# Without what nnU-Net's networks take from timm: it brings a torchvision, which is built for one torch only.
nnunet: $(NNUNET)

$(NNUNET): $(READY)
	$(INSTALL) 'acvl-utils>=0.2.6,<0.3' 'batchgenerators>=0.25.1' einops graphviz pandas \
		requests scikit-learn seaborn yacs
	$(INSTALL) --no-deps 'nnunetv2>=2.8' 'dynamic-network-architectures>=0.4.4,<0.5'
	@touch $@

test-all: lint docs horovod nnunet
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m 'not gpu'

$(VENV)-oldest/.ready $(VENV)-newest/.ready: $(VENV)-%/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-$*
	echo '$(TORCH_$*)' > $(VENV)-$*/constraints.txt
	$(VENV)-$*/bin/python -m pip install --no-compile -c $(VENV)-$*/constraints.txt -e '.[dev]'
	@touch $@

test-oldest test-newest: test-%: $(VENV)-%/.ready
	OMP_NUM_THREADS=1 $(VENV)-$*/bin/python -m pytest -n $(JOBS) --dist loadfile

# Each in an environment of its own, which has torch alone; remove .venv-doctor to take newer ones.
test-environments: $(READY)
	$(BIN)/python -m tools.doctor_environments

$(DRY_READY): pyproject.toml
	$(PYTHON) -m venv $(DRY)
	$(DRY)/bin/python -m pip install $(DRY_TORCH)
	$(DRY)/bin/python -m pip install $(DRY_TORCH) -e . hypothesis 'numpy<2.4' pytest pytest-timeout scikit-image
	@touch $@

# All of them run, whatever the first one finds.
gpu-dry: $(DRY_READY)
	@failed=; for name in $(DRY_CHECKS); do \
		OMP_NUM_THREADS=1 $(DRY)/bin/python -m tools.gpu_dry.$$name || failed="$$failed $$name"; done; \
	$(DRY)/bin/python -m pytest -q tests/kernels tests/nets/kernels || failed="$$failed kernels"; \
	TRITON_INTERPRET=1 $(DRY)/bin/python -m pytest -q $(DRY_INTERPRETED) || failed="$$failed interpreted"; \
	if [ -n "$$failed" ]; then echo "gpu-dry: failed:$$failed" >&2; exit 1; fi

# IMAGE_OPTIONS: those of tools/image_root.py, such as --bind with what this machine's settings of pip name.
images: $(INSTALLED)
	rm -rf build/images
	$(BIN)/hasten phantom --out build/images/phantoms
	$(BIN)/python tools/image_root.py build/images build/images/phantoms $(IMAGE_OPTIONS)

wheel: $(INSTALLED)
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

demo: $(INSTALLED)
	$(BIN)/python -m benchmarks.demo

bench: $(READY)
	set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name; done

clean:
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
