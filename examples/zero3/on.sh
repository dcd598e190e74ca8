#!/usr/bin/env bash
# Like off.sh, but the copy engines run all-gathers, through a transit area of at most 512 MiB.
set -euo pipefail
cd "$(dirname "$0")"
out=${OUT:-../../out/zero3}
mkdir -p "$out"
export ISTHMUS_DMA_ALLGATHER=1 ISTHMUS_DMA_ALLGATHER_MAX_BYTES=${ISTHMUS_DMA_ALLGATHER_MAX_BYTES:-536870912}
exec torchrun --standalone --nproc-per-node "${RANKS:-2}" train.py --out "$out/on.json" "$@"
