"""Starting programs of several ranks: the launcher of each MPI, and the environment that SYCL needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from . import layout
from .layout import MissingError

# MPI families that scripts/setup_peers installs under .peers; mpich is in the environment itself.
PEERS = ("openmpi", "impi")
FAMILIES = ("mpich", *PEERS, "system")


@dataclass(frozen=True)
class Launcher:
    """How to start `ranks` ranks of a program: `command(ranks) + [program, ...]`, in `environment()`."""

    family: str
    executable: Path
    libraries: Path | None  # must be found before the libraries of other MPI families
    arguments: tuple[str, ...] = field(default=())

    def command(self, ranks: int, *, bind: bool = True) -> list[str]:
        """The words before the program. `bind` puts each rank on a core of its own, if there are enough."""
        if self.family in PEERS:  # their launch scripts bind by the same rule
            return [str(self.executable), str(ranks)]
        has_enough_cores = bind and ranks <= len(os.sched_getaffinity(0))
        binding = ("-bind-to", "core") if has_enough_cores and self.family == "mpich" else ()
        return [str(self.executable), *self.arguments, *binding, "-n", str(ranks)]


def launcher(family: str) -> Launcher:
    """The launcher of an MPI family. Raises MissingError when it is not installed, ValueError when unknown."""
    if family == "mpich":
        folder = layout.environment_folder()
        return Launcher(family, _existing(folder / "bin" / "mpiexec", "pip install mpich"), folder / "lib")
    if family in PEERS:
        folder = peer_folder(family)
        return Launcher(
            family, _existing(folder / "launch", f"run scripts/setup_peers {family}"), folder / "lib"
        )
    if family == "system":
        # The environment's own mpiexec may stand first in PATH; the system's is meant.
        own_folder = str(layout.environment_folder() / "bin")
        path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != own_folder)
        executable = shutil.which("mpiexec", path=path)
        if executable is None:
            raise MissingError("no mpiexec in PATH; install an MPI, or use --mpi mpich")
        return Launcher(family, Path(executable), None)
    raise ValueError(f"--mpi {family!r} is unknown; allowed: {', '.join(FAMILIES)}")


def peer_folder(family: str) -> Path:
    """Where scripts/setup_peers puts an MPI family. Raises MissingError outside of a checkout."""
    root = layout.checkout()
    if root is None:
        raise MissingError(f"{family} is set up by scripts/setup_peers, which needs a checkout")
    return root / ".peers" / family


def _existing(path: Path, hint: str) -> Path:
    if not path.is_file():
        raise MissingError(f"{path} does not exist; {hint}")
    return path


def ensure_peer_installed(family: str, report_progress) -> None:
    """Installs a peer MPI when it is asked for and absent; `announce` is told first. Raises MissingError."""
    root = layout.checkout()
    if (peer_folder(family) / "peer_mpi").is_file() and (peer_folder(family) / "launch").is_file():
        return
    report_progress(f"setting up {family} in .peers/{family} (once, a minute)")
    completed = subprocess.run([str(root / "scripts" / "setup_peers"), family], capture_output=True, text=True)
    if completed.returncode:
        output_lines = (completed.stderr or completed.stdout).strip().splitlines()
        raise MissingError(output_lines[-1] if output_lines else f"scripts/setup_peers {family} failed")


def sycl_variables() -> dict[str, str]:
    """What a SYCL program needs to see the CPU device of the PyPI runtime; {} when it is not installed."""
    driver = layout.environment_folder() / "lib" / "libintelocl.so"
    if not driver.is_file():
        return {}
    # The wheel's own .icd files hold a placeholder path, so the driver must be named. The cache keeps
    # kernels that the runtime compiler built (2 s the first time).
    return {"OCL_ICD_FILENAMES": str(driver), "SYCL_CACHE_PERSISTENT": "1"}


def oversubscription_variables(mpi: Launcher, ranks: int) -> dict[str, str]:
    """What lets MPICH's ranks give way to each other where they outnumber the cores: without it a waiting rank
    spins through its whole time slice while the one it waits for has no core. The other families see to it
    themselves. Values of the caller stand."""
    if mpi.family != "mpich" or ranks <= len(os.sched_getaffinity(0)):
        return {}
    throttle = {
        "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
        "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "100",
    }
    return {key: value for key, value in throttle.items() if key not in os.environ}


def variables(mpi: Launcher | None = None, ranks: int = 1) -> dict[str, str]:
    """The variables that each of the started ranks gets beside the caller's. The caller's own values win,
    except that the folders of LD_LIBRARY_PATH are put before them."""
    library_folders = [layout.library_folder(), layout.environment_folder() / "lib"]
    if mpi is not None and mpi.libraries is not None:
        library_folders.insert(0, mpi.libraries)
    paths = list(dict.fromkeys(str(folder) for folder in library_folders))
    previous = os.environ.get("LD_LIBRARY_PATH")
    variables_added = {key: value for key, value in sycl_variables().items() if key not in os.environ}
    variables_added |= oversubscription_variables(mpi, ranks) if mpi is not None else {}
    return variables_added | {"LD_LIBRARY_PATH": os.pathsep.join([*paths, *([previous] if previous else [])])}


def environment(mpi: Launcher | None = None, ranks: int = 1) -> dict[str, str]:
    """The whole environment of a started program."""
    return os.environ | variables(mpi, ranks)


def ggml_variables(wire: str) -> dict[str, str]:
    """What a program that uses ggml needs so that Isthmus sums its split tensors. Nothing else is changed: such
    programs bring their own SYCL or CUDA. Raises MissingError where the library was not built."""
    library = layout.library_folder() / "libisthmus_ggml.so"
    if not library.is_file():
        raise MissingError(f"{library} is not built; run make build")
    preloaded = os.environ.get("LD_PRELOAD")
    return {
        "LD_PRELOAD": os.pathsep.join([str(library), *([preloaded] if preloaded else [])]),
        "ISTHMUS_GGML_WIRE": wire,
    }


# What the dynamic loader calls each family's library, and whose engine the preloaded library opens for it.
_MPI_LIBRARIES = {"libmpi.so.12": "mpich", "libmpich.so.12": "mpich", "libmpi.so.40": "openmpi"}
_MPI_ABI_LIBRARY = "libmpi_abi.so."
SHIM_FAMILIES = {
    "mpich": "the MPICH ABI: MPICH, Intel MPI, MVAPICH, Cray MPI (libmpi.so.12)",
    "openmpi": "Open MPI 4 and 5 (libmpi.so.40)",
    "abi": "the MPI 5 ABI (libmpi_abi.so)",
}


def linked_mpi_family(program: str, environment: dict[str, str]) -> str | None:
    """The MPI family that an executable is linked with; None where it is linked with none (a script, or a
    program that loads MPI later). Raises MissingError for an MPI of no known family."""
    listing = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True)
    names = [line.split()[0] for line in listing.stdout.splitlines() if line.split()]
    for name in names:
        if name.startswith(_MPI_ABI_LIBRARY):
            return "abi"
        if name in _MPI_LIBRARIES:
            return _MPI_LIBRARIES[name]
    unknown = [name for name in names if name.startswith(("libmpi.so", "libmpich", "libmpi_"))]
    if unknown:
        raise MissingError(
            f"{program} is linked with {unknown[0]}, an MPI of no known family; "
            f"known: {'; '.join(SHIM_FAMILIES.values())}"
        )
    return None


def shim_variables(family: str | None, report: bool) -> dict[str, str]:
    """What ranks need so that Isthmus takes their MPI collectives over. Raises MissingError where the preloaded
    library, or its engine for this family, was not built."""
    library = layout.library_folder() / "libisthmus_mpi_preload.so"
    for required_file in (library, *([library.with_name(f"libisthmus_mpi_{family}.so")] if family else [])):
        if not required_file.is_file():
            raise MissingError(
                f"{required_file} is not built; run make build (for Open MPI scripts/setup_peers openmpi first)"
            )
    return _preloaded(library) | ({"ISTHMUS_MPI_REPORT": "1"} if report else {})


def nccl_variables(report: bool) -> dict[str, str]:
    """What a program needs so that Isthmus takes its NCCL collectives over. Raises MissingError where the
    preloaded library was not built."""
    library = layout.library_folder() / "libisthmus_nccl_preload.so"
    if not library.is_file():
        raise MissingError(f"{library} is not built; it is for x86-64")
    return _preloaded(library) | ({"ISTHMUS_NCCL_REPORT": "1"} if report else {})


def _preloaded(library: Path) -> dict[str, str]:
    previous = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": os.pathsep.join([str(library), *([previous] if previous else [])])}


def shim_prefix(family: str | None, report: bool) -> list[str]:
    """The same as what stands before the program on each rank, so that the launcher itself stays as it is."""
    return ["env", *(f"{name}={value}" for name, value in shim_variables(family, report).items())]
