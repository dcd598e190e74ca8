"""isthmus.memory on the host: arrays, lifetime, providers and errors."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import run_on_all_ranks

import isthmus
from isthmus import memory


@pytest.fixture(autouse=True)
def no_leaks():
    gc.collect()
    blocks_before = memory.live_blocks()
    yield
    gc.collect()
    assert memory.live_blocks() == blocks_before


def test_arrays_are_numpy_arrays_on_the_host() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((7, 5))
    array = memory.empty((7, 5), "float64")
    array[:] = values
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, values)
    assert array.ctypes.data % 256 == 0


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bfloat16", "float8_e4m3"])
def test_every_dtype_can_be_allocated(dtype) -> None:
    assert memory.empty(3, dtype).nbytes == 3 * isthmus.DATATYPES[dtype].bytes


def test_query_finds_block_of_any_view() -> None:
    array = memory.empty((100, 10), "float32")
    block = memory.query(array[50:60])
    assert block.device == isthmus.Device(isthmus.Platform.host, 0)
    assert (block.address, block.bytes) == (array.ctypes.data, 4000)
    assert block.provider in ("umf", "direct")
    assert memory.query(array.ctypes.data + 3999) == block
    with pytest.raises(isthmus.Error, match="must lie in a live plain block"):
        memory.query(np.zeros(3))


def test_last_view_releases_the_block() -> None:
    blocks_before = memory.live_blocks()
    array = memory.empty(1000, unpooled=True)
    view = array[10:20]
    del array
    gc.collect()
    assert memory.live_blocks() == blocks_before + 1
    view[:] = 3
    del view
    gc.collect()
    assert memory.live_blocks() == blocks_before


def test_empty_shapes() -> None:
    assert memory.empty((0, 3)).shape == (0, 3)
    assert memory.empty(()).shape == ()


def test_invalid_allocations_are_rejected() -> None:
    with pytest.raises(ValueError, match="shape must not be negative"):
        memory.empty((2, -1))
    with pytest.raises(ValueError, match="exceeds the address space"):
        memory.empty((1 << 40, 1 << 40))
    with pytest.raises(isthmus.Error) as error_info:
        memory.empty(1 << 58, "float64")
    assert error_info.value.code == isthmus.Status.out_of_memory
    assert "tried umf: " in str(error_info.value) and "direct: " in str(error_info.value)
    with pytest.raises(isthmus.Error, match="must be 0 on platform host"):
        memory.empty(1, device="host:1")


def test_explain_names_every_provider() -> None:
    array = memory.empty(1000, "uint8")
    explanation = memory.explain("host")
    assert explanation["order"] == ["umf", "direct", "sycl"]
    assert [provider["name"] for provider in explanation["providers"]] == explanation["order"]
    provider_entry = {provider["name"]: provider for provider in explanation["providers"]}[
        memory.query(array).provider
    ]
    assert provider_entry["available"] and provider_entry["live_bytes"] >= 1000
    unavailable = [provider for provider in explanation["providers"] if not provider["available"]]
    assert all(provider["reason"] for provider in unavailable)
    memory.trim("host")


def test_symmetric_arrays_reduce_in_place(pair) -> None:
    arrays = run_on_all_ranks(pair, lambda comm: memory.symmetric(comm, (4, 2), "float32"))
    for rank, array in enumerate(arrays):
        array[:] = rank + 1
    run_on_all_ranks(pair, lambda comm: comm.allreduce(isthmus.IN_PLACE, arrays[comm.rank]))
    assert arrays[0].tolist() == [[3.0, 3.0]] * 4


def test_environment_forces_provider() -> None:
    program = "from isthmus import memory; a = memory.empty(9); print(memory.query(a).provider)"
    for provider in ("direct", "-umf"):
        completed = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "ISTHMUS_MEMORY_PROVIDER": provider},
            capture_output=True,
            text=True,
            check=True,
        )
        assert completed.stdout.strip() == "direct"


def test_info_shows_the_providers() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "isthmus", "info", "--json"], capture_output=True, text=True, check=True
    )
    host = json.loads(completed.stdout)["memory"]["host:0"]
    assert [provider["name"] for provider in host["providers"]] == ["umf", "direct", "sycl"]


def test_info_without_umf_prints_no_warning() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "isthmus", "info"],
        env=os.environ | {"ISTHMUS_UMF_LIBRARY": "/nowhere/libumf.so", "COLUMNS": "300"},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0 and completed.stderr == ""
    assert "UMF could not be loaded" in completed.stdout


def test_allocation_in_a_group_is_rejected():
    """One thread that drives all ranks would wait for itself."""
    ranks = isthmus.Communicator.create_all(2)
    with pytest.raises(isthmus.Error, match="inside a group"), isthmus.group():
        ranks[0].empty(4)
    with isthmus.group():
        sums = [comm.allreduce(np.ones(1)) for comm in ranks]
    assert sums[0] == 2
