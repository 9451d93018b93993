# Everything runs in .venv, which is made on first use and reused afterwards.
# This is the CPU set-up for development and CI. On a GPU machine: pip install torch torchrec fbgemm-gpu, then this package.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

TORCH    := torch==2.13.0
FBGEMM   := fbgemm-gpu-cpu==1.8.0
TORCHREC := torchrec==1.8.0
# What torchrec needs, less fbgemm-gpu: the CUDA build, whose files collide with the CPU build's.
TORCHREC_NEEDS := tensordict torchmetrics==1.0.3 tqdm pyre-extensions iopath

# What `make versions` tests with, too: the oldest TorchRec that pyproject.toml allows, and the newest 1.9 there is.
OTHERS := 1.7.0 1.9

# One thread a rank: the machine's cores are the ranks'.
RUN2 := OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node 2
NETLAB = $(BIN)/python examples/netlab.py --hosts 2 --rate 1gbit

# Tests with real ranks in one process, others in another (tests/conftest.py). Single files are faster without: pytest FILE.
TWO := --numprocesses 2 --dist loadscope

.PHONY: demo test lint format versions $(OTHERS:%=versions-%) convergence coverage bench codecs reports fuzz clean

demo: $(READY)           ## train a real DLRM on flights data, FP32 wire and quantized, side by side
	$(RUN2) examples/dlrm.py --config configs/demo.yaml --compare

test: $(READY)           ## all tests
	$(BIN)/pytest $(TWO)

lint: $(READY)           ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)         ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

versions: $(OTHERS:%=versions-%)  ## all tests, or ARGS="tests/sharding", with other versions of torchrec, over .venv's torch and fbgemm

# First on the path of pytest, and so of the ranks and scripts that the tests start. That it was taken is checked in tests/.
$(OTHERS:%=versions-%): versions-%: build/torchrec-%/.ready
	TORCHREC_VERSION=$* PYTHONPATH=$(CURDIR)/$(<D)$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/pytest -v $(ARGS)

# Python parts only. Kept between runs; `make clean` removes them, and so lets a newer 1.9 in.
build/torchrec-%/.ready: | $(READY)
	rm -rf $(@D)
	$(BIN)/pip install --quiet --no-deps --target $(@D) "torchrec==$*.*"
	touch $@

convergence: $(READY)    ## does the quantized run converge like the FP32 one? Writes docs/convergence.md
	$(RUN2) tests/convergence/run.py --write docs/convergence.md

coverage: $(READY)       ## what is exchanged and how exactly, cell by cell, beside TorchRec's own? Writes docs/coverage.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/coverage/run.py --write docs/coverage.md

fuzz: $(READY)           ## hypothesis against every codec, with more examples than make test
	CODEC_EXAMPLES=500 $(BIN)/pytest tests/codecs/test_codec_properties.py

codecs: $(READY)         ## what every codec costs and how much error it makes. Writes docs/codecs.md and its plot
	$(BIN)/python tests/codecs/document.py --write docs/codecs.md

reports: $(READY)        ## what DLRM-DCNv2 on several hosts, and a real plan, will cost. Writes docs/reports
	$(BIN)/python tests/report/document.py --write docs/reports

bench: $(READY)          ## time forecasts, and the exchange without a rate limit, and (as root) on two emulated hosts with 1 Gbit links
	$(BIN)/python examples/bench_planner.py
	$(RUN2) examples/bench_exchange.py
	$(NETLAB) -- $(BIN)/python examples/bench_exchange.py
	$(NETLAB) --ranks-per-host 2 -- $(BIN)/python examples/bench_exchange.py --sharding row_wise --batch 256
	$(NETLAB) --ranks-per-host 2 -- $(BIN)/python examples/bench_exchange.py --sharding table_row_wise --batch 256

clean:                   ## remove everything that the other targets made, .venv too
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# torch first, so that nothing else picks its build; torchrec last and without its dependencies.
$(READY): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/python -c "$$REQUIREMENTS" > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet $(FBGEMM) $(TORCHREC_NEEDS) -r $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --no-deps $(TORCHREC)
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $(READY)

# pyproject.toml is the one list of what is needed; torch, torchrec and fbgemm are pinned above.
define REQUIREMENTS
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = sum(project["optional-dependencies"].values(), [])
needs = [need for need in project["dependencies"] if not need.startswith(("torch", "fbgemm"))]
print(*needs, *extras, sep="\n")
endef
export REQUIREMENTS
