# The two commands that matter: `make run` and `make test`. Both set up everything themselves.
SHELL := /bin/bash
RANKS ?= 4

.PHONY: gpu-check run test build setup lint format clean
setup:
	@scripts/setup

build: setup
	@scripts/build -DISTHMUS_PYTHON=ON -DISTHMUS_LINK_FMT=ON

run: build
	@.venv/bin/isthmus demo --ranks $(RANKS)

# Tests want PyTorch, too, and the build looks for it.
test:
	@scripts/setup torch
	@scripts/build -DISTHMUS_PYTHON=ON -DISTHMUS_LINK_FMT=ON
	@scripts/test

gpu-check:
	@scripts/gpu_check

lint: setup
	@scripts/lint

format: setup
	@scripts/lint --fix

clean:
	rm -rf build build-* out
