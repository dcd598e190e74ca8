"""The built extension."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_processes import QUIET

from isthmus.torch import _compile, _extension


@pytest.mark.skipif(not torch.compiled_with_cxx11_abi(), reason="the old std::string needs a common runtime")
def test_cxx_runtime_is_linked_statically() -> None:
    """The runtime must not mix with the one that PyTorch partly exports (cmake/cxx_runtime.cmake)."""
    for command in (["readelf", "-d"], ["nm", "-D", "--undefined-only"]):
        shown = subprocess.run(
            [*command, _extension.__file__], capture_output=True, text=True, check=True
        ).stdout
        assert "libstdc++" not in shown and "GLIBCXX" not in shown and "_ZNSo" not in shown, shown
        assert "libc10" in shown or "c10" in shown


ALLOCATOR = """
#include <cstdlib>
#include <new>
constexpr unsigned long own = 0x15;
void* operator new(std::size_t bytes) {
  auto* block = static_cast<unsigned long*>(std::malloc(bytes + 16));
  block[0] = own;
  return block + 2;
}
void operator delete(void* data) noexcept {
  if (data == nullptr) return;
  auto* block = static_cast<unsigned long*>(data) - 2;
  if (block[0] != own) std::abort();
  block[0] = 0;
  std::free(block);
}
void operator delete(void* data, std::size_t) noexcept { operator delete(data); }
"""
PROGRAM = """
import torch, torch.distributed as dist, isthmus.torch
dist.init_process_group("cpu:isthmus,cuda:isthmus", store=dist.HashStore(), rank=0, world_size=1)
data = torch.ones(4)
dist.all_reduce(data, async_op=True).wait()
dist.all_gather([torch.ones(4)], data)
dist.barrier()
dist.destroy_process_group()
print("end")
"""


def test_operators_new_and_delete_can_be_replaced(tmp_path: Path) -> None:
    """PyTorch frees objects of the extension with the allocator of the process, and the other way round."""
    source, library = tmp_path / "allocator.cpp", tmp_path / "liballocator.so"
    source.write_text(ALLOCATOR)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | QUIET | {"LD_PRELOAD": str(library)},
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compile, "torch_version", lambda: (2, 5))
    with pytest.raises(ImportError, match=r"requires PyTorch 2\.6 or newer"):
        _compile.load()


def test_extension_of_another_pytorch_is_not_used() -> None:
    """The extension refuses a PyTorch that it was not compiled for, so that load() compiles another one."""
    program = "import torch, importlib.util as util; torch.__version__ = '2.99.0+cpu'\n"
    program += f"spec = util.spec_from_file_location('isthmus.torch._extension', {_extension.__file__!r})\n"
    program += "spec.loader.exec_module(util.module_from_spec(spec))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "was compiled for PyTorch" in done.stderr and "this is PyTorch 2.99.0+cpu" in done.stderr


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
