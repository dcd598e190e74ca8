"""Description of the machine, the commit and the software versions for reports."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from . import layout


def cpu_model() -> str:
    """Returns the name of the processor, or "unknown"."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else "unknown"


def gpu_models() -> list[str]:
    """Returns the names of the NVIDIA GPUs that the driver lists."""
    folder = Path("/proc/driver/nvidia/gpus")
    names = []
    for information in sorted(folder.glob("*/information")) if folder.is_dir() else []:
        match = re.search(r"^Model:\s*(.+)$", information.read_text(), re.MULTILINE)
        if match:
            names.append(match[1].strip())
    return names


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
