"""Environment variables: unknown ones are reported, and the list of known ones is complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from test_cli import in_checkout

from isthmus import layout


def run_with_variable(name: str, value: str = "1", **others: str) -> str:
    code = "import isthmus; [each.close() for each in isthmus.Communicator.create_all(2)]"
    environment = os.environ | {name: value} | others
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr


def test_unknown_variable_is_reported_once() -> None:
    words = "variable ISTHMUS_DETERMINSTIC is unknown and has no effect; did you mean"
    assert run_with_variable("ISTHMUS_DETERMINSTIC").count(f'{words} "ISTHMUS_DETERMINISTIC"?') == 1
    assert "ISTHMUS_DETERMINISTIC" not in run_with_variable("ISTHMUS_DETERMINISTIC")


def test_unknown_variable_of_pytorch_has_a_hint() -> None:
    text = run_with_variable("ISTHMUS_TORCH_REPORT")
    assert "isthmus run --torch --report" in text and "did you mean" not in text


def test_log_lists_only_plugins_of_the_user(tmp_path: Path) -> None:
    packaged = layout.library_folder() / "isthmus" / "libisthmus_nccl.so"
    own = Path(shutil.copy(packaged, tmp_path))
    text = run_with_variable("ISTHMUS_LOG", "info", ISTHMUS_PLUGIN_PATH=str(tmp_path))
    assert re.findall(r"loaded backend (\w+) from (\S+)", text) == [("nccl", str(own))]
    assert f"loaded backend nccl from {packaged}" in run_with_variable("ISTHMUS_LOG", "debug")


@in_checkout
def test_known_variables_are_those_of_sources_and_docs() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "src/selection/environment_layer.cpp").read_text()
    known, prefixes = (
        re.findall(r'"(ISTHMUS_[A-Z0-9_]+)"sv', re.search(rf"{array} = {{(.*?)}};", text, re.DOTALL)[1])
        for array in ("known_variables", "known_prefixes")
    )
    names = set()
    for folder, pattern in (("src", "*.[ch]*"), ("include", "*.h*"), ("python", "*.py")):
        for file in (root / folder).rglob(pattern):
            names |= set(re.findall(r"""["'](ISTHMUS_[A-Z0-9_]+)["']""", file.read_text()))
    names -= {"ISTHMUS_FUSED", "ISTHMUS_DEVICE_MEMORY"}  # options of CMake
    names -= {"ISTHMUS_TORCH_REPORT"}  # does not exist, but has a hint
    pages = " ".join(page.read_text() for page in (root / "docs").rglob("*.md"))
    assert set(known) == {name for name in names if not name.startswith(tuple(prefixes))}
    assert [name for name in known if f"`{name}" not in pages and f"{name}=" not in pages] == []
