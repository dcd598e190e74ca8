"""Checks that every slice of a reduction has the bits of a sum in rank order. The oracle is NumPy.

As a program, runs ranks as processes: same_bits.py FOLDER LAYOUT BACKEND...
LAYOUT is the number of ranks of each process, for example 2,1. A slash separates simulated nodes. BACKEND can
be `rules`. FOLDER is used to exchange the ids.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import isthmus

COUNT = 20011
# Element ranges of the calls. Most begin and end between cache lines and between vectors.
SLICES = [(0, COUNT), (1, 1), (3, 8), (17, 129), (5, 1026), (777, 4099), (1, COUNT - 2)]
TYPES = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float32, np.float64]
# Small buffers, so that the slices need several chunks and some results are stored with streaming stores.
OPTIONS = ";".join(
    f"backend.{option}"
    for option in (
        "shm.slot_bytes=32768",
        "shm.streaming_bytes=100000",
        "ucx.chunk_bytes=4096",
    )
)


class Reference:
    """The contributions of all ranks, and what a rank must receive."""

    def __init__(self, ranks: int, types: list[Any] = TYPES) -> None:
        self._generator = np.random.default_rng(ranks)
        self.types = types
        self.contributions = {dtype: [self._contribution(dtype) for _ in range(ranks)] for dtype in types}
        for first, *_, last in self.contributions.values():
            last[::2] = -first[::2]  # the result consists of small contributions and their rounding errors
        self.results = {
            (dtype, op): reduce_in_order(self.contributions[dtype], op)
            for dtype in types
            for op in ("sum", "avg")
        }

    def _contribution(self, dtype: Any) -> np.ndarray:
        smallest = {1: -14, 2: -14, 4: -40, 8: -80}[np.dtype(dtype).itemsize]
        scale = 2.0 ** self._generator.uniform(smallest, 10, COUNT)
        return (self._generator.standard_normal(COUNT) * scale).astype(dtype)


def reduce_in_order(contributions: list[np.ndarray], op: str) -> np.ndarray:
    """Adds from left to right. Types below 4 bytes are added in float32 and rounded once."""
    dtype = contributions[0].dtype
    wide_dtype = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
    total = contributions[0].astype(wide_dtype)
    for contribution in contributions[1:]:
        total = total + contribution.astype(wide_dtype)
    return (total / wide_dtype.type(len(contributions)) if op == "avg" else total).astype(dtype)


def nan_filled(count: int, dtype: Any, allocate: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
    """Returns an array of NaN that does not begin at a cache line."""
    array = allocate(count + 1, dtype)
    array.view(np.uint8)[:] = 0xFF
    return array[1:]


def is_supported(call: Callable[[], Any]) -> bool:
    """Runs a call. Returns False if the algorithm is one of other sizes or collectives."""
    try:
        call()
    except isthmus.Error as failure:
        if "no backend can run" not in str(failure):
            raise
        return False
    return True


def check_slice(
    communicator: isthmus.Communicator, own: np.ndarray, out: np.ndarray, expected: np.ndarray, op: Any
) -> int:
    """Compares the results of four collectives of a slice with the result of the whole array."""
    rank, ranks = communicator.rank, communicator.size
    block = len(own) // ranks
    counts = [len(own) - block * (ranks - 1)] + [block] * (ranks - 1)
    begin = sum(counts[:rank])
    calls: list[tuple[Callable[[], Any], np.ndarray]] = [
        (lambda: communicator.allreduce(own, out, op), expected),
        (
            lambda: communicator.reduce(own, out, op, root=ranks - 1),
            expected if rank == ranks - 1 else expected[:0],
        ),
        (
            lambda: communicator.reduce_scatter(own[: block * ranks], out[:block], op),
            expected[block * rank : block * (rank + 1)],
        ),
        (
            lambda: communicator.reduce_scatterv(own, out[: counts[rank]], op, send_counts=counts),
            expected[begin : begin + counts[rank]],
        ),
    ]
    checked = 0
    for call, result in calls:
        out.view(np.uint8)[:] = 0xFF
        if (block > 0 or call is not calls[2][0]) and is_supported(call):
            checked += 1
            assert out[: len(result)].tobytes() == result.tobytes(), (own.dtype, len(own), op)
    return checked


def check_rank(communicator: isthmus.Communicator, reference: Reference, *, symmetric: bool = False) -> int:
    """Runs all calls on one rank. Returns the number of calls that the backend supports."""
    skew = np.random.default_rng(communicator.rank)
    allocate = communicator.empty if symmetric else np.empty
    checked = 0
    for dtype in reference.types:
        contribution = reference.contributions[dtype][communicator.rank]
        own, out = nan_filled(COUNT, dtype, allocate), nan_filled(COUNT, dtype, allocate)
        own[:] = contribution
        for number, (first, count) in enumerate(SLICES):
            op = "avg" if number % 3 == 1 else "sum"
            if number % 2 == 0:
                time.sleep(skew.uniform(0, 0.0005))
            part = slice(first, first + count)
            checked += check_slice(communicator, own[part], out[part], reference.results[dtype, op][part], op)
        assert own.tobytes() == contribution.tobytes()
    check_group(communicator, reference)
    return checked


def check_group(communicator: isthmus.Communicator, reference: Reference) -> None:
    """Runs all slices of float32 in one group."""
    own = reference.contributions[np.float32][communicator.rank]
    outs = [nan_filled(count, np.float32) for _, count in SLICES]

    def reduce_all() -> None:
        with isthmus.group():
            for (first, count), out in zip(SLICES, outs, strict=True):
                communicator.allreduce(own[first : first + count], out)

    if not is_supported(reduce_all):
        return
    for (first, count), out in zip(SLICES, outs, strict=True):
        assert out.tobytes() == reference.results[np.float32, "sum"][first : first + count].tobytes()


def exchange_id(folder: Path, name: str, rank: int) -> bytes:
    file = folder / name
    if rank == 0:
        file.with_suffix(".part").write_bytes(bytes(isthmus.UniqueId.create()))
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.001)
    return file.read_bytes()


def run_rank(folder: Path, backends: list[str], reference: Reference, rank: int, ranks: int) -> None:
    for number, backend in enumerate(backends):
        # All ranks of a process read this variable, and set it to the same value between two communicators.
        os.environ["ISTHMUS_BACKEND"] = "" if backend == "rules" else backend
        with isthmus.Communicator.from_unique_id(
            exchange_id(folder, f"{number}.id", rank), rank, ranks, timeout=60
        ) as communicator:
            checked = check_rank(communicator, reference, symmetric=number % 2 == 1)
        if rank == 0:
            print(backend, checked, flush=True)


def run_process(folder: Path, backends: list[str], reference: Reference, own: range, ranks: int) -> int:
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            run_rank(folder, backends, reference, rank, ranks)
        except BaseException as failure:
            print(f"rank {rank}: {failure!r}", file=sys.stderr, flush=True)
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(failures)


def main() -> None:
    folder, layout, backends = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    processes = [(node, int(ranks)) for node, part in enumerate(layout.split("/")) for ranks in part.split(",")]
    total = sum(ranks for _, ranks in processes)
    reference = Reference(total, [np.float16, np.float32])
    children, first = [], 0
    for node, ranks in processes:
        own = range(first, first + ranks)
        first += ranks
        child = os.fork()
        if child == 0:
            os.environ["ISTHMUS_NODE"] = f"node{node}"
            os._exit(run_process(folder, backends, reference, own, total))
        children.append(child)
    sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) != 0)


if __name__ == "__main__":
    main()
