#!/usr/bin/env python3
"""Records the operations of an FSDP2 step, their dependencies and their times, for `isthmus simulate training`.

    torch_step_trace.py --out FILE --ranks N [--model gpt-7b --layers 8 --lengths 2048,512] [--device cuda]

A stream is divided into operations where the program records an event, waits for one, calls a collective of
torch.distributed, or changes the current stream. Timing events between them give the time of each operation.
Collectives that run asynchronously (async_op=True) and those of C++ code, such as DDP's, are not recorded.

All ranks and all recorded steps must have the same operations. The time of a collective is that of the rank
that entered last, which does not wait for others. The time of other work, and the time at which the host
enqueues an operation, are those of the slowest rank. All are medians over the recorded steps. `time_us` of the
record is the device time of steps without recording, on the slowest rank.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench/python"), str(ROOT / "bench/gpu")]
from measured import time_us, write_records  # noqa: E402
from torch_train import Ranks, path_of  # noqa: E402

WARMUP, PLAIN, RECORDED = 3, 6, 5  # steps
# Functions of torch.distributed: the name in Isthmus, and index and name of the argument whose size counts. The
# names with "single" replace the other ones in PyTorch 2.13.
COLLECTIVES = {
    "all_gather_into_tensor": ("allgather", 1, "input_tensor"),
    "all_gather_single": ("allgather", 1, "input_tensor"),
    "reduce_scatter_tensor": ("reduce_scatter", 1, "input"),
    "reduce_scatter_single": ("reduce_scatter", 1, "input"),
    "all_reduce": ("allreduce", 0, "tensor"),
    "broadcast": ("broadcast", 0, "tensor"),
    "all_to_all_single": ("alltoall", 1, "input"),
}


@dataclass
class Operation:
    """Work of one stream between two marks.

    `after`: operations of other streams that it waits for. `issue_us`: when the host began to enqueue it.
    """

    kind: str
    stream: int
    bytes: int
    after: list[int]
    issue_us: float
    begin: Any
    end: Any


@dataclass
class StepRecorder:
    """Divides the work of streams into operations. `mark` inserts a time mark into a stream.

    `clock` returns seconds, or always 0 if the host waits for each operation: it then determines no start.

    A stream has an open operation while the program enqueues work on it, so that times do not contain the idle
    time of a stream before the host continues with it.
    """

    mark: Callable[[Any], Any]
    clock: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)
    _open: dict[Any, tuple[Any, float]] = field(default_factory=dict)  # begin and time of issue by stream
    _after: dict[Any, list[int]] = field(default_factory=dict)  # dependencies of the next operation by stream
    _last: dict[Any, int] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _events: dict[int, tuple[Any, int]] = field(default_factory=dict)  # keeps the events alive

    def __post_init__(self) -> None:
        self._begin_s = self.clock()

    def start(self, stream: Any) -> None:
        """Begins an operation if the stream has none."""
        if stream not in self._open:
            self._numbers.setdefault(stream, len(self._numbers))
            self._open[stream] = (self.mark(stream), self._elapsed_us())

    def finish(self, stream: Any, kind: str = "compute", size: int = 0) -> None:
        """Ends the operation of the stream and begins the next one."""
        self.start(stream)
        begin, issue_us = self._open[stream]
        end = self.mark(stream)
        after = self._after.pop(stream, [])
        self.operations.append(Operation(kind, self._numbers[stream], size, after, issue_us, begin, end))
        self._open[stream] = (end, self._elapsed_us())
        self._last[stream] = len(self.operations) - 1

    def leave(self, stream: Any) -> None:
        """Ends the operation of the stream, which is no longer the current one."""
        self.finish(stream)
        del self._open[stream]

    def record_event(self, event: Any, stream: Any) -> None:
        if stream in self._open or stream in self._after:
            is_current = stream in self._open
            self.finish(stream)
            if not is_current:
                del self._open[stream]
        if stream in self._last:
            self._events[id(event)] = (event, self._last[stream])

    def wait_event(self, event: Any, stream: Any, wait: Callable[[], None]) -> None:
        is_current = stream in self._open
        if is_current:
            self.leave(stream)
        wait()
        if known := self._events.get(id(event)):
            self._after.setdefault(stream, []).append(known[1])
        if is_current:
            self.start(stream)

    def collective(self, kind: str, size: int, stream: Any, call: Callable[[], Any]) -> Any:
        self.finish(stream)
        result = call()
        self.finish(stream, kind, size)
        return result

    def _elapsed_us(self) -> float:
        return (self.clock() - self._begin_s) * 1e6


class CudaDevice:
    """Marks are events of CUDA streams. `cuda`: torch.cuda."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._record = cuda.Event.record
        self._wait = cuda.Event.wait
        self._enter, self._exit = cuda.StreamContext.__enter__, cuda.StreamContext.__exit__

    def mark(self, stream: Any) -> Any:
        event = self._cuda.Event(enable_timing=True)
        self._record(event, stream)
        return event

    def clock(self) -> float:
        return time.perf_counter()

    def stream(self) -> Any:
        return self._cuda.current_stream()

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def elapsed_us(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) * 1e3

    @contextlib.contextmanager
    def events(self, recorder: StepRecorder) -> Iterator[None]:
        """Reports events that the program records or waits for, and changes of the current stream."""

        def record(event: Any, stream: Any = None) -> None:
            target = stream or self.stream()
            recorder.record_event(event, target)
            self._record(event, target)

        def wait(event: Any, stream: Any = None) -> None:
            target = stream or self.stream()
            recorder.wait_event(event, target, lambda: self._wait(event, target))

        def enter(context: Any) -> Any:
            result = self._enter(context)
            if context.stream is not None:
                recorder.start(context.stream)
            return result

        def leave(context: Any, *exception: Any) -> Any:
            if context.stream is not None and context.stream != context.src_prev_stream:
                recorder.leave(context.stream)
            return self._exit(context, *exception)

        event, context = self._cuda.Event, self._cuda.StreamContext
        event.record, event.wait = record, wait
        context.__enter__, context.__exit__ = enter, leave
        try:
            yield
        finally:
            event.record, event.wait = self._record, self._wait
            context.__enter__, context.__exit__ = self._enter, self._exit


