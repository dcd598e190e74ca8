#!/usr/bin/env bash
# The baseline: the selector's rules choose the backend of all-gathers (NCCL on CUDA). Arguments go to train.py.
set -euo pipefail
cd "$(dirname "$0")"
out=${OUT:-../../out/zero3}
mkdir -p "$out"
exec torchrun --standalone --nproc-per-node "${RANKS:-2}" train.py --out "$out/off.json" "$@"
