"""Description of the machine, the commit and the software versions for reports."""

from __future__ import annotations

import os
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from . import layout


def _cpuinfo() -> str:
    """Returns the kernel's description of the processors, or "" if it is not readable."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def cpu_model() -> str:
    """Returns the name of the processor, or "unknown"."""
    match = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return match[1].strip() if match else "unknown"


def is_virtual() -> bool:
    """Returns whether a hypervisor runs this machine (x86 only)."""
    return re.search(r"^flags\s*:.*\bhypervisor\b", _cpuinfo(), re.MULTILINE) is not None


def gpu_models() -> list[str]:
    """Returns the names of the NVIDIA GPUs that the driver lists."""
    folder = Path("/proc/driver/nvidia/gpus")
    names = []
    for information in sorted(folder.glob("*/information")) if folder.is_dir() else []:
        match = re.search(r"^Model:\s*(.+)$", information.read_text(), re.MULTILINE)
        if match:
            names.append(match[1].strip())
    return names


def numa_nodes() -> int:
    """Returns the number of NUMA nodes, at least 1."""
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def gpu_links() -> list[str]:
    """Returns the kinds of links between NVIDIA GPUs as nvidia-smi names them (NV18, PIX, SYS, ...)."""
    try:
        completed = subprocess.run(
            ["nvidia-smi", "topo", "-m"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return links_of_matrix(completed.stdout)


def links_of_matrix(text: str) -> list[str]:
    """Returns the kinds of links in a matrix of `nvidia-smi topo -m`, sorted."""
    rows = re.findall(r"^GPU\d+[ \t].*$", text, re.MULTILINE)
    return sorted({link for row in rows for link in row.split()[1 : 1 + len(rows)] if link != "X"})


def machine_name(cores: int, gpus: list[str]) -> str:
    """Returns the short name used in result files, e.g. cpu4 or h200x2."""
    if not gpus:
        return f"cpu{cores}"
    model = re.sub(r"[^a-z0-9]+", "", gpus[0].lower().replace("nvidia", "").split()[0])
    return f"{model}x{len(gpus)}"


def describe() -> dict[str, Any]:
    """Returns the machine block of a report."""
    cores, gpus = os.cpu_count() or 1, gpu_models()
    return {"name": machine_name(cores, gpus), "cpu": cpu_model(), "cores": cores, "gpus": gpus}


class OtherLoad:
    """The cores that other processes of the machine used while the block ran, on average.

    The kernel counts all processes, also those outside of a container. Time that the hypervisor took counts as
    well. `cores` is set when the block ends, and is 0 if the kernel does not count.
    """

    cores = 0.0

    def __enter__(self) -> OtherLoad:
        self._start_s = time.monotonic()
        self._start_busy_s = _machine_busy_s() - _own_busy_s()
        return self

    def __exit__(self, *_failure: object) -> None:
        busy_s = _machine_busy_s() - _own_busy_s() - self._start_busy_s
        self.cores = max(0.0, busy_s / max(time.monotonic() - self._start_s, 1e-3))


# Less load comes from the background services of an idle machine.
_MIN_OTHER_CORES, _MIN_OTHER_SHARE = 0.25, 0.05


def unreliable_reason(ranks: int, other_cores: float) -> str:
    """Returns why measured times and ratios of `ranks` ranks are unreliable, or ""."""
    cores = os.cpu_count() or 1
    if other_cores >= max(_MIN_OTHER_CORES, _MIN_OTHER_SHARE * cores):
        return (
            f"Times and ratios are unreliable: other processes used {other_cores:.1f} of {cores} cores. "
            "Repeat the measurement on an idle machine."
        )
    own_cores = len(os.sched_getaffinity(0))
    if ranks > own_cores:
        return (
            f"Times and ratios are unreliable: {ranks} ranks share {own_cores} cores. A waiting rank takes CPU "
            "time from the rank it waits for, so the times depend mostly on the scheduler."
        )
    return ""


def _machine_busy_s() -> float:
    """Returns the CPU seconds of all processes since the machine started, or 0 if they are unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


def _own_busy_s() -> float:
    """Returns the CPU seconds of this process and of its descendants that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def commit() -> str:
    """Returns the commit of the checkout, with "-dirty" if tracked files changed, or "" outside a checkout.

    ISTHMUS_BENCH_COMMIT overrides it for programs that run without their checkout.
    """
    if configured_commit := os.environ.get("ISTHMUS_BENCH_COMMIT"):
        return configured_commit
    root = layout.checkout()
    if root is None:
        return ""
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    completed = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, errors="replace", check=True
    )
    return completed.stdout.strip()


def versions() -> dict[str, str]:
    """Returns the versions of the installed packages that a host run depends on."""
    from . import __version__

    installed = {"isthmus": __version__}
    for key, package in (
        ("mpich", "mpich"),
        ("sycl", "dpcpp-cpp-rt"),
        ("mpi4py", "mpi4py"),
        ("numpy", "numpy"),
    ):
        try:
            installed[key] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed
