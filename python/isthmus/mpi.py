"""MPI support: the function table of the MPI library that this process uses."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from mpi4py import MPI


def _finalize() -> None:
    """Finalizes MPI. MPI waits for all ranks, so the wait is limited if a rank was lost."""
    from . import _mpi

    sys.stdout.flush()
    sys.stderr.flush()
    _mpi.finalize(limit_s=5.0 if errors.ranks_were_lost() else 0.0)


def function_table(comm: MPI.Comm | None) -> Any:
    """Returns the table for `comm`, an mpi4py communicator, or for MPI_COMM_WORLD if it is None.

    The functions come from `isthmus._mpi`, which is compiled for one MPI. An MPI communicator is valid only in
    the library that created it, so mpi4py must use the same library.

    Raises:
        RuntimeError: Isthmus was built without MPI, there is no MPI library, or mpi4py uses another one.
        TypeError: `comm` is not an mpi4py communicator.
        isthmus.Error: `comm` is MPI.COMM_NULL or an intercommunicator.
    """
    try:
        from . import _mpi
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"isthmus was built without MPI: {error}; install mpich in the environment and rebuild "
            "(make build, or pip install . --no-build-isolation)"
        ) from error
    except ImportError as error:
        raise RuntimeError(f"the MPI library was not found: {error}; run: pip install mpich") from error
    if comm is None:
        if _mpi.initialize():
            atexit.register(_finalize)
        return _mpi.world_table()
    from mpi4py import MPI

    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"comm is a {type(comm).__name__}, must be an mpi4py communicator or None")
    mpi4py_version, own_version = MPI.Get_library_version(), _mpi.library_version()
    if mpi4py_version != own_version or not _mpi.is_initialized():
        raise RuntimeError(
            f"mpi4py uses {mpi4py_version.splitlines()[0]}, "
            f"but isthmus was built with {own_version.splitlines()[0]}; "
            "load the same library in mpi4py (MPI4PY_LIBMPI), or build isthmus with the MPI of mpi4py"
        )
    return _mpi.table(comm.py2f())
