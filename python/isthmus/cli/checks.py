"""Checks of `isthmus doctor`. Each check runs in its own process: `python -m isthmus.cli.checks NAME`.

A check returns its findings, or raises MissingError (not available), UntestedError, or CheckError (failure,
with a hint).
The last line on standard output is the result. A check can hang or crash, so it never runs in the process
of the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import Error
from ..layout import MissingError, missing_torch
from .isolation import CHECK_MODULE, RESULT_PREFIX
from .profile import core_info, describe_profile, profile_mismatch

_MIB = 1 << 20
_TIMEOUT_S = 20.0  # timeout of the core; shorter than the limit of a check, so that the core reports the error
_COUNTS = (16, 300_000)  # a message that fits in a cache line, and a message that is split into chunks
_SHM_VARIABLE = "ISTHMUS_DOCTOR_SHM"  # replaces /dev/shm in tests


class CheckError(Exception):
    """The checked component is installed but does not work."""

    def __init__(self, details: str, hint: str = "") -> None:
        super().__init__(details)
        self.hint = hint


class UntestedError(Exception):
    """This installation cannot test the component. The message says what the user can do."""


# ---- one process ------------------------------------------------------------------------------------------


def package() -> str:
    """Checks that the library of the package loads."""
    import isthmus
    from isthmus import layout

    return f"Isthmus {isthmus.__version__} in {layout.build_folder() or layout.library_folder()}"


def configuration() -> str:
    """Checks that configuration files, environment and profile are valid, and that the profile fits."""
    core = core_info()
    profile = core["profile"]["file"]
    files = ", ".join(file for file in core["config_files"] if file != profile) or "no configuration file"
    details = f"{files}; {describe_profile(core)}"
    if mismatch := profile_mismatch(core):
        raise CheckError(details, mismatch)
    return details


def plugins() -> str:
    """Checks that all plugins in the library folder and in ISTHMUS_PLUGIN_PATH load."""
    # A plugin that did not load has no description.
    plugin_entries = [entry for entry in core_info()["backends"] if entry["source"] != "built-in"]
    broken = [entry for entry in plugin_entries if not entry["description"] and entry["state"] == "unavailable"]
    if broken:
        raise CheckError(
            "; ".join(entry["reason"] for entry in broken),
            "correct what each reason names, or remove the file from ISTHMUS_PLUGIN_PATH",
        )
    if not plugin_entries:
        raise MissingError("no plugins in the library folder or in ISTHMUS_PLUGIN_PATH")
    return ", ".join(entry["name"] for entry in plugin_entries)


def shared_memory() -> str:
    """Checks that segments can be created and filled, and that /dev/shm has space for MPI and NCCL."""
    required_bytes = 32 * _MIB
    try:
        with open(os.memfd_create("isthmus-doctor"), "r+b") as segment:
            segment.truncate(required_bytes)
            block = bytes(range(256)) * (_MIB // 256)
            for _ in range(required_bytes // _MIB):
                segment.write(block)
            segment.seek(required_bytes - _MIB)
            if segment.read(_MIB) != block:
                raise CheckError(
                    "a shared memory segment returned wrong data", "check the memory of this machine"
                )
    except OSError as failure:
        raise CheckError(
            f"cannot create a shared memory segment of {required_bytes // _MIB} MiB: {failure.strerror}",
            "raise the limits of file size (ulimit -f unlimited) and memory (container)",
        ) from None
    folder = os.environ.get(_SHM_VARIABLE, "/dev/shm")
    if not os.path.isdir(folder):
        raise CheckError(
            f"{folder} does not exist", "mount a tmpfs there; MPI and NCCL require it (Isthmus does not)"
        )
    filesystem = os.statvfs(folder)
    free_bytes, size = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    if free_bytes < required_bytes:
        raise CheckError(
            f"{folder} has {free_bytes // _MIB} of {size // _MIB} MiB free, too little for MPI and NCCL",
            f"delete files of exited programs in {folder}, or start the container with --shm-size=1g",
        )
    return (
        f"a segment of {required_bytes // _MIB} MiB; "
        f"{folder} has {free_bytes // _MIB} of {size // _MIB} MiB free"
    )


def sycl() -> str:
    """Checks that a SYCL device is available."""
    from .info import sycl_devices

    report = sycl_devices()
    if report["state"] == "unavailable":
        raise MissingError(report["reason"])
    if report["state"] == "not_tested":
        raise UntestedError(report["reason"])
    if report["state"] == "failed":
        raise CheckError(
            report["reason"],
            "run scripts/setup, unset ONEAPI_DEVICE_SELECTOR, and start programs with "
            "`isthmus run`, which sets OCL_ICD_FILENAMES to the CPU driver",
        )
    return ", ".join(device["name"] for device in report["devices"])


# ---- several ranks ----------------------------------------------------------------------------------------


def ranks() -> str:
    """Checks that two processes connect through a unique id and reduce in shared memory."""
    from ..communicator import UniqueId

    unique_id = UniqueId.create()
    command = [sys.executable, "-m", CHECK_MODULE, "--pair-rank"]
    other = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    other.stdin.write(
        unique_id.hex() + "\n"
    )  # not an argument, because other users can read arguments and the id is secret
    other.stdin.flush()
    try:
        path = _run_pair_rank(unique_id, 0)
    except Error as failure:
        other.kill()
        output = other.communicate()[1].strip().splitlines()
        raise CheckError(
            failure.message + (f"; output of the other process: {output[-1]}" if output else ""),
            failure.hint or "allow connections to 127.0.0.1 in the firewall or sandbox",
        ) from None
    output = other.communicate(timeout=_TIMEOUT_S)[1]
    if other.returncode:
        raise CheckError(f"the second process exited with {other.returncode}: {output.strip()[-300:]}")
    return f"two processes, allreduce by {path}"


def _run_pair_rank(unique_id: bytes, rank: int) -> str:
    from ..communicator import Communicator

    with Communicator.from_unique_id(unique_id, rank, 2, timeout=_TIMEOUT_S) as communicator:
        return _check_allreduce(communicator)


def backends() -> str:
    """Checks the result of every backend for host memory, on two ranks of this process (MPI: see below)."""
    from ..communicator import Communicator

    paths = []
    for backend in core_info()["backends"]:
        if backend["state"] != "available":
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
    """Runs an allreduce of random integers (exact sums) for each count. Returns the path. Raises CheckError."""
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
                f"allreduce of {count} float32 elements with {path} has {wrong_count} wrong elements",
                "report this with the output of `isthmus info --json`; use another path (`isthmus explain`)",
            )
    return path


def _run_on_all_ranks(communicators: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Runs one thread per rank. Raises the first failure."""
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
    """Checks two ranks under the MPI that the package was built with, and lists other MPI families."""
    from .. import launch

    launcher = launch.launcher("mpich")
    command = [*launcher.command(2, bind=False), sys.executable, "-m", CHECK_MODULE, "--mpi-rank"]
    completed = subprocess.run(
        command,
        env=launch.environment(launcher, 2),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=2 * _TIMEOUT_S,
        check=False,
    )
    lines = [line for line in completed.stdout.splitlines() if line.startswith(RESULT_PREFIX)]
    if completed.returncode or not lines:
        # Launchers print lines of dashes around their messages.
        output = [
            line
            for line in (completed.stderr or completed.stdout).splitlines()
            if any(character.isalnum() for character in line)
        ] or ["no output"]
        raise CheckError(
            f"two ranks under {launcher.executable} exited with {completed.returncode}: {output[-1]}",
            "run `mpiexec -n 2 hostname`; set FI_PROVIDER=tcp if the network fails; run pip install mpich",
        )
    other_families = [family for family in launch.FAMILIES if family != "mpich" and _is_installed(family)]
    return (
        f"{json.loads(lines[0][len(RESULT_PREFIX) :])}; other families: {', '.join(other_families) or 'none'}"
    )


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
        version = next(entry for entry in communicator.info()["backends"] if entry["name"] == "mpi")["version"]
        library = " ".join(version.split())
        if communicator.rank == 0:
            print(
                RESULT_PREFIX + json.dumps(f"{library}, two processes, allreduce by {path}".lstrip(", ")),
                flush=True,
            )


