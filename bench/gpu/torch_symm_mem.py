#!/usr/bin/env python3
"""PyTorch's symmetric-memory allreduce, the peer of p2p_bench: a process a GPU, captured graphs, no multicast.

    torch_symm_mem.py [--ranks N] [--samples N] [--out FILE]

A sample is the maximum over ranks of a graph's time divided by its calls; a figure the median over samples.
"""

import argparse
import json
import os
import statistics
import sys

os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

SIZES = [128, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20]


def measure(call, calls: int, samples: int) -> list[float]:
    import torch
    import torch.distributed as dist

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(samples + 1):
        dist.barrier()
        call()  # aligns the ranks on the device
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([start.elapsed_time(stop) * 1e3 / calls], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times.append(slowest.item())
    return times[1:]


def run_rank(rank: int, size: int, samples: int, out: str | None) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    group = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    records = []
    for dtype in (torch.float32, torch.bfloat16):
        for size_bytes in SIZES:
            count = size_bytes // dtype.itemsize
            tensor = symm_mem.empty(count, dtype=dtype, device="cuda")
            symm_mem.rendezvous(tensor, group)
            providers = {"torch_two_shot": lambda t=tensor: ops.two_shot_all_reduce_(t, "sum", group)}
            if size_bytes <= 1 << 20:
                providers["torch_one_shot"] = lambda t=tensor: ops.one_shot_all_reduce(t, "sum", group)
            for provider, call in providers.items():
                torch.manual_seed(rank)
                tensor.copy_(torch.rand(count, device="cuda") / (4 * size))
                try:
                    calls = 64 if size_bytes <= 256 << 10 else 16 if size_bytes <= 4 << 20 else 4
                    times = measure(call, calls, samples)
                except RuntimeError as error:
                    print(f"{provider} {dtype} {size_bytes}: {error}", file=sys.stderr)
                    continue
                median = statistics.median(times)
                records.append(
                    {
                        "collective": "allreduce",
                        "dtype": str(dtype).split(".")[1],
                        "op": "sum",
                        "bytes": size_bytes,
                        "ranks": size,
                        "provider": provider,
                        "backend": "torch",
                        "mode": "graph",
                        "time_us": {"min": min(times), "median": median, "max": max(times)},
                        "algbw_gbs": size_bytes / median / 1e3,
                        "busbw_gbs": size_bytes / median / 1e3 * 2 * (size - 1) / size,
                    }
                )
                if rank == 0:
                    print(f"{size_bytes:9} {records[-1]['dtype']:8} {provider} {median:.2f}", flush=True)
    if rank == 0 and out:
        with open(out, "w") as file:
            json.dump({"versions": {"torch": torch.__version__}, "records": records}, file, indent=1)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("SKIPPED: no torch")
        return 77
    ranks = arguments.ranks or torch.cuda.device_count()
    if ranks < 2:
        print("SKIPPED: fewer than two CUDA devices")
        return 77
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29541")
    torch.multiprocessing.spawn(run_rank, args=(ranks, arguments.samples, arguments.out), nprocs=ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
