"""Launch support: the launcher of each MPI family, and the environment variables of programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import layout
from ._names import unknown_name
from .layout import MissingError

# MPI families that scripts/setup_peers installs in .peers. mpich is part of the Python environment.
PEERS = ("openmpi", "impi")
FAMILIES = ("mpich", *PEERS, "system")


@dataclass(frozen=True)
class Launcher:
    """Launcher of an MPI family. Run `command(ranks) + [program, ...]` in `environment()`."""

    family: str
    executable: Path
    libraries: Path | None  # must precede the libraries of other MPI families
    arguments: tuple[str, ...] = field(default=())

    def command(self, ranks: int, *, bind: bool = True) -> list[str]:
        """Returns the command prefix. `bind` binds each rank to its own core, if there are enough cores."""
        if self.family in PEERS:  # the launch scripts of peers bind by the same rule
            return [str(self.executable), str(ranks)]
        cores = sorted(os.sched_getaffinity(0))  # "-bind-to core" would use all cores of the machine
        binding: tuple[str, ...] = ()
        if bind and ranks <= len(cores) and self.family == "mpich":
            binding = ("-bind-to", "user:" + ",".join(map(str, cores[:ranks])))
        return [str(self.executable), *self.arguments, *binding, "-n", str(ranks)]


def launcher(family: str) -> Launcher:
    """Returns the launcher of an MPI family.

    Raises:
        MissingError: the family is not installed.
        ValueError: the family is unknown.
    """
    if family == "mpich":
        folder = layout.environment_folder()
        executable = folder / "bin" / "mpiexec"
        if not executable.is_file():
            raise MissingError(
                f"MPICH is not installed in this Python environment ({executable} does not exist); "
                "run pip install mpich, or start programs with `isthmus run --mpi system`, "
                "which uses the mpiexec in PATH"
            )
        _reject_open_mpi(executable)
        return Launcher(family, executable, folder / "lib")
    if family in PEERS:
        folder = peer_folder(family)
        executable = folder / "launch"
        if not executable.is_file():
            raise MissingError(f"{executable} does not exist; run scripts/setup_peers {family}")
        return Launcher(family, executable, folder / "lib")
    if family == "system":
        # Skip the mpiexec of this Python environment, which can come first in PATH.
        own_folder = str(layout.environment_folder() / "bin")
        path = os.pathsep.join(
            part for part in os.environ.get("PATH", "").split(os.pathsep) if part != own_folder
        )
        executable = shutil.which("mpiexec", path=path)
        if executable is None:
            raise MissingError(
                "no mpiexec in PATH outside of this Python environment; install an MPI, or use --mpi mpich"
            )
        return Launcher(family, Path(executable), None)
    raise ValueError(unknown_name("--mpi", family, FAMILIES))


def peer_folder(family: str) -> Path:
    """Returns the folder of an MPI family installed by scripts/setup_peers. Raises MissingError
    outside a checkout."""
    root = layout.checkout()
    if root is None:
        raise MissingError(
            f"--mpi {family} starts the launcher that scripts/setup_peers installs in a checkout; "
            "use --mpi system for the mpiexec in PATH"
        )
    return root / ".peers" / family


def _reject_open_mpi(executable: Path) -> None:
    """Raises MissingError if the file, which packages of both families install, is that of Open MPI."""
    version = subprocess.run(
        [str(executable), "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    ).stdout
    if "Open MPI" in version or "OpenRTE" in version:  # OpenRTE: Open MPI 4
        shim = layout.library_folder() / "libisthmus_mpi_preload.so"
        raise MissingError(
            f"mpiexec in {executable.parent} is that of Open MPI, not of MPICH; run pip install mpich in "
            f"another environment, or start the program with {executable} -n N env LD_PRELOAD={shim} PROGRAM "
            "(LD_PRELOAD replaces --mpi-shim)"
        )


def ensure_peer_installed(family: str, report_progress: Callable[[str], None]) -> None:
    """Installs a peer MPI if it is missing. Calls `report_progress` before it starts. Raises MissingError."""
    root = layout.checkout()
    if (peer_folder(family) / "peer_mpi").is_file() and (peer_folder(family) / "launch").is_file():
        return
    report_progress(f"installing {family} in .peers/{family} (only once, takes about a minute)")
    completed = subprocess.run(
        [str(root / "scripts" / "setup_peers"), family], capture_output=True, text=True, errors="replace"
    )
    if completed.returncode:
        output_lines = (completed.stderr or completed.stdout).strip().splitlines()
        raise MissingError(output_lines[-1] if output_lines else f"scripts/setup_peers {family} failed")


def sycl_variables() -> dict[str, str]:
    """Returns the variables that expose the CPU device of the SYCL runtime from PyPI, or {} if it
    is not installed."""
    driver = layout.environment_folder() / "lib" / "libintelocl.so"
    if not driver.is_file():
        return {}
    # The .icd files of the wheel contain a placeholder path, so the driver must be named explicitly. The cache
    # stores kernels that the runtime compiles (2 s the first time).
    return {"OCL_ICD_FILENAMES": str(driver), "SYCL_CACHE_PERSISTENT": "1"}


def oversubscription_variables(mpi: Launcher, ranks: int) -> dict[str, str]:
    """Returns variables that let MPICH ranks yield if there are more ranks than cores.

    Without them a waiting rank spins for its whole time slice while the rank it waits for has no core. Other
    families yield by default. Variables that the caller has set are not changed.
    """
    if mpi.family != "mpich" or ranks <= len(os.sched_getaffinity(0)):
        return {}
    throttle = {
        "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
        "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "100",
    }
    return {key: value for key, value in throttle.items() if key not in os.environ}


def variables(mpi: Launcher | None = None, ranks: int = 1) -> dict[str, str]:
    """Returns the additional variables of each rank.

    Variables that the caller has set take precedence, except that folders are prepended to LD_LIBRARY_PATH.
    """
    library_folders = [layout.library_folder(), layout.environment_folder() / "lib"]
    if mpi is not None and mpi.libraries is not None:
        library_folders.insert(0, mpi.libraries)
    paths = list(dict.fromkeys(str(folder) for folder in library_folders))
    previous = os.environ.get("LD_LIBRARY_PATH")
    variables_added = {key: value for key, value in sycl_variables().items() if key not in os.environ}
    variables_added |= oversubscription_variables(mpi, ranks) if mpi is not None else {}
    return variables_added | {"LD_LIBRARY_PATH": os.pathsep.join([*paths, *([previous] if previous else [])])}


def environment(mpi: Launcher | None = None, ranks: int = 1) -> dict[str, str]:
    """Returns the complete environment of a program."""
    return os.environ | variables(mpi, ranks)


def ggml_variables(wire: str) -> dict[str, str]:
    """Returns the variables that make Isthmus reduce the split tensors of a ggml program.

    SYCL and CUDA are not affected, because such programs contain their own. Raises MissingError if the library
    was not built.
    """
    library = layout.library_folder() / "libisthmus_ggml.so"
    if not library.is_file():
        raise MissingError(f"{library} is not built; run make build")
    preloaded = os.environ.get("LD_PRELOAD")
    return {
        "LD_PRELOAD": os.pathsep.join([str(library), *([preloaded] if preloaded else [])]),
        "ISTHMUS_GGML_WIRE": wire,
    }


# MPI family by the name of its library. The preloaded library loads the engine of that family.
_MPI_LIBRARIES = {"libmpi.so.12": "mpich", "libmpich.so.12": "mpich", "libmpi.so.40": "openmpi"}
_MPI_ABI_LIBRARY = "libmpi_abi.so."
SHIM_FAMILIES = {
    "mpich": "the MPICH ABI: MPICH, Intel MPI, MVAPICH, Cray MPI (libmpi.so.12)",
    "openmpi": "Open MPI 4 and 5 (libmpi.so.40)",
    "abi": "the MPI 5 ABI (libmpi_abi.so)",
}


def linked_mpi_family(program: str, environment: dict[str, str]) -> str | None:
    """Returns the MPI family that an executable is linked with.

    Returns None for a script or for a program that loads MPI later. Raises MissingError for an unknown MPI.
    """
    listing = subprocess.run(
        ["ldd", program], env=environment, capture_output=True, text=True, errors="replace"
    )
    names = [line.split()[0] for line in listing.stdout.splitlines() if line.split()]
    for name in names:
        if name.startswith(_MPI_ABI_LIBRARY):
            return "abi"
        if name in _MPI_LIBRARIES:
            return _MPI_LIBRARIES[name]
    unknown = [name for name in names if name.startswith(("libmpi.so", "libmpich", "libmpi_"))]
    if unknown:
        raise MissingError(
            f"{program} is linked with {unknown[0]}, which is not a supported MPI; "
            f"supported: {'; '.join(SHIM_FAMILIES.values())}"
        )
    return None


def launcher_family(mpi: str) -> str | None:
    """Returns the MPI family whose programs the launcher of `--mpi` starts, or None if it is unknown."""
    if mpi != "system":
        return "openmpi" if mpi == "openmpi" else "mpich"
    command = [launcher(mpi).executable, "--version"]
    version = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    text = version.stdout + version.stderr
    if "Open MPI" in text or "OpenRTE" in text:
        return "openmpi"
    return "mpich" if "HYDRA" in text else None


def shim_variables(family: str | None, report: bool) -> dict[str, str]:
    """Returns the variables that make Isthmus replace the MPI collectives of a rank.

    Raises MissingError if the preloaded library, or its engine for this family, was not built.
    """
    library = layout.library_folder() / "libisthmus_mpi_preload.so"
    if not library.is_file():
        raise MissingError(f"{library} is not built; run make build")
    if family and not library.with_name(f"libisthmus_mpi_{family}.so").is_file():
        raise MissingError(
            f"this Isthmus has no engine for {SHIM_FAMILIES[family]}, because it was built without the mpi.h "
            f"of that MPI; install a release wheel, which has all engines, or {_engine_advice(family)}"
        )
    report_variables = {"ISTHMUS_MPI_REPORT": "1"} if report else {}
    return _preload_variables(library) | {"ISTHMUS_MPI_ALL_RANKS": "1"} | report_variables


def _engine_advice(family: str) -> str:
    """Returns the advice that builds Isthmus with the engine of an MPI family."""
    if layout.checkout() is not None:
        setup = "scripts/setup_peers openmpi" if family == "openmpi" else "scripts/setup"
        return f"run {setup}, and run make build again"
    header = "apt-get install libopenmpi-dev" if family == "openmpi" else "pip install mpich"
    return f"run {header}, and build Isthmus again"


def nccl_variables(report: bool) -> dict[str, str]:
    """Returns the variables that make Isthmus replace the NCCL collectives of a program.

    Raises MissingError if the preloaded library was not built.
    """
    library = layout.library_folder() / "libisthmus_nccl_preload.so"
    if not library.is_file():
        raise MissingError(f"{library} is not built; build Isthmus on x86-64")
    return _preload_variables(library) | ({"ISTHMUS_NCCL_REPORT": "1"} if report else {})


def _preload_variables(library: Path) -> dict[str, str]:
    previous = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": os.pathsep.join([str(library), *([previous] if previous else [])])}


def shim_prefix(mpi: str, family: str | None, report: bool) -> list[str]:
    """Returns `shim_variables` as a command prefix of the program, so that the launcher is not affected.

    The launcher of mpich also hands them to processes that the program spawns.
    """
    variables_added = shim_variables(family, report)
    if mpi == "mpich":
        return [word for name, value in variables_added.items() for word in ("-genv", name, value)]
    if mpi == "openmpi":
        return [word for name, value in variables_added.items() for word in ("-x", f"{name}={value}")]
    return ["env", *(f"{name}={value}" for name, value in variables_added.items())]
