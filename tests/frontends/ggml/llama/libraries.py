"""Library search path of a llama.cpp build."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path


def search_path(folder: Path) -> dict[str, str]:
    """Returns LD_LIBRARY_PATH for programs in `folder`: their own libraries, the NCCL wheel, and CUDA."""
    places = [
        folder.resolve(),
        Path(sysconfig.get_paths()["purelib"]) / "nvidia/nccl/lib",
        Path("/usr/local/cuda/lib64"),
    ]
    folders = [str(place) for place in places if place.is_dir()]
    old_path = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([*folders, *([old_path] if old_path else [])])}
