"""Helpers for benchmarks of PyTorch collectives with one process per GPU."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from measured import time_us, write_records

__all__ = ["host_us", "parser", "run", "slowest", "time_us", "timed"]

# Multicast stays off for every provider (docs/internals/benchmarks.md).
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"


def parser(doc: str, samples: int) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=doc.splitlines()[0])
    result.add_argument("--ranks", type=int, default=0, help="default: all GPUs")
    result.add_argument("--samples", type=int, default=samples)
    result.add_argument("--out")
    return result


def slowest(value: float, device: str = "cuda") -> float:
    import torch
    import torch.distributed as dist

    worst = torch.tensor([value], device=device, dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.item()


def host_us(call: Callable[[], Any], calls: int) -> float:
    """Microseconds per call on the host of this rank."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) * 1e6 / calls


def timed(call: Callable[[], None], calls: int) -> float:
    """Microseconds per call of the slowest rank."""
    import torch
    import torch.distributed as dist

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    dist.barrier()
    for _ in range(2):
        call()  # aligns the ranks on the device
    start.record()
    for _ in range(calls):
        call()
    stop.record()
    torch.cuda.synchronize()
    return slowest(start.elapsed_time(stop) * 1e3 / calls)


Measure = Callable[[int, int, str, argparse.Namespace], list[dict[str, Any]]]


def _run_rank(
    rank: int,
    size: int,
    store: str,
    measure: Measure,
    arguments: argparse.Namespace,
    versions: dict[str, str],
    device: str,
) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
        options = {"backend": "nccl", "device_id": torch.device("cuda", rank)}
    else:
        torch.set_num_threads(1)
        options = {"backend": "gloo"}
    dist.init_process_group(init_method=store, rank=rank, world_size=size, **options)
    records = measure(rank, size, dist.group.WORLD.group_name, arguments)
    if rank == 0 and arguments.out:
        write_records(arguments.out, records, {"torch": torch.__version__, **versions})
    dist.destroy_process_group()


def run(
    measure: Measure,
    arguments: argparse.Namespace,
    versions: dict[str, str] | None = None,
    device: str = "cuda",
) -> int:
    """Calls measure(rank, size, group, arguments) on every rank; the records of rank 0 go to --out.

    The group uses nccl, or gloo if the device is "cpu", which is for trying a benchmark without GPUs.
    """
    try:
        import torch
    except ImportError:
        print("SKIPPED: no torch")
        return 77
    ranks = arguments.ranks or (torch.cuda.device_count() if device == "cuda" else 2)
    if ranks < 2:
        print("SKIPPED: fewer than two CUDA devices")
        return 77
    with tempfile.TemporaryDirectory() as folder:  # a file instead of a port, which another program may use
        store = f"file://{folder}/store"
        inputs = (ranks, store, measure, arguments, versions or {}, device)
        torch.multiprocessing.spawn(_run_rank, args=inputs, nprocs=ranks)
    return 0
