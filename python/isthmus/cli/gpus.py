"""Devices of this machine, the backends that support them, and the status of p2p and fused products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import fused, layout, memory
from ..communicator import Communicator
from ..errors import Error

_PLATFORMS = ("cuda", "hip")
_AMD_DRIVER = Path("/dev/kfd")
_MAX_DEVICES = 64
_MATRIX_SIZE = 16  # rows and columns of the matrices of the test plan


def devices() -> tuple[list[str], str]:
    """Returns ["cuda:0", ...] of the first platform with devices, or [] and the reason. Creates no context."""
    reasons = []
    for platform in _PLATFORMS:
        names, reason = _devices_of(platform)
        if names:
            return names, ""
        reasons.append(f"{platform}: {reason}")
    return [], "; ".join(reasons)


def _devices_of(platform: str) -> tuple[list[str], str]:
    names: list[str] = []
    while len(names) < _MAX_DEVICES:
        device = f"{platform}:{len(names)}"
        provider = next(entry for entry in memory.explain(device)["providers"] if entry["name"] == "direct")
        if not provider["available"]:
            return names, _reason(platform, provider["reason"])
        names.append(device)
    return names, ""


def _reason(platform: str, core_reason: str) -> str:
    """Returns why there is no device. ROCm can be installed without a GPU, and returns odd errors."""
    if platform == "hip" and not _AMD_DRIVER.exists():
        return f"no AMD GPU driver ({_AMD_DRIVER} does not exist)"
    return core_reason


def backend_status(device_names: list[str], timeout: float) -> dict[str, dict[str, str]]:
    """Returns {"state", "reason"} of each backend for these devices, except backends of other platforms.

    Creates a communicator over all devices. This creates their contexts and takes seconds, so call it in a
    separate process. Raises isthmus.Error.
    """
    communicators = Communicator.create_all(device_names, timeout=timeout)
    entries = communicators[0].info()["backends"]
    for communicator in communicators:
        communicator.close()
    status = {entry["name"]: {"state": entry["state"], "reason": entry["reason"]} for entry in entries}
    if "p2p" not in status:
        status["p2p"] = {"state": "unavailable", "reason": missing_p2p_reason()}
    return {name: entry for name, entry in status.items() if entry["state"] != "other_platform"}


def missing_p2p_reason() -> str:
    """Returns why the p2p plugin was not found, or "" if its file exists."""
    file = layout.library_folder() / "isthmus" / "libisthmus_p2p.so"
    if file.is_file():
        return ""
    if layout.checkout() is None:
        hint = "install a release wheel, or run pip install on a machine with an NVIDIA device"
    else:
        hint = "run scripts/setup cuda and build with -DISTHMUS_P2P=ON"
    return f"{file} does not exist; {hint}"


def fused_status(device: str) -> dict[str, Any]:
    """Returns {"state", "library", "reason"} of fused products on "host" or "cuda:0"."""
    try:
        sample = _sample_matrix(device)
        with (
            Communicator.create_all([device])[0] as communicator,
            fused.Plan(communicator, sample, sample) as plan,
        ):
            libraries = plan.info["libraries"]
    except ModuleNotFoundError as failure:
        return {"state": "not_tested", "library": "", "reason": str(failure)}
    except Error as failure:
        return {"state": "unavailable", "library": "", "reason": str(failure)}
    return {
        "state": "available",
        "library": ", ".join(str(library) for library in libraries.values()),
        "reason": "",
    }


def _sample_matrix(device: str) -> Any:
    if device == "host":
        return np.ones((_MATRIX_SIZE, _MATRIX_SIZE), np.float32)
    import torch

    return torch.ones((_MATRIX_SIZE, _MATRIX_SIZE), device=torch.device("cuda", int(device.partition(":")[2])))


def describe(timeout: float) -> dict[str, Any]:
    """Returns {"devices", "reason", "backends", "fused"} for the devices of this machine."""
    device_names, reason = devices()
    if not device_names:
        p2p = {"state": "unavailable", "reason": missing_p2p_reason() or "no device"}
        unavailable = {"state": "unavailable", "library": "", "reason": "no device"}
        return {"devices": [], "reason": reason, "backends": {"p2p": p2p}, "fused": unavailable}
    return {
        "devices": device_names,
        "reason": "",
        "backends": backend_status(device_names, timeout),
        "fused": fused_status(device_names[0]),
    }
