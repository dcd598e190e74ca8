"""The devices of this machine, the backends that serve them together, and what p2p and fused products lack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import fused, layout, memory
from ..communicator import Communicator
from ..errors import Error

_PLATFORMS = ("cuda", "hip")
_MAX_DEVICES = 64
_MATRIX_SIZE = 16  # of the matrices that a plan is made for


def devices() -> tuple[list[str], str]:
    """["cuda:0", ...] of the first platform that has some, or none and why. Starts no context."""
    reasons = []
    for platform in _PLATFORMS:
        found, reason = _devices_of(platform)
        if found:
            return found, ""
        reasons.append(f"{platform}: {reason}")
    return [], "; ".join(reasons)


def _devices_of(platform: str) -> tuple[list[str], str]:
    found: list[str] = []
    while len(found) < _MAX_DEVICES:
        device = f"{platform}:{len(found)}"
        provider = next(each for each in memory.explain(device)["providers"] if each["name"] == "direct")
        if not provider["available"]:
            return found, provider["reason"]
        found.append(device)
    return found, ""


def backend_status(device_names: list[str], timeout: float) -> dict[str, str]:
    """Backend -> why it does not serve these devices together, "" where it does.

    Makes a communicator over all devices, which starts their contexts and takes seconds: for a process of its
    own. Raises isthmus.Error.
    """
    communicators = Communicator.create_all(device_names, timeout=timeout)
    entries = communicators[0].info()["backends"]
    for communicator in communicators:
        communicator.close()
    found = {each["name"]: "" if each["available"] else each["reason"] for each in entries}
    if "p2p" not in found:
        found["p2p"] = missing_p2p_reason()
    platform_reason = f"it does not work on platform {device_names[0].partition(':')[0]}"
    return {name: reason for name, reason in found.items() if reason != platform_reason}


def missing_p2p_reason() -> str:
    """Why the plug-in of the peer-memory kernels is not even listed; "" where its file is there."""
    file = layout.library_folder() / "isthmus" / "libisthmus_p2p.so"
    if file.is_file():
        return ""
    return f"not built: {file} does not exist (scripts/setup cuda, then a build with -DISTHMUS_P2P=ON)"


def fused_status(device: str) -> dict[str, Any]:
    """{"available", "library" that multiplies, "reason"} of fused products on "host" or "cuda:0"."""
    try:
        sample = _sample_matrix(device)
        with Communicator.create_all([device])[0] as communicator, fused.Plan(communicator, sample, sample) as plan:
            libraries = plan.info["libraries"]
    except ModuleNotFoundError as failure:
        return {"available": False, "library": "", "reason": f"not tried: {failure}"}
    except Error as failure:
        return {"available": False, "library": "", "reason": str(failure)}
    return {"available": True, "library": ", ".join(str(each) for each in libraries.values()), "reason": ""}


def _sample_matrix(device: str) -> Any:
    if device == "host":
        return np.ones((_MATRIX_SIZE, _MATRIX_SIZE), np.float32)
    import torch

    return torch.ones((_MATRIX_SIZE, _MATRIX_SIZE), device=torch.device("cuda", int(device.partition(":")[2])))


def describe(timeout: float) -> dict[str, Any]:
    """All of the above for the devices that are there: {"devices", "reason", "backends", "fused"}."""
    device_names, reason = devices()
    if not device_names:
        reasons = "; ".join(part for part in (missing_p2p_reason(), reason) if part)
        unavailable = {"available": False, "library": "", "reason": reason}
        return {"devices": [], "reason": reason, "backends": {"p2p": reasons}, "fused": unavailable}
    return {"devices": device_names, "reason": "", "backends": backend_status(device_names, timeout), "fused": fused_status(device_names[0])}
