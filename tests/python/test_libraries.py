"""Dependencies of the built libraries. They must not use the C++ runtime of the process, which can differ."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import isthmus


def loaded_libraries() -> list[Path]:
    """Returns the core and its Python module that are loaded in this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {Path(line.split(maxsplit=5)[5]) for line in maps if line.count("/") and ".so" in line}
    return sorted(file for file in files if file.name.startswith(("libisthmus", "_isthmus")))


def test_libraries_contain_their_cxx_runtime() -> None:
    isthmus.Communicator.create_all(1)[0].close()  # loads all plugins
    libraries = loaded_libraries()
    assert any(file.name.startswith("libisthmus.so") for file in libraries)
    assert any(file.name.startswith("_isthmus") for file in libraries)
    for library in libraries:
        # nvcc cannot link the runtime statically, and the oneCCL plug-in exchanges C++ objects with SYCL.
        if library.name.startswith(("libisthmus_p2p", "libisthmus_oneccl")):
            continue
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        if "GLIBCXX" in subprocess.run(["readelf", "-V", library], capture_output=True, text=True).stdout:
            pytest.fail(f"{library.name} depends on an external C++ runtime")
        assert "libstdc++" not in dynamic, library.name