# ---- devices and PyTorch ----------------------------------------------------------------------------------


def gpus() -> str:
    """Lists devices and the backends that support all of them, and runs an allreduce with each backend."""
    from .gpus import describe

    report = describe(_TIMEOUT_S)
    if not report["devices"]:
        raise MissingError(
            f"{report['reason']}; if this machine has GPUs, install their driver, "
            "or give the container access to them"
        )
    usable = [name for name, status in report["backends"].items() if status["state"] == "available"]
    missing = [
        f"{name}: {status['reason']}"
        for name, status in report["backends"].items()
        if status["state"] == "unavailable"
    ]
    details = "; ".join([", ".join(report["devices"]), *missing])
    if not usable:
        raise CheckError(
            details, "install NCCL (pip install nvidia-nccl-cu13), or set ISTHMUS_NCCL_LIBRARY to its path"
        )
    return f"{details}; {_check_devices(report['devices'], usable)}"


def _check_devices(devices: list[str], usable: list[str]) -> str:
    from ..communicator import Communicator

    try:
        import torch
    except ModuleNotFoundError:
        return f"{', '.join(usable)} not tested, because PyTorch is not installed"
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
    """Checks that the extension can be imported, and that process groups of one rank use it.

    The second group requests gloo, as an unmodified program does.
    """
    try:
        import torch
    except ModuleNotFoundError as failure:
        if failure.name != "torch":
            raise
        raise MissingError(missing_torch()) from None
    except ImportError as failure:
        raise CheckError(
            f"PyTorch cannot be imported: {failure}", "reinstall PyTorch: pip install torch"
        ) from None
    try:
        import isthmus.torch
    except ImportError as failure:
        raise extension_error(failure) from None
    paths = [_check_group("cpu:isthmus")]
    try:
        isthmus.torch.replace_backends()
        paths.append(_check_group("gloo"))
    except (ImportError, RuntimeError) as failure:
        raise CheckError(f"all_reduce by {paths[0]}, but gloo is not replaced: {failure}") from None
    return f"PyTorch {torch.__version__}, all_reduce by {paths[0]}, and by {paths[1]} if it replaces gloo"


