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
from .children import MARK, MODULE

_MIB = 1 << 20
_WAIT_S = 20.0  # of one rank for another: below the doctor's own limit, so that the error is the core's
_COUNTS = (16, 300_000)  # a message of a cache line, and one that travels in pieces
_SHM_VARIABLE = "ISTHMUS_DOCTOR_SHM"  # another folder than /dev/shm, for tests


class CheckError(Exception):
    """It is there and does not work."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.advice = advice


# ---- one process ------------------------------------------------------------------------------------------


def package() -> str:
    """The library loads and is the package's own."""
    import isthmus
    from isthmus import layout

    return f"Isthmus {isthmus.__version__} in {layout.build_folder() or layout.library_folder()}"


def configuration() -> str:
    """Configuration files, environment and profile can be read. The only check that reads the user's own."""
    core = _core_info()
    files = ", ".join(core["config_files"]) or "no configuration file"
    profile = core["profile_path"]
    return f"{files}; {profile if profile and Path(profile).is_file() else 'no profile of this machine'}"


def plugins() -> str:
    """Every plug-in in the library's folder and in ISTHMUS_PLUGIN_PATH loads."""
    # what could not be loaded has no description: nobody could ask it
    listed = [each for each in _core_info()["backends"] if each["source"] != "built-in"]
    broken = [each for each in listed if not each["description"] and not each["available"]]
    if broken:
        raise CheckError(
            "; ".join(each["reason"] for each in broken),
            "remove the file from ISTHMUS_PLUGIN_PATH, or rebuild it against the headers of this version",
        )
    if not listed:
        raise MissingError("no plug-ins in the library's folder or in ISTHMUS_PLUGIN_PATH")
    return ", ".join(each["name"] for each in listed)


def shared_memory() -> str:
    """Segments can be made and filled, and /dev/shm, which MPI and NCCL use, has room."""
    needed = 32 * _MIB
    try:
        with open(os.memfd_create("isthmus-doctor"), "r+b") as segment:
            segment.truncate(needed)
            block = bytes(range(256)) * (_MIB // 256)
            for _ in range(needed // _MIB):
                segment.write(block)
            segment.seek(needed - _MIB)
            if segment.read(_MIB) != block:
                raise CheckError(
                    "a segment of shared memory does not hold what was written to it", "check the memory"
                )
    except OSError as failure:
        raise CheckError(
            f"a segment of {needed // _MIB} MiB cannot be made: {failure.strerror}",
            "raise the limits of memory and file size (ulimit -f unlimited; the container's memory limit)",
        ) from None
    folder = os.environ.get(_SHM_VARIABLE, "/dev/shm")
    if not os.path.isdir(folder):
        raise CheckError(
            f"{folder} does not exist", "mount a tmpfs there: MPI and NCCL need it (Isthmus does not)"
        )
    room = os.statvfs(folder)
    free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    if free < needed:
        raise CheckError(
            f"{folder} has {free // _MIB} of {size // _MIB} MiB free: MPI and NCCL need more",
            f"delete what ended programs left in {folder}, or give the container more: --shm-size=1g",
        )
    return f"a segment of {needed // _MIB} MiB; {folder} has {free // _MIB} of {size // _MIB} MiB free"


def sycl() -> str:
    """A SYCL device is there."""
    from .. import layout
    from .info import sycl_devices

    layout.program("sycl_devices")  # raises MissingError where it was not built
    found = sycl_devices()
    if not found["devices"]:
        raise CheckError(
            found["reason"] or "the SYCL runtime finds no device",
            "pip install dpcpp-cpp-rt, start programs by `isthmus run`, which names the CPU's driver in "
            "OCL_ICD_FILENAMES, and leave ONEAPI_DEVICE_SELECTOR unset",
        )
    return ", ".join(device["name"] for device in found["devices"])


def _core_info() -> dict[str, Any]:
    from ..communicator import Communicator

    with Communicator.all(1)[0] as communicator:
        return communicator.info()


# ---- several ranks ----------------------------------------------------------------------------------------


def ranks() -> str:
    """Two processes meet by a unique id and sum through shared memory."""
    from ..communicator import UniqueId

    id = UniqueId.create()
    command = [sys.executable, "-m", MODULE, "--meet"]
    other = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    other.stdin.write(id.hex() + "\n")  # not an argument: others can read those, and the id is a secret
    other.stdin.flush()
    try:
        path = _meet(id, 0)
    except Error as failure:
        other.kill()
        said = other.communicate()[1].strip().splitlines()
        raise CheckError(
            failure.message + (f"; the other process said: {said[-1]}" if said else ""),
            failure.hint or "a firewall or sandbox must let processes of this machine connect to 127.0.0.1",
        ) from None
    said = other.communicate(timeout=_WAIT_S)[1]
    if other.returncode:
        raise CheckError(f"the second process ended with {other.returncode}: {said.strip()[-300:]}")
    return f"two processes, allreduce by {path}"


def _meet(id: bytes, rank: int) -> str:
    from ..communicator import Communicator

    with Communicator.from_unique_id(id, rank, 2, timeout=_WAIT_S) as communicator:
        return _sums(communicator)


def backends() -> str:
    """Every backend that serves host memory sums right, between two ranks of one process (MPI: below)."""
    from ..communicator import Communicator

    taken = []
    for backend in _core_info()["backends"]:
        if not backend["available"]:
            continue
        _force(backend["name"])
        communicators = Communicator.all(2, timeout=_WAIT_S)
        taken.append(_on_all(communicators, _sums)[0])
        for each in communicators:
            each.close()
    return "allreduce by " + ", ".join(taken)


def _force(backend: str) -> None:
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce use={backend}"


def _sums(communicator: Any, place: Callable[[np.ndarray], Any] = np.array) -> str:
    """Random whole numbers, so that the sum is exact, of each size; gives the last path. Raises CheckError."""
    for count in _COUNTS:
        parts = (
            np.random.default_rng(count).integers(-1000, 1000, (communicator.size, count)).astype(np.float32)
        )
        send, result = place(parts[communicator.rank]), place(np.full(count, np.nan, np.float32))
        communicator.allreduce(send, result)
        got = result if isinstance(result, np.ndarray) else result.cpu().numpy()
        wrong = int((got != parts.sum(0)).sum())
        told = communicator.explain("allreduce", count=count)
        path = ":".join(part for part in (told["backend"], told.get("algorithm")) if part)
        if wrong:
            raise CheckError(
                f"an allreduce of {count} float32 by {path} gave {wrong} wrong elements",
                "report it, with the output of `isthmus info --json`; `isthmus explain` shows other paths",
            )
    return path


def _on_all(communicators: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Every rank in a thread of its own; raises the first failure."""
    results: list[Any] = [None] * len(communicators)
    failures: list[BaseException] = []

    def body(index: int) -> None:
        try:
            results[index] = work(communicators[index])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=body, args=(index,)) for index in range(len(communicators))]
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
    command = [*launcher.command(2, bind=False), sys.executable, "-m", MODULE, "--mpi-rank"]
    completed = subprocess.run(
        command,
        env=launch.environment(launcher, 2),
        capture_output=True,
        text=True,
        timeout=2 * _WAIT_S,
        check=False,
    )
    lines = [line for line in completed.stdout.splitlines() if line.startswith(MARK)]
    if completed.returncode or not lines:
        said = [line for line in (completed.stderr or completed.stdout).splitlines() if line.strip()] or ["silent"]
        raise CheckError(
            f"two ranks under {launcher.executable} ended with {completed.returncode}: {said[-1]}",
            "try `mpiexec -n 2 hostname`; FI_PROVIDER=tcp where the network's library fails; pip install mpich",
        )
    others = [family for family in launch.FAMILIES if family != "mpich" and _has(family)]
    return f"{json.loads(lines[0][len(MARK) :])}; other families: {', '.join(others) or 'none'}"


def _has(family: str) -> bool:
    from .. import launch

    try:
        launch.launcher(family)
    except MissingError:
        return False
    return True


def _mpi_rank() -> None:
    from ..communicator import Communicator

    _force("mpi")
    with Communicator.from_mpi(timeout=_WAIT_S) as communicator:
        path = _sums(communicator)
        library = next(each for each in communicator.info()["backends"] if each["name"] == "mpi")["version"]
        if communicator.rank == 0:
            print(MARK + json.dumps(f"{library}, two processes, allreduce by {path}".lstrip(", ")), flush=True)


# ---- devices and PyTorch ----------------------------------------------------------------------------------


def gpus() -> str:
    """The driver's devices, the backends that serve them together (or why not), an allreduce by each."""
    from .gpus import described

    found = described(_WAIT_S)
    if not found["devices"]:
        raise MissingError(found["reason"])
    usable = [name for name, reason in found["backends"].items() if not reason]
    missing = [f"{name}: {reason}" for name, reason in found["backends"].items() if reason]
    told = f"{', '.join(found['devices'])}; {'; '.join(missing)}"
    if not usable:
        raise CheckError(
            told, "install NCCL (pip install nvidia-nccl-cu13), or name it in ISTHMUS_NCCL_LIBRARY"
        )
    return f"{told}; {_device_sums(found['devices'], usable)}"


def _device_sums(devices: list[str], usable: list[str]) -> str:
    from ..communicator import Communicator

    try:
        import torch
    except ModuleNotFoundError:
        return f"{', '.join(usable)} not tried: no PyTorch to put data on the devices"
    taken = []
    for backend in usable:
        _force(backend)
        communicators = Communicator.all(devices, timeout=_WAIT_S)

        def sums(communicator: Any) -> str:
            device = torch.device("cuda", communicator.device.ordinal)
            torch.cuda.set_device(device)
            path = _sums(communicator, lambda array: torch.from_numpy(array.copy()).to(device))
            torch.cuda.synchronize(device)
            return path

        taken.append(_on_all(communicators, sums)[0])
        for each in communicators:
            each.close()
    return "allreduce by " + ", ".join(taken)


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


def outcome(check: Callable[[], str]) -> dict[str, str]:
    """result ("ok", "failed", "not here"), what was found and what to do."""
    try:
        return {"result": "ok", "what": check(), "advice": ""}
    except MissingError as absent:
        return {"result": "not here", "what": str(absent), "advice": ""}
    except CheckError as failure:
        return {"result": "failed", "what": str(failure), "advice": failure.advice}
    except Error as failure:
        return {"result": "failed", "what": failure.message, "advice": failure.hint}
    except Exception as failure:
        return {"result": "failed", "what": f"{type(failure).__name__}: {failure}", "advice": ""}


def _main(name: str) -> None:
    if name == "--meet":
        _meet(bytes.fromhex(sys.stdin.readline().strip()), 1)
    elif name == "--mpi-rank":
        _mpi_rank()
    elif name == "--gpus":
        from .gpus import described

        print(MARK + json.dumps(described(_WAIT_S)), flush=True)
    else:
        print(MARK + json.dumps(outcome(CHECKS[name])), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
