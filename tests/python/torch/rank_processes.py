"""Processes that run a function as the ranks of a torch.distributed job.

A fork server imports PyTorch once, and the ranks run many jobs. Starting four interpreters for each test
would dominate the run time.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 20
BACKEND = "cpu:isthmus,cuda:isthmus"
QUIET = {
    "ISTHMUS_CONFIG": "none",
    "ISTHMUS_PROFILE": "none",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more start processes, each of which imports PyTorch
}


# Modules imported by the fork server. DeepSpeed's optimizers import PyTorch's compiler, which
# takes ten seconds.
PRELOADED = ["torch.distributed.fsdp", "torch._dynamo", "deepspeed.runtime.zero.muon.muon_optimizer"]
PRELOADED += ["accelerate"]


class RankError(AssertionError):
    """Contains the traceback of the first rank that raised."""


class RankProcesses:
    """Starts and controls `size` ranks. Not thread-safe."""

    def __init__(self, size: int, **environment: str) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="isthmus-torch-")
        self._jobs = 0
        variables = QUIET | {"WORLD_SIZE": str(size)} | environment
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed reads it when the fork server imports it
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            parent_end, child_end = context.Pipe()
            arguments = (rank, child_end, variables, list(sys.path), self._stack_of(rank))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            child_end.close()
            self._pipes.append(parent_end)
            self.processes.append(process)

    def run(
        self, work: Callable[..., Any], *arguments: Any, backend: str | None = BACKEND, limit_s: float = 200
    ) -> list[Any]:
        """Runs `work(*arguments)` on every rank in a new default group, or without one if `backend` is None.

        Returns the results in rank order.
        """
        self.start(work, *arguments, backend=backend)
        return [self.finish(rank, limit_s) for rank in range(self.size)]

    def start(self, work: Callable[..., Any], *arguments: Any, backend: str | None = BACKEND) -> None:
        self._jobs += 1
        store = f"file://{self._folder.name}/{self._jobs}"
        for pipe in self._pipes:
            pipe.send((store, work, arguments, backend))

    def finish(self, rank: int, limit_s: float = 200) -> Any:
        """Returns the result of one rank or raises its error. Kills all ranks if one exited or is late."""
        pipe = self._pipes[rank]
        if not pipe.poll(limit_s):
            stacks = self._stacks()
            self.close()
            raise RankError(f"rank {rank} did not respond within {limit_s} s:\n{stacks}")
        try:
            good, result = pipe.recv()
        except EOFError:
            self.close()
            raise RankError(f"rank {rank} exited") from None
        if not good:
            self.close()  # other ranks may be waiting for it
            raise RankError(f"rank {rank}:\n{result}")
        return result

    def _stack_of(self, rank: int) -> str:
        return f"{self._folder.name}/stack-{rank}"

    def _stacks(self) -> str:
        """Returns the current stacks of all threads of all ranks."""
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        files = [Path(self._stack_of(rank)) for rank in range(self.size)]
        return "\n".join(
            f"rank {rank}:\n{file.read_text()}" for rank, file in enumerate(files) if file.exists()
        )

    @property
    def broken(self) -> bool:
        return not all(process.is_alive() for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)
        self._folder.cleanup()


def _serve(rank: int, pipe: Connection, variables: dict[str, str], path: list[str], stacks: str) -> None:
    gc.freeze()  # otherwise each full collection visits, and copies, the objects of all preloaded modules
    dump = Path(stacks).open("w")  # noqa: SIM115 (open until the process exits)
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True)
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=variables["WORLD_SIZE"])
    sys.path[:] = path
    torch.set_num_threads(1)
    while True:
        try:
            store, work, arguments, backend = pipe.recv()
        except EOFError:
            return
        os.environ["TEST_STORE"] = store  # for work that creates its default group itself
        try:
            pipe.send((True, _run_work(store, work, arguments, backend)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def _run_work(store: str, work: Callable[..., Any], arguments: tuple[Any, ...], backend: str | None) -> Any:
    import isthmus.torch

    isthmus.torch.reset_report()
    torch.manual_seed(1)
    if backend is not None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # Uses a file store, because PyTorch's TCP store looks up host names, which can take seconds.
        dist.init_process_group(backend, store, timedelta(seconds=TIMEOUT_S), size, rank)
    try:
        return work(*arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