class HostDevice:
    """Marks are times of the clock, because calls on CPU tensors are synchronous."""

    def mark(self, stream: Any) -> float:
        return time.perf_counter()

    def clock(self) -> float:
        return 0.0

    def stream(self) -> str:
        return "host"

    def synchronize(self) -> None:
        pass

    def elapsed_us(self, begin: float, end: float) -> float:
        return (end - begin) * 1e6

    @contextlib.contextmanager
    def events(self, recorder: StepRecorder) -> Iterator[None]:
        yield


@contextlib.contextmanager
def recording(recorder: StepRecorder, device: CudaDevice | HostDevice) -> Iterator[None]:
    """Reports events and collectives to the recorder."""
    import torch.distributed as dist

    originals = {name: getattr(dist, name) for name in COLLECTIVES if hasattr(dist, name)}

    def wrap(name: str) -> Callable[..., Any]:
        kind, index, argument = COLLECTIVES[name]

        def call(*arguments: Any, **options: Any) -> Any:
            if options.get("async_op"):
                raise RuntimeError(f"{name}(async_op=True) cannot be recorded; call it without async_op")
            tensor = arguments[index] if len(arguments) > index else options[argument]
            run = lambda: originals[name](*arguments, **options)  # noqa: E731
            return recorder.collective(kind, tensor.nbytes, device.stream(), run)

        return call

    for name in originals:
        setattr(dist, name, wrap(name))
    try:
        with device.events(recorder):
            yield
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)


