"""An unmodified llama.cpp, built from its source distribution, splits a model over shares of the CPU, and
libisthmus_ggml.so sums. Nearly all of its time is llama.cpp's build."""

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
def test_several_devices_answer_as_one(setting: check.Setting) -> None:
    assert check.compare(setting, [2, 3]) == []


def test_without_isthmus_the_probe_says_so(setting: check.Setting) -> None:
    """The comparison above must not pass where Isthmus took no part."""
    alone = setting.ask(2)
    assert alone.sums == 0
    assert "Isthmus" not in alone.said
