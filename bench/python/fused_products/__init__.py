"""Measurement of `isthmus bench allgather_gemm` and `gemm_reduce_scatter`: one process per rank.

Needs only NumPy on the host, and torch for CUDA, so that it also runs on minimal machines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus import UniqueId

_GRACE_S = 10.0
SHAPE, VERSIONS = "shape:", "versions:"  # prefixes of lines of rank 0 that are machine-readable


class BenchError(Exception):
    """A rank failed; the message is its last output."""


@dataclass
class Job:
    """A measurement for all ranks. Times are medians over `samples`, between two verifications."""

    shapes: list[tuple[int, int, int]]  # m, k, n of the whole product
    kind: str = "allgather_gemm"
    platform: str = "host"
    dtype: str = "float16"
    output: str = "float16"
    chunks: int = 0
    samples: int = 15
    min_sample_us: float = 2000.0
    late_runs: int = 4  # verified runs with random delays of the ranks
    peers: bool = True
    in_heap: bool = True
    traced: tuple[int, int, int] | None = None  # the shape for which an additional run is traced
    sweep: tuple[int, ...] = ()  # additional chunk counts to measure
    graphs: bool = False  # CUDA: times launches of graphs; calls that cannot be captured are left out
    limit_s: float = 1e9  # no shape starts after this time
    seed: int = 1


def run(job: Job, ranks: int, timeout_s: float = 600.0, on_line: Any = None) -> dict[str, Any]:
    """Runs the job on `ranks` processes and returns {"shapes", "versions", "failed"}.

    `on_line` receives the output of rank 0. "failed" describes a failure after the first shape; earlier
    failures raise BenchError.
    """
    identity = UniqueId.create()
    children = [_start(job, rank, ranks, identity) for rank in range(ranks)]
    late = threading.Event()

    def abort() -> None:
        late.set()
        _kill(children)

    watchdog = threading.Timer(timeout_s, abort)
    watchdog.start()
    result: dict[str, Any] = {"shapes": [], "versions": {}}
    try:
        for line in children[0].stdout:
            if line.startswith(SHAPE):
                result["shapes"].append(json.loads(line.removeprefix(SHAPE)))
            elif line.startswith(VERSIONS):
                result["versions"] = json.loads(line.removeprefix(VERSIONS))
            elif on_line is not None:
                on_line(line.rstrip())
        codes = [_wait(child) for child in children]
    finally:
        watchdog.cancel()
        _kill(children)
    failed = [f"rank {rank} exited with status {code}" for rank, code in enumerate(codes) if code]
    if late.is_set():
        failed = [f"the ranks did not finish within {timeout_s:.0f} s"]
    if not result["shapes"]:
        raise BenchError(", ".join(failed or ["rank 0 printed no result"]) + "; see its output above")
    return result | {"failed": ", ".join(failed)}


def _wait(child: subprocess.Popen) -> int:
    """Returns the exit status. Called when rank 0 has closed its output; ranks that still wait are killed."""
    try:
        return child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        _kill([child])
        return child.returncode


def _kill(children: list[subprocess.Popen]) -> None:
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _start(job: Job, rank: int, ranks: int, identity: UniqueId) -> subprocess.Popen:
    path = filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")))
    child = subprocess.Popen(
        [sys.executable, "-m", f"{__name__}.rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # The core searches this environment for libraries of wheels (BLAS, cuBLASLt); the variable is set
        # only if activated.
        env={"VIRTUAL_ENV": sys.prefix} | os.environ | {"PYTHONPATH": os.pathsep.join(path)},
    )
    child.stdin.write(json.dumps({"job": asdict(job), "rank": rank, "ranks": ranks, "id": identity.hex()}))
    child.stdin.close()
    return child
