"""What `isthmus doctor` tries, each in a process of its own: `python -m isthmus.cli.checks NAME`.

A check returns what it found, or raises MissingError (it is not here) or CheckError (with what to do). The last
line on standard output is the result. Nothing of it is run in the doctor's own process: it may hang or crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Error
from ..layout import MissingError
from .isolation import RESULT_PREFIX, CHECK_MODULE

_MIB = 1 << 20
_TIMEOUT_S = 20.0  # of one rank for another: below the doctor's own limit, so that the error is the core's
_COUNTS = (16, 300_000)  # a message of a cache line, and one that travels in pieces
_SHM_VARIABLE = "ISTHMUS_DOCTOR_SHM"  # another folder than /dev/shm, for tests


class CheckError(Exception):
    """It is there and does not work."""

    def __init__(self, details: str, hint: str = "") -> None:
        super().__init__(details)
        self.hint = hint


# ---- one process ------------------------------------------------------------------------------------------


def package() -> str:
    """The library loads and is the package's own."""
    import isthmus
    from isthmus import layout

    return f"Isthmus {isthmus.__version__} in {layout.build_folder() or layout.library_folder()}"


def configuration() -> str:
    """Configuration files, environment and profile can be read. The only check that reads the user's own."""
    core = _communicator_info()
    files = ", ".join(core["config_files"]) or "no configuration file"
    profile = core["profile_path"]
    return f"{files}; {profile if profile and Path(profile).is_file() else 'no profile of this machine'}"


def plugins() -> str:
    """Every plug-in in the library's folder and in ISTHMUS_PLUGIN_PATH loads."""
    # what could not be loaded has no description: nobody could ask it
    plugin_entries = [entry for entry in _communicator_info()["backends"] if entry["source"] != "built-in"]
    broken = [entry for entry in plugin_entries if not entry["description"] and not entry["available"]]
    if broken:
        raise CheckError(
            "; ".join(entry["reason"] for entry in broken),
            "remove the file from ISTHMUS_PLUGIN_PATH, or rebuild it against the headers of this version",
        )
    if not plugin_entries:
        raise MissingError("no plug-ins in the library's folder or in ISTHMUS_PLUGIN_PATH")
    return ", ".join(entry["name"] for entry in plugin_entries)


