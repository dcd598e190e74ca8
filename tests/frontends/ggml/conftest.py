"""The libraries of a prebuilt llama.cpp, shared by the test processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from installation import ROOT, make_once


@pytest.fixture(scope="session")
def llama_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the libraries of an unmodified llama.cpp from a wheel."""
    command = [ROOT / "scripts/setup_llama_sycl", "llama"]
    make_once(tmp_path_factory, "llama_libraries", lambda _: subprocess.run(command, check=True))
    return ROOT / ".peers/llama_sycl/llama"
