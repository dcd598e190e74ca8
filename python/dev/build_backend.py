"""Build backend of `pip install .`: scikit-build-core, and the CUDA compiler where its kernels are wanted."""

from __future__ import annotations

from pathlib import Path

from scikit_build_core.build import *  # noqa: F403
from scikit_build_core.build import get_requires_for_build_wheel as _requires

ROOT = Path(__file__).resolve().parents[2]


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    """Adds requirements-cuda.txt if this machine has an NVIDIA device, or as cmake.define.ISTHMUS_P2P says."""
    requires = _requires(config_settings)
    default = "ON" if Path("/proc/driver/nvidia/version").exists() else "OFF"
    if (config_settings or {}).get("cmake.define.ISTHMUS_P2P", default) == "ON":
        lines = (ROOT / "requirements-cuda.txt").read_text(encoding="utf-8").splitlines()
        requires += [line for line in lines if not line.startswith("#")]
    return requires
