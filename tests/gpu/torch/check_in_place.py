#!/usr/bin/env python3
"""gather_in_place on GPUs: check_in_place.py OUT.json [RANKS].

While a layer computes, forward and backward, all its parameters must have their values.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/torch"))
import gathered_layers


def body(rank: int, out: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **ranks.init_arguments())

    def check_of(way: str) -> Any:
        def check() -> int:
            return gathered_layers.check_way(way, 2048, "cuda")

        check.__name__ = way
        return check

    ranks.run_checks(rank, [check_of(way) for way in gathered_layers.WAYS], out)
    dist.destroy_process_group()


def main() -> None:
    ranks.run(int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count(), body, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
