"""Matrices and timing per platform: NumPy and the clock of the host, or torch and device events."""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus._buffers import numpy_dtype

_CYCLES_PER_US = 2500  # for delays; no device has a faster clock


class HostEngine:
    """Ranks are processes of this machine. Each times its calls; the slowest counts."""

    name = "host"

    def __init__(self, communicator: Any, seed: int) -> None:
        self.communicator = communicator
        self.random = np.random.default_rng(seed + 7919 * communicator.rank)
        self.late = random.Random(seed + communicator.rank)

    def matrix(self, rows: int, cols: int, dtype: str) -> Any:
        return np.empty((rows, cols), numpy_dtype(dtype))

    def heap_matrix(self, rows: int, cols: int, dtype: str) -> Any:
        return self.communicator.empty((rows, cols), dtype)

    def fill(self, array: Any) -> None:
        array[...] = (2 * self.random.random(array.shape, np.float32) - 1).astype(array.dtype)

    def poison(self, array: Any) -> None:
        array.view(np.uint8)[...] = 0xFF

    def share(self, array: Any) -> None:
        """Broadcasts the contents of rank 0."""
        self.communicator.broadcast(array.view(np.uint8).reshape(-1))

    def gather(self, shard: Any) -> Any:
        gathered = np.empty((shard.shape[0] * self.communicator.size, *shard.shape[1:]), shard.dtype)
        self.communicator.allgather(
            np.ascontiguousarray(shard).view(np.uint8).reshape(-1), gathered.view(np.uint8).reshape(-1)
        )
        return gathered

    def barrier(self) -> None:
        self.communicator.barrier()

    def worst(self, value: float) -> float:
        return float(self.communicator.allreduce(np.array([value]), op="max")[0])

    def total(self, value: int) -> int:
        return int(self.communicator.allreduce(np.array([value], np.int64))[0])

    def delay_randomly(self) -> None:
        time.sleep(self.late.random() * 2e-3)

    def time_us(self, call: Callable[[], Any], calls: int) -> float:
        self.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return self.worst((time.perf_counter() - begin) * 1e6 / calls)

    def host_us(self, call: Callable[[], Any]) -> float:
        """A host call is complete when it returns, so this is the time of the call."""
        return self.time_us(call, 3)

    def synchronize(self) -> None:
        pass

    def wrong_elements(self, c: Any, a: Any, b: Any) -> int:
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        expected = a64 @ b64
        bound = _bound(np.abs(a64) @ np.abs(b64), np.abs(expected), a.shape[1], c.dtype.name)
        return int(np.count_nonzero(~(np.abs(c.astype(np.float64) - expected) <= bound)))

    def wrong_sums(self, c: Any, a: Any, b: Any) -> int:
        """Wrong elements in the rows of this rank of the sum over ranks of a @ b."""
        wrong, rows = 0, c.shape[0]
        b64 = b.astype(np.float64)
        for owner in range(self.communicator.size):
            a64 = a[owner * rows : (owner + 1) * rows].astype(np.float64)
            expected = self.communicator.allreduce(a64 @ b64)
            magnitude = self.communicator.allreduce(np.abs(a64) @ np.abs(b64))
            if owner == self.communicator.rank:
                inner = a.shape[1] * self.communicator.size
                bound = _bound(magnitude, np.abs(expected), inner, c.dtype.name, 2 * self.communicator.size)
                wrong = int(np.count_nonzero(~(np.abs(c.astype(np.float64) - expected) <= bound)))
        return wrong

    def peers(self, job: Any, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        return {}

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}


