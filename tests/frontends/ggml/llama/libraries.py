"""Where a built llama.cpp finds its shared libraries."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path


def search_path(folder: Path) -> dict[str, str]:
    """LD_LIBRARY_PATH for programs in `folder`: their own libraries, NCCL of this Python's wheels, CUDA's."""
    places = [
        folder.resolve(),
        Path(sysconfig.get_paths()["purelib"]) / "nvidia/nccl/lib",
        Path("/usr/local/cuda/lib64"),
    ]
    found = [str(place) for place in places if place.is_dir()]
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([*found, *([before] if before else [])])}