def extension_error(failure: ImportError) -> CheckError:
    """Returns the first line of an import failure of isthmus.torch, without the output of the compiler."""
    from .. import layout

    first_line = str(failure).partition("\n")[0].removesuffix(" Output of the compiler:")
    command = f"`{sys.executable} -c 'import isthmus.torch'`"
    if layout.checkout() is None:
        hint = f"run {command}, which compiles the extension and prints the full error"
    else:
        hint = f"run scripts/setup torch && make build; {command} prints the full error"
    return CheckError(first_line, hint)


def _check_group(backend: str) -> str:
    """Returns the path of an allreduce in a process group of one rank."""
    import torch
    import torch.distributed as dist

    import isthmus.torch

    isthmus.torch.reset_report()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        dist.all_reduce(torch.ones(4))
        dist.destroy_process_group()
    rows = isthmus.torch.report()
    if not rows:
        raise CheckError(
            f"a process group with {backend!r} did not use Isthmus",
            'name the backend in the program: init_process_group("cpu:isthmus,cuda:isthmus")',
        )
    return rows[0].path


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
    """Runs a check and returns its result ("ok", "failed", "unavailable" or "not_tested"), details and hint."""
    try:
        return {"result": "ok", "details": check(), "hint": ""}
    except MissingError as missing:
        return {"result": "unavailable", "details": str(missing), "hint": ""}
    except UntestedError as untested:
        return {"result": "not_tested", "details": str(untested), "hint": ""}
    except CheckError as failure:
        return {"result": "failed", "details": str(failure), "hint": failure.hint}
    except Error as failure:
        return {"result": "failed", "details": failure.message, "hint": failure.hint}
    except Exception as failure:
        return {"result": "failed", "details": f"{type(failure).__name__}: {failure}", "hint": ""}


def _main(name: str) -> None:
    if name == "--pair-rank":
        _run_pair_rank(bytes.fromhex(sys.stdin.readline().strip()), 1)
    elif name == "--mpi-rank":
        _mpi_rank()
    elif name == "--gpus":
        from .gpus import describe

        print(RESULT_PREFIX + json.dumps(describe(_TIMEOUT_S)), flush=True)
    else:
        print(RESULT_PREFIX + json.dumps(run_check(CHECKS[name])), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
