# Everything runs in .venv, which is made on first use and reused afterwards.
# This is the CPU set-up for development and CI. On a GPU machine: pip install torch torchrec fbgemm-gpu, then this package.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

TORCH    := torch==2.13.0
FBGEMM   := fbgemm-gpu-cpu==1.8.0
TORCHREC := torchrec==1.8.0
# What torchrec needs, without fbgemm-gpu: that is the CUDA build, whose files collide with those of the CPU build.
TORCHREC_NEEDS := tensordict torchmetrics==1.0.3 tqdm pyre-extensions iopath

# The versions that `make versions` tests: the oldest TorchRec that pyproject.toml allows, and the newest 1.9 there is.
OTHERS := 1.7.0 1.9

# One thread a rank: each rank has a core.
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

# The other version comes first on the path of pytest, and so of the ranks and scripts that tests start. tests/ checks its use.
$(OTHERS:%=versions-%): versions-%: build/torchrec-%/.ready
	TORCHREC_VERSION=$* PYTHONPATH=$(CURDIR)/$(<D)$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/pytest -v $(ARGS)

# Only the Python parts. They are kept between runs. `make clean` removes them, so that the next run takes a newer 1.9.
build/torchrec-%/.ready: | $(READY)
	rm -rf $(@D)
	$(BIN)/pip install --quiet --no-deps --target $(@D) "torchrec==$*.*"
	touch $@

convergence: $(READY)    ## does the quantized run converge like the FP32 one? Writes docs/convergence.md
	$(RUN2) tests/convergence/run.py --write docs/convergence.md

coverage: $(READY)       ## what is exchanged, and with what error, cell by cell, beside TorchRec's own? Writes docs/coverage.md
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

clean:                   ## remove .venv, builds and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# torch comes first, so that nothing else chooses its build; torchrec comes last, without its dependencies.
$(READY): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/python -c "$$REQUIREMENTS" > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet $(FBGEMM) $(TORCHREC_NEEDS) -r $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --no-deps $(TORCHREC)
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $(READY)

# Only pyproject.toml lists what is needed; torch, torchrec and fbgemm are pinned above.
define REQUIREMENTS
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = sum(project["optional-dependencies"].values(), [])
needs = [need for need in project["dependencies"] if not need.startswith(("torch", "fbgemm"))]
print(*needs, *extras, sep="\n")
endef
export REQUIREMENTS
