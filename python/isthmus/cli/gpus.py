"""The devices of this machine, the backends that serve them together, and what p2p and fused products lack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import fused, layout, memory
from ..communicator import Communicator
from ..errors import Error

_PLATFORMS = ("cuda", "hip")
_MOST_DEVICES = 64
_EDGE = 16  # of the matrices that a plan is made for


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
    while len(found) < _MOST_DEVICES:
        device = f"{platform}:{len(found)}"
        direct = next(each for each in memory.explain(device)["providers"] if each["name"] == "direct")
        if not direct["available"]:
            return found, direct["reason"]
        found.append(device)
    return found, ""


def served(where: list[str], timeout: float) -> dict[str, str]:
    """Backend -> why it does not serve these devices together, "" where it does.

    Makes a communicator over all devices, which starts their contexts and takes seconds: for a process of its
    own. Raises isthmus.Error.
    """
    communicators = Communicator.all(where, timeout=timeout)
    listed = communicators[0].info()["backends"]
    for communicator in communicators:
        communicator.close()
    found = {each["name"]: "" if each["available"] else each["reason"] for each in listed}
    if "p2p" not in found:
        found["p2p"] = why_no_p2p()
    elsewhere = f"it does not work on platform {where[0].partition(':')[0]}"
    return {name: reason for name, reason in found.items() if reason != elsewhere}


def why_no_p2p() -> str:
    """Why the plug-in of the peer-memory kernels is not even listed; "" where its file is there."""
    file = layout.library_folder() / "isthmus" / "libisthmus_p2p.so"
    if file.is_file():
        return ""
    return f"not built: {file} does not exist (scripts/setup cuda, then a build with -DISTHMUS_P2P=ON)"


def fused_on(device: str) -> dict[str, Any]:
    """{"available", "library" that multiplies, "reason"} of fused products on "host" or "cuda:0"."""
    try:
        like = _square(device)
        with Communicator.all([device])[0] as communicator, fused.Plan(communicator, like, like) as plan:
            libraries = plan.info["libraries"]
    except ModuleNotFoundError as failure:
        return {"available": False, "library": "", "reason": f"not tried: {failure}"}
    except Error as failure:
        return {"available": False, "library": "", "reason": str(failure)}
    return {"available": True, "library": ", ".join(str(each) for each in libraries.values()), "reason": ""}


def _square(device: str) -> Any:
    if device == "host":
        return np.ones((_EDGE, _EDGE), np.float32)
    import torch

    return torch.ones((_EDGE, _EDGE), device=torch.device("cuda", int(device.partition(":")[2])))


def described(timeout: float) -> dict[str, Any]:
    """All of the above for the devices that are there: {"devices", "reason", "backends", "fused"}."""
    where, reason = devices()
    if not where:
        lacks = "; ".join(part for part in (why_no_p2p(), reason) if part)
        absent = {"available": False, "library": "", "reason": reason}
        return {"devices": [], "reason": reason, "backends": {"p2p": lacks}, "fused": absent}
    return {"devices": where, "reason": "", "backends": served(where, timeout), "fused": fused_on(where[0])}
