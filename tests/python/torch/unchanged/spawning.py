"""Starts its rank in a spawned process, which inherits no state."""

import sys

import torch
import torch.distributed as dist


def main(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", world_size=1, rank=rank)
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4, dtype=torch.int32), dist.ReduceOp.BAND)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (sys.argv[1],), nprocs=1)
    sys.exit(3)
