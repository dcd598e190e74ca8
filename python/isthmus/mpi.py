"""The bridge from MPI: a table of the functions of the MPI library that this process already uses."""

from __future__ import annotations

import atexit
from typing import Any


def function_table(comm: Any) -> Any:
    """The table for `comm`, an mpi4py communicator, or for MPI_COMM_WORLD when it is None.

    The functions come from `isthmus._mpi`, compiled against one MPI. An MPI communicator means nothing
    to another library, so mpi4py must have loaded the very same one.
    """
    try:
        from . import _mpi
    except ImportError as error:
        raise RuntimeError(
            "isthmus was built without MPI; install mpich into the environment and build again "
            f"(make build, or pip install . --no-build-isolation): {error}"
        ) from error
    if comm is None:
        if _mpi.initialize():
            atexit.register(_mpi.finalize)
        return _mpi.world_table()
    from mpi4py import MPI

    mpi4py_version, own_version = MPI.Get_library_version(), _mpi.library_version()
    if mpi4py_version != own_version or not _mpi.is_initialized():
        raise RuntimeError(
            f"mpi4py uses {mpi4py_version.splitlines()[0]}, but isthmus was built with {own_version.splitlines()[0]}; "
            "let mpi4py load the same library (MPI4PY_LIBMPI), or build isthmus against that one"
        )
    return _mpi.table(comm.py2f())
