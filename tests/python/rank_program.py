"""One rank of a job with a faulty rank 2. Usage: rank_program.py FAULT RENDEZVOUS RANK.

RENDEZVOUS is a folder in which three processes exchange their id, or `mpi`. With `mpi`, RANK can be `end` to
exit after an error. Prints the error.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import isthmus
import isthmus.memory

FAULTY_RANK, SIZE, STEPS = 2, 3, 3
PAUSE_S = 0.5


def create_communicator(rendezvous: str, rank: int) -> isthmus.Communicator:
    if rendezvous == "mpi":
        from mpi4py import MPI

        return isthmus.Communicator.from_mpi(MPI.COMM_WORLD)
    file = Path(rendezvous) / "id"
    if rank == 0:
        file.with_suffix(".part").write_bytes(bytes(isthmus.UniqueId.create()))
        file.with_suffix(".part").rename(file)
    # Wait for all processes first, because their start can take longer than the timeout on a busy machine.
    Path(rendezvous, f"ready.{rank}").touch()
    while not (file.exists() and all(Path(rendezvous, f"ready.{other}").exists() for other in range(SIZE))):
        time.sleep(0.01)
    device = f"{os.environ['RANK_PLATFORM']}:{rank}" if "RANK_PLATFORM" in os.environ else "host"
    return isthmus.Communicator.from_unique_id(file.read_bytes(), rank, SIZE, device=device)


class HostCalls:
    def __init__(self, comm: isthmus.Communicator) -> None:
        self._comm = comm

    def allreduce(self, elements: int = 1024, dtype: str = "float32") -> None:
        self._comm.allreduce(np.ones(elements, dtype))

    def broadcast(self, root: int) -> None:
        self._comm.broadcast(np.ones(1024, np.float32), root=root)

    def allgather(self) -> None:
        self._comm.allgather(np.ones(1024, np.float32))

    def barrier(self) -> None:
        self._comm.barrier()


class DeviceCalls:
    """Calls on a device with the CUDA API. Each call waits for its stream and checks for errors."""

    def __init__(self, comm: isthmus.Communicator) -> None:
        self._comm = comm
        self._cuda = ctypes.CDLL(os.environ["ISTHMUS_CUDA_RUNTIME_LIBRARY"])
        self._stream = ctypes.c_void_p()
        self._cuda.cudaSetDevice(comm.rank)
        self._cuda.cudaStreamCreateWithFlags(ctypes.byref(self._stream), 1)
        self._buffers = {elements: self._pair(elements) for elements in (512, 1024)}
        self._gathered = isthmus.memory.empty(4096 * SIZE, "uint8", comm.device)

    def _pair(self, elements: int) -> tuple[Any, Any]:
        return tuple(isthmus.memory.empty(4 * elements, "uint8", self._comm.device) for _ in range(2))

    def _call(self, name: str, *buffers: Any, dtype: str = "float32", **options: Any) -> None:
        if buffers:
            options["dtype"] = dtype
        getattr(self._comm, name)(*buffers, stream=self._stream.value, **options)
        while self._cuda.cudaStreamQuery(self._stream):
            self._comm.check()
            time.sleep(0.001)
        self._comm.check()

    def allreduce(self, elements: int = 1024, dtype: str = "float32") -> None:
        self._call("allreduce", *self._buffers[elements], dtype=dtype)

    def broadcast(self, root: int) -> None:
        self._call("broadcast", *self._buffers[1024], root=root)

    def allgather(self) -> None:
        self._call("allgather", self._buffers[1024][0], self._gathered)

    def barrier(self) -> None:
        self._call("barrier")


def pause(seconds: float = 30) -> None:
    time.sleep(seconds)


def main() -> None:
    fault, rendezvous = sys.argv[1:3]
    rank = int(os.environ["PMI_RANK"] if rendezvous == "mpi" else sys.argv[3])
    comm = create_communicator(rendezvous, rank)
    calls = DeviceCalls(comm) if "RANK_PLATFORM" in os.environ else HostCalls(comm)
    is_faulty = rank == FAULTY_RANK
    for _ in range(STEPS):
        calls.allreduce()
    print("ready", flush=True)
    if is_faulty and fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if is_faulty and fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if is_faulty and fault == "slow":
        pause()
    if is_faulty and fault == "pause":
        pause(PAUSE_S)
    if is_faulty and fault == "skip":
        calls.broadcast(0)
        pause()
    if is_faulty and fault == "reorder":
        calls.broadcast(0)
        calls.allreduce()
    calls.allreduce(
        512 if is_faulty and fault == "count" else 1024,
        "int32" if is_faulty and fault == "dtype" else "float32",
    )
    calls.broadcast(1 if is_faulty and fault == "root" else 0)
    calls.allgather()
    calls.barrier()
    if fault == "pause":
        comm.close()
        return
    pause()


if __name__ == "__main__":
    try:
        main()
    except isthmus.Error as failure:
        print(f"{failure.code.name}: {failure.message}", flush=True)
        if "end" not in sys.argv:
            pause()  # keep the flight recorder of this process available
