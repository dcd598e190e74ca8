"""The measurement behind `isthmus bench allgather_gemm` and its mirror: a process per rank, NumPy on the host,
torch on CUDA.

Needs nothing but NumPy (and torch for CUDA), so that it runs on bare machines, too.
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
SHAPE, VERSIONS = "shape:", "versions:"  # how rank 0 begins the lines that are not for people


class BenchError(Exception):
    """A rank failed; the text is what it said last."""


@dataclass
class Job:
    """What every rank measures. Times are medians over `samples`, after a verification and before another."""

    shapes: list[tuple[int, int, int]]  # m, k, n of the whole product
    kind: str = "allgather_gemm"
    platform: str = "host"
    dtype: str = "float16"
    output: str = "float16"
    chunks: int = 0
    samples: int = 15
    min_sample_us: float = 2000.0
    late_runs: int = 4  # verified runs with ranks that come late at random
    peers: bool = True
    in_heap: bool = True
    traced: tuple[int, int, int] | None = None  # the shape of which one more run is traced
    sweep: tuple[int, ...] = ()  # chunk counts to try beside the model's
    limit_s: float = 1e9  # no further shape is begun after this
    seed: int = 1


def run(job: Job, ranks: int, timeout_s: float = 600.0, on_line: Any = None) -> dict[str, Any]:
    """Runs the job on `ranks` processes: {"shapes", "versions", "failed"}. `on_line` gets what rank 0 prints.

    "failed" says what went wrong after the first shape was done; before that it is a BenchError.
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
    failed = [f"rank {rank} ended with exit status {code}" for rank, code in enumerate(codes) if code]
    if late.is_set():
        failed = [f"the ranks did not end within {timeout_s:.0f} s"]
    if not result["shapes"]:
        raise BenchError(", ".join(failed or ["rank 0 gave no result"]) + "; its words are above")
    return result | {"failed": ", ".join(failed)}


def _wait(child: subprocess.Popen) -> int:
    """The exit status, soon after rank 0 has closed its output: ranks that wait for a dead one are ended."""
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
        # Where the core looks for libraries out of wheels (BLAS, cuBLASLt); not set unless activated.
        env={"VIRTUAL_ENV": sys.prefix} | os.environ | {"PYTHONPATH": os.pathsep.join(path)},
    )
    child.stdin.write(json.dumps({"job": asdict(job), "rank": rank, "ranks": ranks, "id": identity.hex()}))
    child.stdin.close()
    return child
