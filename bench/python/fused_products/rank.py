"""One rank: reads its job from standard input and measures; rank 0 prints the results."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Set before torch is loaded: multicast is off in all measurements of this project.
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from measured import time_us

from isthmus import Communicator
from isthmus.fused import Plan

from . import SHAPE, VERSIONS, Job, figures
from .engines import make_engine

_MAX_CALLS = 50  # more calls would fill the queue of a device and expose host time


class Bench:
    """Measures one shape at a time: verify, time interleaved calls, verify again."""

    def __init__(self, job: Job, communicator: Communicator) -> None:
        self.job = job
        self.communicator = communicator
        self.engine = make_engine(job.platform, communicator, job.seed)
        self.gathers = job.kind == "allgather_gemm"

    def shape(self, m: int, k: int, n: int) -> dict[str, Any]:
        job, engine = self.job, self.engine
        size, gathers = self.communicator.size, self.gathers
        rows, inner = (m // size, k) if gathers else (m, k // size)
        a = (engine.heap_matrix if gathers and job.in_heap else engine.matrix)(rows, inner, job.dtype)
        b = engine.matrix(inner, n, job.dtype)
        c = engine.matrix(m if gathers else m // size, n, job.output)
        plans = {
            "sequential": self._plan(a, b, "sequential"),
            "pipelined": self._plan(a, b, "pipelined"),
            "fused": self._plan(a, b, "model"),
        }
        calls = self._calls(plans, a, b, c)
        result: dict[str, Any] = {"kind": job.kind, "m": m, "k": k, "n": n}
        result["info"] = plans["fused"].info
        result["pipelined_info"] = plans["pipelined"].info
        result["wrong_before"] = self._verify(calls, a, b, c, late=False)
        if job.peers:
            calls |= self._peers(a, b)
        timed = self._captured(calls) if job.graphs else calls
        result["host_us"] = {name: engine.host_us(call) for name, call in timed.items()}
        result["times_us"] = self._measure(timed)
        result["chunks_us"] = self._sweep(a, b, c)
        own = {name: call for name, call in calls.items() if name in plans}
        result["wrong_after"] = self._verify(own, a, b, c, late=False)
        result["wrong_late"] = sum(
            self._verify({"pipelined": own["pipelined"]}, a, b, c, late=True) for _ in range(job.late_runs)
        )
        if job.traced is not None and tuple(job.traced) == (m, k, n):
            result["trace"] = self._trace(a, b, c)
        for plan in plans.values():
            plan.close()
        return result

    def _captured(self, calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
        """Launches of graphs, each with one call. All ranks leave out the same calls."""
        launches = {}
        for name, call in calls.items():
            launch = self.engine.captured(call)
            if self.engine.total(int(launch is None)) == 0:
                launches[name] = launch
            else:
                print(f"{name}: cannot be captured", file=sys.stderr, flush=True)
        return launches

    def _plan(self, a: Any, b: Any, mode: str, *, chunks: int | None = None, trace: bool = False) -> Plan:
        return Plan(
            self.communicator,
            a,
            b,
            kind=self.job.kind,
            output=self.job.output,
            mode=mode,
            chunks=self.job.chunks if chunks is None else chunks,
            trace=trace,
        )

    def _sweep(self, a: Any, b: Any, c: Any) -> dict[int, dict[str, float]]:
        """Times pipelined with other chunk counts, to evaluate the model."""
        if not self.job.sweep:
            return {}
        plans = {chunks: self._plan(a, b, "pipelined", chunks=chunks) for chunks in self.job.sweep}
        times = self._measure(
            {chunks: lambda plan=plan: plan(a, b, out=c) for chunks, plan in plans.items()},
        )
        for plan in plans.values():
            plan.close()
        return times

    def _calls(self, plans: dict[str, Plan], a: Any, b: Any, c: Any) -> dict[str, Callable[[], Any]]:
        def part(name: str, view: str) -> Callable[[], Any]:
            plan = plans[name]
            return lambda: plan(a, b, out=c, view=view)

        return {
            "compute_only": part("sequential", "compute_only"),
            "compute_chunked": part("pipelined", "compute_only"),
            "communication_only": part("pipelined", "communication_only"),
            "collective_only": part("sequential", "communication_only"),
            "sequential": part("sequential", "whole"),
            "pipelined": part("pipelined", "whole"),
            "fused": part("fused", "whole"),
        }

    def _verify(self, calls: dict[str, Callable[[], Any]], a: Any, b: Any, c: Any, *, late: bool) -> int:
        """Counts wrong elements of whole calls over all ranks, each with fresh random data and a poisoned C."""
        wrong = 0
        for name in ("sequential", "pipelined", "fused"):
            if name not in calls:
                continue
            self.engine.fill(a)
            self.engine.fill(b)
            if self.gathers:
                self.engine.share(b)
            self.engine.poison(c)
            self.engine.synchronize()
            self.engine.barrier()
            if late:
                self.engine.delay_randomly()
            calls[name]()
            if self.gathers:
                wrong += self.engine.wrong_elements(c, self.engine.gather(a), b)
            else:
                wrong += self.engine.wrong_sums(c, a, b)
        return self.engine.total(wrong)

    def _peers(self, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        found = {}
        for name, make in self.engine.peers(self.job, a, b).items():
            try:
                call = make()
                call()
                self.engine.synchronize()
                found[name] = call
            except Exception as failure:  # calls that torch does not support here are skipped with a message
                print(f"{name}: {str(failure).splitlines()[0][:200]}", file=sys.stderr, flush=True)
        return found

    def _measure(self, calls: dict[Any, Callable[[], Any]]) -> dict[Any, dict[str, float]]:
        """Times every call in every round, so that drift of clocks and load affects all calls."""
        repetitions = {}
        for name, call in calls.items():
            self.engine.time_us(call, 1)
            single_us = self.engine.time_us(call, 3)
            repetitions[name] = max(1, min(_MAX_CALLS, int(self.job.min_sample_us / single_us) + 1))
        samples: dict[Any, list[float]] = {name: [] for name in calls}
        for index in range(self.job.samples):
            order = list(calls.items())
            for name, call in order if index % 2 == 0 else reversed(order):
                samples[name].append(self.engine.time_us(call, repetitions[name]))
        return {name: time_us(values) for name, values in samples.items()}

    def _trace(self, a: Any, b: Any, c: Any) -> list[dict[str, Any]]:
        """The events of one run of all ranks, on a common clock if the platform has one."""
        with self._plan(a, b, "pipelined", trace=True) as plan:
            for _ in range(3):
                self.engine.barrier()
                plan(a, b, out=c)
                self.engine.synchronize()
            own = plan.trace["traceEvents"]
        if self.communicator.size == 1:
            return own
        return gather_events(self.communicator, own, self.engine)


def gather_events(communicator: Communicator, own: list[dict[str, Any]], engine: Any) -> list[dict[str, Any]]:
    """Gathers the events of all ranks on every rank, as padded text."""
    text = json.dumps(own).encode()
    length = int(engine.worst(float(len(text))))
    row = engine.matrix(1, length, "uint8")
    if engine.name == "host":
        row[0, :] = list(text.ljust(length))
        texts = [bytes(line) for line in engine.gather(row)]
    else:
        row.copy_(engine.torch.tensor(list(text.ljust(length)), dtype=engine.torch.uint8).view(1, -1))
        texts = [bytes(line.tolist()) for line in engine.gather(row).cpu()]
    return [event for each in texts for event in json.loads(each)]


def main() -> int:
    arguments = json.loads(sys.stdin.read())
    job, rank = Job(**arguments["job"]), arguments["rank"]
    begin = time.monotonic()
    device = f"{job.platform}:{rank}" if job.platform != "host" else "host"
    if job.platform == "cuda":
        import torch

        torch.cuda.set_device(rank)
    communicator = Communicator.from_unique_id(
        bytes.fromhex(arguments["id"]), rank, arguments["ranks"], device=device, timeout=60.0
    )
    bench = Bench(job, communicator)
    if rank == 0:
        print(VERSIONS + json.dumps(bench.engine.versions()), flush=True)
    for m, k, n in job.shapes:
        if bench.engine.worst(time.monotonic() - begin) > job.limit_s:
            break
        result = bench.shape(m, k, n)
        if rank == 0:
            print(f"{m} x {k} x {n}: {figures.summarize(result)}", flush=True)
            print(SHAPE + json.dumps(result), flush=True)
    if job.platform == "cuda":
        bench.engine.dist.destroy_process_group()
    communicator.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