class CudaEngine:
    """One GPU per rank; calls are enqueued back to back and timed by device events."""

    name = "cuda"

    def __init__(self, communicator: Any, seed: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.communicator = communicator
        torch.manual_seed(seed + 7919 * communicator.rank)
        self.late = random.Random(seed + communicator.rank)
        self.device = torch.device("cuda", communicator.rank)
        dist.init_process_group(
            "nccl", rank=communicator.rank, world_size=communicator.size, device_id=self.device
        )
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.host_times: weakref.WeakKeyDictionary[Callable[[], Any], float] = weakref.WeakKeyDictionary()

    def matrix(self, rows: int, cols: int, dtype: str) -> Any:
        return self.torch.empty((rows, cols), dtype=getattr(self.torch, dtype), device=self.device)

    def heap_matrix(self, rows: int, cols: int, dtype: str) -> Any:
        torch_dtype = getattr(self.torch, dtype)
        flat = self.communicator.empty((rows * cols * torch_dtype.itemsize,), "uint8")
        tensor = self.torch.from_dlpack(flat)
        return tensor.view(torch_dtype).view(rows, cols)

    def fill(self, array: Any) -> None:
        array.uniform_(-1, 1)

    def poison(self, array: Any) -> None:
        array.view(self.torch.uint8).fill_(0xFF)

    def share(self, array: Any) -> None:
        self.dist.broadcast(array, 0)

    def gather(self, shard: Any) -> Any:
        rows = shard.shape[0] * self.communicator.size
        gathered = self.torch.empty((rows, shard.shape[1]), dtype=shard.dtype, device=self.device)
        self.dist.all_gather_into_tensor(gathered, shard.contiguous())
        return gathered

    def barrier(self) -> None:
        self.dist.barrier()

    def worst(self, value: float) -> float:
        slowest = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
        return float(slowest.item())

    def total(self, value: int) -> int:
        sum_ = self.torch.tensor([value], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(sum_)
        return int(sum_.item())

    def delay_randomly(self) -> None:
        self.torch.cuda._sleep(int(self.late.random() * 2_000_000))

    def time_us(self, call: Callable[[], Any], calls: int) -> float:
        """Device time. A delay kernel lets the host queue all calls before the first one starts."""
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.dist.barrier()
        self.torch.cuda._sleep(int(self._host_us(call) * (calls + 1) * _CYCLES_PER_US))
        call()  # aligns the ranks on their devices
        start.record()
        for _ in range(calls):
            call()
        stop.record()
        self.torch.cuda.synchronize()
        return self.worst(start.elapsed_time(stop) * 1e3 / calls)

    def host_us(self, call: Callable[[], Any]) -> float:
        """Host time to enqueue one call."""
        return self.worst(self._host_us(call))

    def _host_us(self, call: Callable[[], Any]) -> float:
        if call not in self.host_times:
            times = []
            for _ in range(5):
                self.torch.cuda.synchronize()
                begin = time.perf_counter()
                call()
                times.append((time.perf_counter() - begin) * 1e6)
            self.torch.cuda.synchronize()
            self.host_times[call] = sorted(times)[2]
        return self.host_times[call]

    def captured(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """The launch of a graph with one call; None if the call cannot be captured."""
        torch, graph = self.torch, self.torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                call()
        except RuntimeError as failure:
            print(str(failure).splitlines()[0][:200], file=sys.stderr, flush=True)
            torch.cuda.synchronize()
            return None
        return graph.replay

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def wrong_elements(self, c: Any, a: Any, b: Any) -> int:
        torch, wrong = self.torch, 0
        b64 = b.double()
        for begin in range(0, a.shape[0], 4096):
            rows = slice(begin, begin + 4096)
            a64 = a[rows].double()
            expected = a64 @ b64
            bound = _bound(a64.abs() @ b64.abs(), expected.abs(), a.shape[1], str(c.dtype).split(".")[1])
            wrong += int((~((c[rows].double() - expected).abs() <= bound)).sum().item())
        torch.cuda.synchronize()
        return wrong

    def wrong_sums(self, c: Any, a: Any, b: Any) -> int:
        """Wrong elements in the rows of this rank of the sum over ranks of a @ b."""
        torch, wrong, rows = self.torch, 0, c.shape[0]
        b64 = b.double()
        for owner in range(self.communicator.size):
            a64 = a[owner * rows : (owner + 1) * rows].double()
            expected, magnitude = a64 @ b64, a64.abs() @ b64.abs()
            self.dist.all_reduce(expected)
            self.dist.all_reduce(magnitude)
            if owner == self.communicator.rank:
                inner, output = a.shape[1] * self.communicator.size, str(c.dtype).split(".")[1]
                bound = _bound(magnitude, expected.abs(), inner, output, 2 * self.communicator.size)
                wrong = int((~((c.double() - expected).abs() <= bound)).sum().item())
        torch.cuda.synchronize()
        return wrong

    def peers(self, job: Any, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        """Factories of the two torch variants: separate collective and product, and pipelined operator."""
        torch, dist = self.torch, self.dist
        symm_mem = importlib.import_module("torch.distributed._symmetric_memory")  # registers the operators
        group = dist.group.WORLD.group_name
        size = self.communicator.size

        def gather_sequential() -> Callable[[], Any]:
            gathered = self.matrix(a.shape[0] * size, a.shape[1], job.dtype)
            c = self.matrix(gathered.shape[0], b.shape[1], job.dtype)

            def call() -> Any:
                dist.all_gather_into_tensor(gathered, a)
                return torch.matmul(gathered, b, out=c)

            return call

        def gather_fused() -> Callable[[], Any]:
            symmetric = symm_mem.empty(tuple(a.shape), dtype=a.dtype, device=self.device)
            symm_mem.rendezvous(symmetric, group)
            symmetric.copy_(a)
            return lambda: torch.ops.symm_mem.fused_all_gather_matmul(symmetric, [b], 0, group)

        def scatter_sequential() -> Callable[[], Any]:
            product = self.matrix(a.shape[0], b.shape[1], job.dtype)
            c = self.matrix(a.shape[0] // size, b.shape[1], job.dtype)

            def call() -> Any:
                torch.matmul(a, b, out=product)
                return dist.reduce_scatter_tensor(c, product)

            return call

        def scatter_fused() -> Callable[[], Any]:
            return lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, group)

        if job.kind == "allgather_gemm":
            return {"torch_sequential": gather_sequential, "torch_async_tp": gather_fused}
        return {"torch_sequential": scatter_sequential, "torch_async_tp": scatter_fused}

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "nccl": ".".join(map(str, self.torch.cuda.nccl.version()))}


def _bound(magnitude: Any, expected: Any, k: int, output: str, partial_sums: int = 0) -> Any:
    """The error bound: k + 8 float32 roundings of the sum of magnitudes, plus roundings of the result and of
    partial sums in the output type."""
    roundoff = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[output]
    return magnitude * ((k + 8) * 2.0**-24 + partial_sums * roundoff) + expected * (1.01 * roundoff) + 1e-30


def make_engine(platform: str, communicator: Any, seed: int) -> Any:
    if platform == "host":
        return HostEngine(communicator, seed)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29547")
    return CudaEngine(communicator, seed)
