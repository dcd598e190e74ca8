"""An unmodified llama.cpp splits a model over shares of the CPU that sum with libisthmus_ggml.so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "llama"))
import build_llama as llama
import check

from isthmus import layout


@pytest.fixture(scope="module")
def setting(llama_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> check.Setting:
    folder = tmp_path_factory.mktemp("llama")
    probe = llama.build_prebuilt_probe(llama_libraries, folder / "probe")
    model = folder / "tiny.gguf"
    subprocess.run([sys.executable, str(Path(llama.HERE) / "make_model.py"), str(model)], check=True)
    return check.Setting(probe, model, "cpu", layout.library_folder() / "libisthmus_ggml.so")


def test_several_devices_match_one(setting: check.Setting) -> None:
    assert check.compare(setting, [2, 3]) == []


def test_probe_detects_missing_isthmus(setting: check.Setting) -> None:
    """The comparison above must not pass if Isthmus is not used."""
    alone = setting.ask(2)
    assert alone.sums == 0
    assert "Isthmus" not in alone.stderr


def test_declarations_match_the_headers_of_a_release() -> None:
    """Also the probe compiles with these headers, as on GPUs (scripts/gpu_check)."""
    folder = layout.build_folder()
    assert folder is not None
    includes = llama.header_folders(llama.find_sources(folder / "llama.cpp"))
    subprocess.run(["g++", "-std=c++20", "-fsyntax-only", *includes, *map(str, llama.PROBE)], check=True)
