"""The built extension."""

from __future__ import annotations

import subprocess

from isthmus.torch import _extension


def test_cxx_runtime_is_linked_statically() -> None:
    """The runtime must not mix with the one that PyTorch partly exports (cmake/cxx_runtime.cmake)."""
    for command in (["readelf", "-d"], ["nm", "-D", "--undefined-only"]):
        shown = subprocess.run(
            [*command, _extension.__file__], capture_output=True, text=True, check=True
        ).stdout
        assert "libstdc++" not in shown and "GLIBCXX" not in shown and "_ZNSo" not in shown, shown
        assert "libc10" in shown or "c10" in shown