def shared_memory() -> str:
    """Segments can be made and filled, and /dev/shm, which MPI and NCCL use, has room."""
    needed_bytes = 32 * _MIB
    try:
        with open(os.memfd_create("isthmus-doctor"), "r+b") as segment:
            segment.truncate(needed_bytes)
            block = bytes(range(256)) * (_MIB // 256)
            for _ in range(needed_bytes // _MIB):
                segment.write(block)
            segment.seek(needed_bytes - _MIB)
            if segment.read(_MIB) != block:
                raise CheckError(
                    "a segment of shared memory does not hold what was written to it", "check the memory"
                )
    except OSError as failure:
        raise CheckError(
            f"a segment of {needed_bytes // _MIB} MiB cannot be made: {failure.strerror}",
            "raise the limits of memory and file size (ulimit -f unlimited; the container's memory limit)",
        ) from None
    folder = os.environ.get(_SHM_VARIABLE, "/dev/shm")
    if not os.path.isdir(folder):
        raise CheckError(
            f"{folder} does not exist", "mount a tmpfs there: MPI and NCCL need it (Isthmus does not)"
        )
    filesystem = os.statvfs(folder)
    free_bytes, size = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    if free_bytes < needed_bytes:
        raise CheckError(
            f"{folder} has {free_bytes // _MIB} of {size // _MIB} MiB free: MPI and NCCL need more",
            f"delete what ended programs left in {folder}, or give the container more: --shm-size=1g",
        )
    return f"a segment of {needed_bytes // _MIB} MiB; {folder} has {free_bytes // _MIB} of {size // _MIB} MiB free"


def sycl() -> str:
    """A SYCL device is there."""
    from .. import layout
    from .info import sycl_devices

    layout.program("sycl_devices")  # raises MissingError where it was not built
    report = sycl_devices()
    if not report["devices"]:
        raise CheckError(
            report["reason"] or "the SYCL runtime finds no device",
            "pip install dpcpp-cpp-rt, start programs by `isthmus run`, which names the CPU's driver in "
            "OCL_ICD_FILENAMES, and leave ONEAPI_DEVICE_SELECTOR unset",
        )
    return ", ".join(device["name"] for device in report["devices"])


def _communicator_info() -> dict[str, Any]:
    from ..communicator import Communicator

    with Communicator.create_all(1)[0] as communicator:
        return communicator.info()


# ---- several ranks ----------------------------------------------------------------------------------------


def ranks() -> str:
    """Two processes meet by a unique id and sum through shared memory."""
    from ..communicator import UniqueId

    unique_id = UniqueId.create()
    command = [sys.executable, "-m", CHECK_MODULE, "--meet"]
    other = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    other.stdin.write(unique_id.hex() + "\n")  # not an argument: others can read those, and the id is a secret
    other.stdin.flush()
    try:
        path = _run_two_ranks(unique_id, 0)
    except Error as failure:
        other.kill()
        output = other.communicate()[1].strip().splitlines()
        raise CheckError(
            failure.message + (f"; the other process said: {output[-1]}" if output else ""),
            failure.hint or "a firewall or sandbox must let processes of this machine connect to 127.0.0.1",
        ) from None
    output = other.communicate(timeout=_TIMEOUT_S)[1]
    if other.returncode:
        raise CheckError(f"the second process ended with {other.returncode}: {output.strip()[-300:]}")
    return f"two processes, allreduce by {path}"


def _run_two_ranks(unique_id: bytes, rank: int) -> str:
    from ..communicator import Communicator

    with Communicator.from_unique_id(unique_id, rank, 2, timeout=_TIMEOUT_S) as communicator:
        return _check_allreduce(communicator)


def backends() -> str:
    """Every backend that serves host memory sums right, between two ranks of one process (MPI: below)."""
    from ..communicator import Communicator

    paths = []
    for backend in _communicator_info()["backends"]:
        if not backend["available"]:
            continue
        _force_backend(backend["name"])
        communicators = Communicator.create_all(2, timeout=_TIMEOUT_S)
        paths.append(_run_on_all_ranks(communicators, _check_allreduce)[0])
        for entry in communicators:
            entry.close()
    return "allreduce by " + ", ".join(paths)


def _force_backend(backend: str) -> None:
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce use={backend}"


def _check_allreduce(communicator: Any, to_device: Callable[[np.ndarray], Any] = np.array) -> str:
    """Random whole numbers, so that the sum is exact, of each size; gives the last path. Raises CheckError."""
    for count in _COUNTS:
        parts = (
            np.random.default_rng(count).integers(-1000, 1000, (communicator.size, count)).astype(np.float32)
        )
        send, result = to_device(parts[communicator.rank]), to_device(np.full(count, np.nan, np.float32))
        communicator.allreduce(send, result)
        actual = result if isinstance(result, np.ndarray) else result.cpu().numpy()
        wrong_count = int((actual != parts.sum(0)).sum())
        explanation = communicator.explain("allreduce", count=count)
        path = ":".join(part for part in (explanation["backend"], explanation.get("algorithm")) if part)
        if wrong_count:
            raise CheckError(
                f"an allreduce of {count} float32 by {path} gave {wrong_count} wrong elements",
                "report it, with the output of `isthmus info --json`; `isthmus explain` shows other paths",
            )
    return path


def _run_on_all_ranks(communicators: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Every rank in a thread of its own; raises the first failure."""
    results: list[Any] = [None] * len(communicators)
    failures: list[BaseException] = []

    def run_rank(index: int) -> None:
        try:
            results[index] = work(communicators[index])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run_rank, args=(index,)) for index in range(len(communicators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def mpi() -> str:
    """Two ranks under the MPI that the package was built with; which other families are there."""
    from .. import launch

    launcher = launch.launcher("mpich")
    command = [*launcher.command(2, bind=False), sys.executable, "-m", CHECK_MODULE, "--mpi-rank"]
    completed = subprocess.run(
        command,
        env=launch.environment(launcher, 2),
        capture_output=True,
        text=True,
        timeout=2 * _TIMEOUT_S,
        check=False,
    )
    lines = [line for line in completed.stdout.splitlines() if line.startswith(RESULT_PREFIX)]
    if completed.returncode or not lines:
        output = [line for line in (completed.stderr or completed.stdout).splitlines() if line.strip()] or ["silent"]
        raise CheckError(
            f"two ranks under {launcher.executable} ended with {completed.returncode}: {output[-1]}",
            "try `mpiexec -n 2 hostname`; FI_PROVIDER=tcp where the network's library fails; pip install mpich",
        )
    other_families = [family for family in launch.FAMILIES if family != "mpich" and _is_installed(family)]
    return f"{json.loads(lines[0][len(RESULT_PREFIX) :])}; other families: {', '.join(other_families) or 'none'}"


def _is_installed(family: str) -> bool:
    from .. import launch

    try:
        launch.launcher(family)
    except MissingError:
        return False
    return True


def _mpi_rank() -> None:
    from ..communicator import Communicator

    _force_backend("mpi")
    with Communicator.from_mpi(timeout=_TIMEOUT_S) as communicator:
        path = _check_allreduce(communicator)
        library = next(entry for entry in communicator.info()["backends"] if entry["name"] == "mpi")["version"]
        if communicator.rank == 0:
            print(RESULT_PREFIX + json.dumps(f"{library}, two processes, allreduce by {path}".lstrip(", ")), flush=True)


# ---- devices and PyTorch ----------------------------------------------------------------------------------


def gpus() -> str:
    """The driver's devices, the backends that serve them together (or why not), an allreduce by each."""
    from .gpus import describe

    report = describe(_TIMEOUT_S)
    if not report["devices"]:
        raise MissingError(report["reason"])
    usable = [name for name, reason in report["backends"].items() if not reason]
    missing = [f"{name}: {reason}" for name, reason in report["backends"].items() if reason]
    explanation = f"{', '.join(report['devices'])}; {'; '.join(missing)}"
    if not usable:
        raise CheckError(
            explanation, "install NCCL (pip install nvidia-nccl-cu13), or name it in ISTHMUS_NCCL_LIBRARY"
        )
    return f"{explanation}; {_device_sums(report['devices'], usable)}"


def _device_sums(devices: list[str], usable: list[str]) -> str:
    from ..communicator import Communicator

    try:
        import torch
    except ModuleNotFoundError:
        return f"{', '.join(usable)} not tried: no PyTorch to put data on the devices"
    paths = []
    for backend in usable:
        _force_backend(backend)
        communicators = Communicator.create_all(devices, timeout=_TIMEOUT_S)

        def check_on_device(communicator: Any) -> str:
            device = torch.device("cuda", communicator.device.ordinal)
            torch.cuda.set_device(device)
            path = _check_allreduce(communicator, lambda values: torch.from_numpy(values.copy()).to(device))
            torch.cuda.synchronize(device)
            return path

        paths.append(_run_on_all_ranks(communicators, check_on_device)[0])
        for entry in communicators:
            entry.close()
    return "allreduce by " + ", ".join(paths)


def pytorch() -> str:
    """The extension imports for the PyTorch that is there, and a group of one sums."""
    try:
        import torch
    except ModuleNotFoundError as failure:
        if failure.name != "torch":
            raise
        raise MissingError(f"{sys.executable} has no PyTorch") from None
    except ImportError as failure:
        raise CheckError(
            f"PyTorch cannot be imported: {failure}", "install it anew: pip install torch"
        ) from None
    try:
        import isthmus.torch
    except ImportError as failure:
        raise CheckError(str(failure)) from None
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("cpu:isthmus", f"file://{folder}/store", rank=0, world_size=1)
        torch.distributed.all_reduce(torch.ones(4))
        path = isthmus.torch.report()[0].path
        torch.distributed.destroy_process_group()
    return f"PyTorch {torch.__version__}, all_reduce by {path}"


CHECKS: dict[str, Callable[[], str]] = {
    "package": package,
    "configuration": configuration,
    "plug-ins": plugins,
    "shared memory": shared_memory,
    "ranks": ranks,
    "backends": backends,
    "mpi": mpi,
    "gpus": gpus,
    "pytorch": pytorch,
    "sycl": sycl,
}


def run_check(check: Callable[[], str]) -> dict[str, str]:
    """result ("ok", "failed", "not here"), what was found and what to do."""
    try:
        return {"result": "ok", "details": check(), "hint": ""}
    except MissingError as missing:
        return {"result": "not here", "details": str(missing), "hint": ""}
    except CheckError as failure:
        return {"result": "failed", "details": str(failure), "hint": failure.hint}
    except Error as failure:
        return {"result": "failed", "details": failure.message, "hint": failure.hint}
    except Exception as failure:
        return {"result": "failed", "details": f"{type(failure).__name__}: {failure}", "hint": ""}


def _main(name: str) -> None:
    if name == "--meet":
        _run_two_ranks(bytes.fromhex(sys.stdin.readline().strip()), 1)
    elif name == "--mpi-rank":
        _mpi_rank()
    elif name == "--gpus":
        from .gpus import describe

        print(RESULT_PREFIX + json.dumps(describe(_TIMEOUT_S)), flush=True)
    else:
        print(RESULT_PREFIX + json.dumps(run_check(CHECKS[name])), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
