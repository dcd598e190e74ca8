"""The built extension."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from isthmus.torch import _extension


def test_cxx_runtime_is_linked_statically() -> None:
    """The runtime must not mix with the one that PyTorch partly exports (cmake/cxx_runtime.cmake)."""
    for command in (["readelf", "-d"], ["nm", "-D", "--undefined-only"]):
        shown = subprocess.run(
            [*command, _extension.__file__], capture_output=True, text=True, check=True
        ).stdout
        assert "libstdc++" not in shown and "GLIBCXX" not in shown and "_ZNSo" not in shown, shown
        assert "libc10" in shown or "c10" in shown


def test_wheel_contains_all_headers() -> None:
    """A wheel compiles the extension from the sources that python/CMakeLists.txt lists."""
    root = Path(__file__).resolve().parents[3]
    installed = (root / "python/CMakeLists.txt").read_text()
    unread = [*root.glob("src/frontends/torch/*pp"), root / "src/failure/watchdog.cpp"]
    seen = set(unread)
    while unread:
        for name in re.findall(r'#include "([^"]+)"', unread.pop().read_text()):
            header = root / "src" / name
            if "/" not in name or header in seen:  # a header of the same folder
                continue
            assert f"src/{name}" in installed, name
            seen.add(header)
            unread.append(header)
    assert len(seen) > 20
