"""libisthmus_ggml.so with the ggml of a prebuilt llama.cpp wheel: lookups, tensors and a sum.

`make llama-sycl-check` tests its SYCL backend, which needs another 2.4 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from isthmus import layout

PROGRAM = """
import ctypes as c, sys
from pathlib import Path
folder = Path(sys.argv[1])
base = c.CDLL(str(next(folder.glob("libggml-base-*"))), mode=c.RTLD_GLOBAL)
every = c.CDLL(None)  # in the linker's order: preloaded libraries come first

class Parameters(c.Structure):
    _fields_ = [("bytes", c.c_size_t), ("pool", c.c_void_p), ("no_alloc", c.c_bool)]

def function(name, result, *arguments, of=every):
    found = getattr(of, name)
    found.restype, found.argtypes = result, arguments
    return found

p = c.c_void_p
cpu = c.CDLL(str(folder / "libggml-cpu.so"))
registry = function("ggml_backend_cpu_reg", p, of=cpu)()
device = function("ggml_backend_reg_dev_get", p, p, c.c_size_t)(registry, 0)
start = function("ggml_backend_dev_init", p, p, c.c_char_p)
backends = (p * 2)(start(device, None), start(device, None))
look_up = function("ggml_backend_reg_get_proc_address", p, p, c.c_char_p)
trio = [look_up(registry, b"ggml_backend_comm_" + name) for name in (b"init", b"allreduce_tensor", b"free")]
if not all(trio):
    sys.exit("no allreduce")
init = c.CFUNCTYPE(p, p, c.c_size_t)(trio[0])
allreduce, free = c.CFUNCTYPE(c.c_bool, p, p)(trio[1]), c.CFUNCTYPE(None, p)(trio[2])
assert look_up(registry, b"ggml_backend_set_n_threads"), "other names must return ggml's own functions"

count = 1000
context = function("ggml_init", p, Parameters)(Parameters(1 << 20, None, False))
make = function("ggml_new_tensor_1d", p, p, c.c_int, c.c_int64)
copy, data = function("ggml_dup", p, p, p), function("ggml_get_data_f32", c.POINTER(c.c_float), p)
graph = function("ggml_new_graph", p, p)(context)
expand = function("ggml_build_forward_expand", None, p, p)
tensors = (p * 2)(*(copy(context, make(context, 0, count)) for _ in range(2)))
comm = init(backends, 2)
assert comm, "init returned NULL"

def fill():
    for i in range(2):
        for j in range(count):
            data(tensors[i])[j] = (i + 1) * j

def sums():
    assert allreduce(comm, tensors)
    return [data(tensors[i])[j] / max(j, 1) for i in range(2) for j in range(count)]

expand(graph, tensors[0])  # the other tensor is not computed and counts as zeros
fill()
assert all(each in (0, 1) for each in sums())
expand(graph, tensors[1])
fill()
assert all(each in (0, 3) for each in sums())
free(comm)
print("summed")
"""


def run(libraries: Path, preload: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "LD_PRELOAD": preload,
        "LD_LIBRARY_PATH": f"{sys.prefix}/lib",
        "ISTHMUS_CONFIG": "none",
        "ISTHMUS_PROFILE": "none",
    }
    command = [sys.executable, "-c", PROGRAM, str(libraries)]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=100, check=False
    )


def test_wheel_registry_and_tensors(llama_libraries: Path) -> None:
    done = run(llama_libraries, str(layout.library_folder() / "libisthmus_ggml.so"))
    assert done.stdout == "summed\n", done.stderr
    assert "Isthmus sums over CPU, CPU" in done.stderr
    assert "warning" not in done.stderr
    plain_run = run(llama_libraries, "")
    assert "no allreduce" in plain_run.stderr, (
        "the CPU backend has its own allreduce, so the test proves nothing"
    )
