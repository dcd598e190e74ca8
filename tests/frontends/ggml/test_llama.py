"""An unmodified llama.cpp, built from its source distribution, splits a model over shares of the CPU that sum
with libisthmus_ggml.so. Building llama.cpp takes nearly all of the time."""

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
def setting(tmp_path_factory: pytest.TempPathFactory) -> check.Setting:
    folder = layout.build_folder()
    assert folder is not None
    probe = llama.build(folder / "llama.cpp")
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    subprocess.run([sys.executable, str(Path(llama.HERE) / "make_model.py"), str(model)], check=True)
    return check.Setting(probe, model, "cpu", layout.library_folder() / "libisthmus_ggml.so")


@pytest.mark.timeout(900)
def test_several_devices_match_one(setting: check.Setting) -> None:
    assert check.compare(setting, [2, 3]) == []


def test_probe_detects_missing_isthmus(setting: check.Setting) -> None:
    """The comparison above must not pass if Isthmus is not used."""
    alone = setting.ask(2)
    assert alone.sums == 0
    assert "Isthmus" not in alone.stderr
