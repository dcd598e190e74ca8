"""Starts the ranks of a trial: C programs, MPI jobs, and Python and PyTorch ranks from a fork server."""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import rank_main

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
STANDINS = BUILD / "lib" / "standins"
VENV = ROOT / ".venv"

CONFIGS = {
    "shm": '[[rule]]\nuse = "shm"\n',
    "mpi": '[[rule]]\nuse = "mpi"\n',
    "faulty": f'[[rule]]\nuse = "faulty"\n[plugins]\nfaulty = "{STANDINS}/libfaulty_plugin.so"\n',
    "nccl": '[[rule]]\nuse = "nccl"\n',
    "copy_engine": '[[rule]]\nuse = "copy_engine"\n',
}
DEVICES = {
    "ISTHMUS_CUDA_DRIVER_LIBRARY": f"{STANDINS}/libstandin_device.so",
    "ISTHMUS_CUDA_RUNTIME_LIBRARY": f"{STANDINS}/libstandin_device.so",
    "ISTHMUS_NCCL_LIBRARY": f"{STANDINS}/libstandin_nccl.so",
    "ISTHMUS_NVRTC_LIBRARY": f"{STANDINS}/libstandin_compilers.so",
}
DEVICE_BACKENDS = ("nccl", "copy_engine")
# These folders are full during the trial.
FULL = {"full_shm": "/dev/shm", "full_disk": "/var/tmp"}
SERVER = multiprocessing.get_context("forkserver")


class Process:
    """One process of a trial, started by subprocess or by the fork server."""

    def __init__(self, started: subprocess.Popen[bytes] | BaseProcess) -> None:
        self._started = started

    @property
    def pid(self) -> int:
        return self._started.pid or 0

    def ended(self) -> bool:
        if isinstance(self._started, subprocess.Popen):
            return self._started.poll() is not None
        return not self._started.is_alive()

    def kill(self) -> None:
        if not self.ended():
            self._started.kill()

    def close(self) -> None:
        if isinstance(self._started, subprocess.Popen):
            self._started.wait()
        else:
            self._started.join()
            self._started.close()


def prepare() -> None:
    """Starts the fork server of Python ranks, which imports NumPy and Isthmus once."""
    SERVER.set_forkserver_preload(
        ["numpy", "isthmus", "rank_main", *(["isthmus.torch"] if has_torch() else [])]
    )


@functools.cache
def has_torch() -> bool:
    program = [sys.executable, "-c", "import isthmus.torch"]
    return subprocess.run(program, capture_output=True, check=False).returncode == 0


# Two network namespaces joined by a cable; the lost rank is alone in one. The addresses are from the range for
# benchmarks (RFC 2544).
ADDRESS, NEIGHBOR = "198.18.0.1", "198.18.0.2"


def networks(folder: Path) -> tuple[str, str]:
    return f"{folder.name}-here", f"{folder.name}-alone"


def ip(*arguments: str, check: bool = True) -> bool:
    completed = subprocess.run(["ip", *arguments], capture_output=True, check=check)
    return completed.returncode == 0


def separate(folder: Path) -> tuple[str, str]:
    parent_network, isolated_network = networks(folder)
    for name in (parent_network, isolated_network):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip(
        "-n",
        parent_network,
        "link",
        "add",
        "lan",
        "type",
        "veth",
        "peer",
        "name",
        "lan",
        "netns",
        isolated_network,
    )
    for name, address in ((parent_network, ADDRESS), (isolated_network, NEIGHBOR)):
        ip("-n", name, "address", "add", f"{address}/30", "dev", "lan")
        ip("-n", name, "link", "set", "lan", "up")
    return parent_network, isolated_network


@functools.cache
def can_separate() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    folder = Path(f"isthmus-fault-try-{os.getpid()}")
    try:
        separate(folder)
    except subprocess.CalledProcessError:
        return False
    finally:
        clean({"fault": "drop"}, folder)
    return True


def clean(spec: dict[str, Any], folder: Path) -> None:
    """Removes what outlives the processes of the trial."""
    for name in networks(folder) if spec["fault"] == "drop" else ():
        ip("netns", "delete", name, check=False)


def variables(spec: dict[str, Any], folder: Path) -> dict[str, str]:
    """The environment that the ranks read (environment.cpp, rank_main.py)."""
    config = folder / "isthmus.toml"
    config.write_text(CONFIGS[spec["backend"]])
    config.chmod(0o600)
    settings = {
        "FAULT": spec["fault"],
        "FAULT_RANK": spec["faulty_rank"],
        "FAULT_AT": spec["at"],
        "FAULT_DELAY_US": spec["delay_us"],
        "FAULT_CALLS": spec["calls"],
        "FAULT_SEED": spec["seed"],
        "FAULT_TIMEOUT_S": spec["timeout_s"],
        "FAULT_CONFIG": config,
        "FAULT_PLATFORM": "cuda" if spec["backend"] in DEVICE_BACKENDS else "host",
        "FAULT_PLAIN_CALLS": 1 if spec["backend"] in DEVICE_BACKENDS else 0,
        "FAULT_CHECKED": 0 if spec["backend"] == "faulty" else 1,
        "FAULT_FOLDER": folder,
        "FAULT_FRONT_END": spec["front_end"],
        "ISTHMUS_PROFILE": "none",
        "OMP_NUM_THREADS": 1,
        "PYTHONWARNINGS": "ignore",
    }
    if spec["fault"] == "full_disk":  # every folder for files of the user
        settings |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), FULL["full_disk"])
    if spec["front_end"] == "sycl":  # the SYCL runtime does not find its CPU device without this
        settings |= {"OCL_ICD_FILENAMES": VENV / "lib" / "libintelocl.so"}
    devices = DEVICES if spec["backend"] in DEVICE_BACKENDS else {}
    return {name: str(value) for name, value in settings.items()} | devices


def start(spec: dict[str, Any], folder: Path) -> list[Process]:
    """Starts all ranks of the trial; their output goes to the file `output`."""
    environment = variables(spec, folder)
    ranks = spec["ranks"]
    if spec["front_end"] in ("python", "torch"):
        processes = []
        for rank in range(ranks):
            process = SERVER.Process(target=rank_main.run, args=(environment, rank, ranks, list(sys.path)))
            process.start()
            processes.append(Process(process))
        return processes
    full = FULL.get(spec["fault"])
    mount_command = ["unshare", "-m", str(Path(__file__).parent / "with_full"), full] if full else []
    with open(folder / "output", "wb") as output:
        if spec["front_end"] == "mpi":
            launcher = [str(VENV / "bin" / "mpiexec"), "-disable-auto-cleanup", "-n", str(ranks)]
            commands = [[*launcher, str(BUILD / "bin" / "fault_worker_mpi")]]
            environment |= {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1"}
            environment |= {"MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "100"}
        else:
            rank_arguments = ["--size", str(ranks), "--id", str(folder / "id")]
            name = "fault_worker_sycl" if spec["front_end"] == "sycl" else "fault_worker"
            program = str(BUILD / "bin" / name)
            commands = [
                [*mount_command, program, "--rank", str(rank), *rank_arguments] for rank in range(ranks)
            ]
            if spec["fault"] == "drop":
                parent_network, isolated_network = separate(folder)
                environment |= {"FAULT_ADDRESS": ADDRESS}
                commands = [
                    [
                        "ip",
                        "netns",
                        "exec",
                        isolated_network if rank == spec["faulty_rank"] else parent_network,
                        *command,
                    ]
                    for rank, command in enumerate(commands)
                ]
        return [
            Process(
                subprocess.Popen(
                    command,
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
            for command in commands
        ]
