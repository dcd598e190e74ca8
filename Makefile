# The two main commands are `make run` and `make test`. Both set up everything they need.
SHELL := /bin/bash
# Number of ranks of the demo; empty: 4, or one rank per core.
RANKS ?=
TRIALS ?= 1000
SEED ?= 1
MINUTES ?= 60

.PHONY: llama-sycl-check gpu-check cpu-check run bench test faults fuzz mutants soak build setup lint format docs clean
setup:
	@scripts/setup

build:
	@scripts/setup cuda sycl
	@scripts/build -DISTHMUS_PYTHON=ON

# Builds only what the demo runs: no tests, and device code only if there is a device.
run: setup
	@TARGET=demo scripts/build -DISTHMUS_PYTHON=ON
	@.venv/bin/isthmus demo $(addprefix --ranks ,$(RANKS))

# Compares Isthmus with its peers on this machine, in at most 10 minutes plus the build, and writes a page into
# a new folder of out/bench. Options: make bench BENCH="--minutes 3 --only allreduce".
bench: setup
	@TARGET=bench_programs scripts/build -DISTHMUS_PYTHON=ON
	@.venv/bin/python scripts/bench $(addprefix --ranks ,$(RANKS)) $(BENCH)

# The tests need PyTorch, and the build looks for it.
test:
	@scripts/setup torch cuda sycl
	@scripts/build -DISTHMUS_PYTHON=ON
	@scripts/test

# These run longer than a test may: docs/internals/testing.md. TRIALS, SEED, MINUTES and ARGUMENTS (of
# scripts/fuzz) set how long.
faults: setup
	@scripts/build -DISTHMUS_PYTHON=ON
	@TARGET=fault_programs scripts/build
	@.venv/bin/python tests/faults/campaign.py --trials $(TRIALS) --seed $(SEED) --out out/faults.json

fuzz: setup
	@scripts/build -DISTHMUS_PYTHON=ON
	@.venv/bin/python scripts/fuzz --out out/fuzz.json $(ARGUMENTS)

# make mutants ARGUMENTS="--only shm --count 50"
mutants: setup
	@scripts/build -DISTHMUS_PYTHON=ON
	@.venv/bin/python scripts/mutants --out out/mutants.json $(ARGUMENTS)

# Not part of make test: it fetches 2.4 GB and compiles kernels for a quarter of an
# hour, once (docs/guide/llama_cpp.md).
llama-sycl-check:
	@scripts/setup sycl
	@scripts/setup_llama_sycl
	@scripts/build -DISTHMUS_PYTHON=ON
	@.venv/bin/python tests/frontends/ggml/sycl/llama_sycl_check.py --out out/llama_sycl.json

soak: setup
	@TARGET=soak scripts/build -DISTHMUS_PYTHON=ON
	@mkdir -p out
	@ISTHMUS_BENCH_COMMIT=$$(git rev-parse HEAD) build/bin/soak --minutes $(MINUTES) --out out/soak.json

gpu-check:
	@scripts/gpu_check

# On a machine that has no build, after scripts/cpu_carry here: docs/internals/benchmarks.md. ARGUMENTS="--ranks 8 --heap"
cpu-check:
	@scripts/cpu_check $(ARGUMENTS)

lint: setup
	@scripts/lint

# The documentation site, out/docs/html; needs no build.
docs: setup
	@scripts/docs

format: setup
	@scripts/lint --fix

clean:
	rm -rf build build-* out