def run_steps(train: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The work of a rank: plain steps, then recorded ones."""
    import torch
    import torch.distributed as dist

    import isthmus.torch

    shape = train.shape_of(options)
    trainer = train.start(options, shape)
    device = CudaDevice(torch.cuda) if options.device == "cuda" else HostDevice()
    batches = train.make_batches(
        options.batches, options.batch, options.length, shape.vocabulary, dist.get_rank()
    )
    words = [batch.to(options.device) for batch in batches[: WARMUP + PLAIN + RECORDED]]
    plain, recorders = [], []
    isthmus.torch.reset_report()
    for batch in words[: WARMUP + PLAIN]:
        dist.barrier()
        device.synchronize()
        begin = device.mark(device.stream())
        trainer.step(batch)
        end = device.mark(device.stream())
        device.synchronize()
        plain.append(device.elapsed_us(begin, end))
    paths = [asdict(row) for row in isthmus.torch.report()]
    for batch in words[WARMUP + PLAIN :]:
        dist.barrier()
        device.synchronize()
        recorders.append(StepRecorder(device.mark, device.clock))
        recorders[-1].start(device.stream())
        with recording(recorders[-1], device):
            trainer.step(batch)
        recorders[-1].finish(device.stream())
        device.synchronize()
    return {
        "plain_us": plain[WARMUP:],
        "paths": paths,
        "shape": [[each.kind, each.stream, each.bytes, each.after] for each in recorders[-1].operations],
        "us": [
            [device.elapsed_us(each.begin, each.end) for each in recorder.operations] for recorder in recorders
        ],
        "issue_us": [[each.issue_us for each in recorder.operations] for recorder in recorders],
        "recorded_us": [
            device.elapsed_us(recorder.operations[0].begin, recorder.operations[-1].end)
            for recorder in recorders
        ],
    }


def merge(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the operations with their times over all ranks and recorded steps."""
    shape = ranks[0]["shape"]
    if any(rank["shape"] != shape or any(len(us) != len(shape) for us in rank["us"]) for rank in ranks):
        raise RuntimeError("the ranks or the steps have different operations, which cannot be recorded")
    operations = []
    for index, (kind, stream, size, after) in enumerate(shape):
        by_rank = [[step[index] for step in rank["us"]] for rank in ranks]
        by_step = zip(*by_rank, strict=True)
        us = max(map(median, by_rank)) if kind == "compute" else median(map(min, by_step))
        issue_us = max(median(step[index] for step in rank["issue_us"]) for rank in ranks)
        entry = {"kind": kind, "stream": stream, "us": round(us, 1), "issue_us": round(issue_us, 1)}
        operations.append(entry | ({"bytes": size} if size else {}) | ({"after": after} if after else {}))
    return operations


def record(options: argparse.Namespace, length: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    plain = [max(times) for times in zip(*(rank["plain_us"] for rank in ranks), strict=True)]
    recorded = [max(times) for times in zip(*(rank["recorded_us"] for rank in ranks), strict=True)]
    return {
        "collective": "fsdp2_step",
        "dtype": "bfloat16",
        "bytes": 0,
        "ranks": options.ranks,
        "provider": "isthmus",
        "backend": path_of("allgather", ranks[0])[0],
        "reduce_scatter_backend": path_of("reduce_scatter", ranks[0])[0],
        "mode": options.device,
        "time_us": time_us(plain),
        "algbw_gbs": 0,
        "busbw_gbs": 0,
        "model": f"{options.model}, {options.layers} layers, {options.batch} x {length} words",
        "recorded_step_us": round(median(recorded), 1),
        "operations": merge(ranks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--model", default="gpt-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
    parser.add_argument("--lengths", default="2048,512", help="list of words per sequence, one record each")
    parser.add_argument("--limit", type=float, default=120, help="time limit of a record in seconds")
    options = parser.parse_args()
    import torch

    arguments = ["--framework", "fsdp2", "--device", options.device, "--model", options.model]
    arguments += ["--layers", str(options.layers), "--batch", str(options.batch)]
    records = []
    for length in map(int, options.lengths.split(",")):
        ranks = Ranks(run_steps, [*arguments, "--length", str(length)], {}, options.ranks, "")
        result = record(options, length, ranks.results(options.limit))
        ranks.join()
        records.append(result)
        write_records(options.out, records, {"torch": torch.__version__})
        collectives = [each for each in result["operations"] if each["kind"] != "compute"]
        step_us, recorded_us = result["time_us"]["median"], result["recorded_step_us"]
        counts = f"{len(result['operations'])} operations, {len(collectives)} collectives"
        print(f"{length} words: {step_us:.0f} us, recorded {recorded_us:.0f} us; {counts}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
