"""Program of test_mpi. Usage: mpi_program.py MODE. Each rank prints one line of JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

import isthmus


def without_mpi4py() -> dict:
    with isthmus.Communicator.from_mpi(timeout=20) as comm:
        reply = run_collectives(comm)
    assert "mpi4py" not in sys.modules
    return reply


def with_mpi4py() -> dict:
    from mpi4py import MPI

    with isthmus.Communicator.from_mpi(MPI.COMM_WORLD, timeout=20) as comm:
        reply = run_collectives(comm)
    # The communicator of the user is not affected, so both libraries can be used.
    reply["mpi4py_sum"] = MPI.COMM_WORLD.allreduce(1)
    return reply


def on_subcommunicator() -> dict:
    from mpi4py import MPI

    child = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2, -MPI.COMM_WORLD.rank)
    with isthmus.Communicator.from_mpi(child, timeout=20) as comm:
        return run_collectives(comm) | {"world": MPI.COMM_WORLD.rank, "part": child.rank}


def not_closed() -> dict:
    comm = isthmus.Communicator.from_mpi(timeout=20)  # closed by the exit handler before MPI is finalized
    return run_collectives(comm)


def other_library() -> dict:
    from isthmus import _mpi

    library_version = _mpi.library_version()
    _mpi.library_version = lambda: library_version.replace("MPICH", "Some other MPI", 1)
    from mpi4py import MPI

    try:
        isthmus.Communicator.from_mpi(MPI.COMM_WORLD)
    except RuntimeError as failure:
        return {"error": str(failure)}
    return {"error": ""}


def unsupported_communicators() -> dict:
    """Every rank gets the same errors, and MPI works afterwards."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    group = world.Split(world.rank % 2, world.rank)
    between_groups = group.Create_intercomm(0, world, 1 - world.rank % 2)
    errors = {}
    for name, comm in {"inter": between_groups, "null": MPI.COMM_NULL, "number": 7}.items():
        try:
            isthmus.Communicator.from_mpi(comm, timeout=20)
        except (isthmus.Error, TypeError) as failure:
            code = failure.code.name if isinstance(failure, isthmus.Error) else type(failure).__name__
            errors[name] = [code, str(failure)]
    with isthmus.Communicator.from_mpi(between_groups.Merge(), timeout=20) as comm:
        merged = comm.allreduce(np.ones(1, np.int64)).tolist()
    return {"errors": errors, "merged": merged}


def run_collectives(comm: isthmus.Communicator) -> dict:
    array = np.full(1000, comm.rank + 1, np.int64)
    total = comm.allreduce(array)
    gathered = comm.allgather(np.array([comm.rank], np.int32)).reshape(-1)
    heap = comm.empty(10, "float64")
    heap[:] = comm.rank
    comm.broadcast(heap, root=comm.size - 1)
    half = comm.split(comm.rank % 2)
    return {
        "rank": comm.rank,
        "size": comm.size,
        "sum": sorted(set(total.tolist())),
        "gathered": gathered.tolist(),
        "heap": sorted(set(heap.tolist())),
        "half": half.size,
        "bootstrap": comm.info()["bootstrap"],
        "backends": {backend["name"]: backend["state"] for backend in comm.info()["backends"]},
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
