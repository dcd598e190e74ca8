"""isthmus.fused compared with float64 NumPy: types, layouts, kinds, errors, and `isthmus bench`."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import run_cli, run_on_all_ranks

import isthmus
from isthmus.fused import Plan
from isthmus.records import Report

ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


@pytest.fixture(autouse=True)
def _blas(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy_openblas32

    folder = Path(scipy_openblas32.get_lib_dir())
    monkeypatch.setenv("ISTHMUS_BLAS_LIBRARY", str(folder / "libscipy_openblas.so"))


def random_matrix(rows: int, cols: int, dtype: str, seed: int) -> np.ndarray:
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return (2 * np.random.default_rng(seed).random((rows, cols)) - 1).astype(numpy_dtype)


def check(c: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, k: int, output: str) -> None:
    bound = magnitude * ((k + 8) * 2.0**-24) + np.abs(expected) * 1.01 * ROUNDOFF[output] + 1e-30
    assert np.all(np.abs(c.astype(np.float64) - expected) <= bound)


@pytest.mark.parametrize("mode", ["model", "sequential", "pipelined"])
@pytest.mark.parametrize(
    ("dtype", "output"), [("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_allgather_gemm(
    pair: list[isthmus.Communicator], mode: str, dtype: str, output: str, order: str
) -> None:
    a, b = random_matrix(46, 31, dtype, 1), np.asarray(random_matrix(31, 17, dtype, 2), order=order)
    bias = random_matrix(1, 17, output, 3)[0]
    a64, b64 = a.astype(np.float64), b.astype(np.float64)

    def rank(communicator: isthmus.Communicator) -> None:
        own = a[communicator.rank * 23 : (communicator.rank + 1) * 23]
        gathered = np.empty_like(a)
        with Plan(communicator, own, b, output=output, mode=mode) as plan:
            for scale in (1.0, -0.75):
                c = plan(own, b, bias=bias, alpha=scale, gathered_a=gathered)
                magnitude = abs(scale) * (np.abs(a64) @ np.abs(b64)) + np.abs(bias.astype(np.float64))
                check(c, scale * (a64 @ b64) + bias.astype(np.float64), magnitude, 31, output)
                assert np.array_equal(gathered.view(np.uint8), a.view(np.uint8))

    run_on_all_ranks(pair, rank)


@pytest.mark.parametrize("mode", ["model", "sequential", "pipelined"])
def test_gemm_reduce_scatter(pair: list[isthmus.Communicator], mode: str) -> None:
    a, b = random_matrix(46, 31, "float16", 1), random_matrix(31, 17, "float16", 2)
    bias = random_matrix(1, 17, "float32", 3)[0]
    expected = a.astype(np.float64) @ b.astype(np.float64) + bias
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(bias)

    def rank(communicator: isthmus.Communicator) -> None:
        # The inner dimension is split into 12 for rank 0 and 19 for rank 1.
        columns = slice(0, 12) if communicator.rank == 0 else slice(12, 31)
        left, right = np.ascontiguousarray(a[:, columns]), b[columns]
        own = slice(communicator.rank * 23, (communicator.rank + 1) * 23)
        with Plan(communicator, left, right, kind="gemm_reduce_scatter", output="float32", mode=mode) as plan:
            c = plan(left, right, bias=bias)
            assert c.shape == (23, 17)
            check(c, expected[own], magnitude[own], 40, "float32")
            with pytest.raises(isthmus.Error, match="beta = 1 must be 0"):
                plan(left, right, out=c, beta=1.0)

    run_on_all_ranks(pair, rank)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gemm_allreduce(pair: list[isthmus.Communicator], dtype: str, order: str) -> None:
    a, b = random_matrix(5, 31, dtype, 1), random_matrix(31, 17, dtype, 2)
    bias = random_matrix(1, 17, "float32", 3)[0]
    expected = a.astype(np.float64) @ b.astype(np.float64) + bias
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(bias)
    results = {}

    def rank(communicator: isthmus.Communicator) -> None:
        # The inner dimension is split into 12 for rank 0 and 19 for rank 1.
        columns = slice(0, 12) if communicator.rank == 0 else slice(12, 31)
        left, right = np.ascontiguousarray(a[:, columns]), np.asarray(b[columns], order=order)
        with Plan(communicator, left, right, kind="gemm_allreduce", output="float32") as plan:
            assert plan.info["kind"] == "gemm_allreduce" and plan.info["mode"] == "sequential"
            results[communicator.rank] = plan(left, right, bias=bias)
            check(results[communicator.rank], expected, magnitude, 40, "float32")

    run_on_all_ranks(pair, rank)
    assert np.array_equal(results[0], results[1])


def test_torch_tensors_can_be_multiplied(pair: list[isthmus.Communicator]) -> None:
    torch = pytest.importorskip("torch")
    a = torch.tensor(random_matrix(20, 12, "float32", 4)).to(torch.bfloat16)
    b = torch.tensor(random_matrix(12, 8, "float32", 5)).to(torch.bfloat16)

    def rank(communicator: isthmus.Communicator) -> None:
        own = a[communicator.rank * 10 : (communicator.rank + 1) * 10]
        with Plan(communicator, own, b, mode="pipelined", chunks=2, trace=True) as plan:
            c = plan(own, b)
            assert c.dtype == torch.bfloat16
            expected = (a.double() @ b.double()).numpy()
            check(c.double().numpy(), expected, (a.double().abs() @ b.double().abs()).numpy(), 12, "bfloat16")
            names = [event["name"] for event in plan.trace["traceEvents"] if event["ph"] == "X"]
            assert len([name for name in names if f"rank {1 - communicator.rank} rows" in name]) == 4
            assert plan.info["mode"] == "pipelined"

    run_on_all_ranks(pair, rank)


def test_model_falls_back_and_reports_reason(tmp_path: Path) -> None:
    config = tmp_path / "slow.toml"
    config.write_text("[backend.fused]\npipeline_us = 1e9\n")
    ranks = isthmus.Communicator.create_all(2, config=str(config))

    def rank(communicator: isthmus.Communicator) -> None:
        a, b = random_matrix(4, 3, "float32", 6), random_matrix(3, 5, "float32", 7)
        with Plan(communicator, a, b) as plan:
            assert plan.info["mode"] == "sequential"
            assert "the model predicts" in plan.info["reason"]
            assert plan.info["predicted_us"]["pipelined"] > 1e9 > plan.info["predicted_us"]["sequential"]
            own = communicator.rank * 4
            assert np.allclose(plan(a, b)[own : own + 4], a @ b)
        with Plan(communicator, a, b, mode="pipelined") as plan:
            assert plan.info["mode"] == "pipelined", "the requested mode must be used"
            plan(a, b)
            assert "outside the symmetric heap" in plan.info["notes"][0]

    run_on_all_ranks(ranks, rank)
    for communicator in ranks:
        communicator.close()


def test_invalid_plans_and_arguments_are_rejected(pair: list[isthmus.Communicator]) -> None:
    def rank(communicator: isthmus.Communicator) -> None:
        a, b = random_matrix(4, 3, "float32", 6), random_matrix(3, 5, "float32", 7)
        with pytest.raises(ValueError, match="a's columns must be b's rows"):
            Plan(communicator, a, b.T)
        with pytest.raises(ValueError, match="rows or columns must be contiguous"):
            Plan(communicator, np.zeros((8, 6), np.float32)[::2, ::2], b)
        with pytest.raises(TypeError, match=r"^a is a list, must be a NumPy array"):
            Plan(communicator, [[1.0]], b)
        with pytest.raises(ValueError, match="kind 'gemm' is unknown"):
            Plan(communicator, a, b, kind="gemm")
        with pytest.raises(ValueError, match="mode 'fast' is unknown"):
            Plan(communicator, a, b, mode="fast")
        with pytest.raises(isthmus.Error, match="input = int32 is not supported") as error_info:
            Plan(communicator, a.astype(np.int32), b.astype(np.int32))
        assert error_info.value.hint == "use float16, bfloat16 or float32"
        with pytest.raises(isthmus.Error, match="m = 5 is not a multiple of the 2 ranks"):
            Plan(communicator, random_matrix(5, 3, "float32", 6), b, kind="gemm_reduce_scatter")
        with pytest.raises(isthmus.Error, match="description->n: rank 0 has 5, rank 1 has 4"):
            Plan(communicator, a, b[:, : 5 - communicator.rank])
        with Plan(communicator, a, b) as plan:
            with pytest.raises(ValueError, match="the plan was created for"):
                plan(a[:2], b)
            with pytest.raises(ValueError, match="out must be 8 x 5 float32"):
                plan(a, b, out=np.empty((8, 4), np.float32))
            full_a = np.zeros((9, 3), np.float32)
            with pytest.raises(isthmus.Error, match="overlaps"):
                plan(full_a[1:5], b, gathered_a=full_a[:8])
            assert np.allclose(plan(a, b)[communicator.rank * 4 : communicator.rank * 4 + 4], a @ b)

    run_on_all_ranks(pair, rank)


def test_bench_allgather_gemm_writes_report_and_trace(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("report.json", "trace.json", "picture.png")}
    completed = run_cli(
        *("bench", "allgather_gemm", "-n", "2", "--m", "64", "--k", "32", "--n", "48", "--dtype", "float16"),
        *("--json", str(files["report.json"]), "--trace", str(files["trace.json"])),
        *("--plot", str(files["picture.png"])),
    )
    assert completed.returncode == 0, completed.stderr
    assert (
        "verified against float64, every element: wrong before 0, after 0, with late ranks 0"
        in completed.stdout
    )
    for view in ("compute only", "sequential", "pipelined"):
        assert view in completed.stdout
    report = Report.load(files["report.json"])
    assert {"compute_only", "sequential", "pipelined", "fused"} <= {entry.view for entry in report.records}
    assert all(
        entry.wrong == 0 for entry in report.records if entry.view in ("sequential", "pipelined", "fused")
    )
    slices = [
        entry for entry in json.loads(files["trace.json"].read_text())["traceEvents"] if entry["ph"] == "X"
    ]
    for rank in (0, 1):
        own = {(entry["cat"], entry["name"]) for entry in slices if entry["pid"] == rank}
        assert ("compute", f"rank {rank} rows 0..32") in own
        assert any(cat == "copy" and name.startswith(f"rank {1 - rank} rows") for cat, name in own)
    assert files["picture.png"].read_bytes().startswith(b"\x89PNG")


def test_bench_gemm_reduce_scatter_verifies_result() -> None:
    completed = run_cli(
        *("bench", "gemm_reduce_scatter", "-n", "2", "--m", "64", "--k", "32", "--n", "48"),
        *("--dtype", "bfloat16", "--output", "bfloat16"),
    )
    assert completed.returncode == 0, completed.stderr
    assert (
        "verified against float64, every element: wrong before 0, after 0, with late ranks 0"
        in completed.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--m", "65"), "--m 65 must be a multiple of the 2 ranks"),
        (("--dtype", "int32"), "int32 is not supported"),
        (
            ("--dtype", "float16", "--output", "bfloat16"),
            "--output bfloat16: must be float32 or the input type float16",
        ),
        (("--device", "tpu"), "--device tpu is unknown"),
    ],
)
def test_bench_rejects_invalid_gemm_arguments(arguments: tuple[str, ...], message: str) -> None:
    completed = run_cli("bench", "allgather_gemm", "-n", "2", *arguments)
    assert completed.returncode == 2
    assert message in completed.stderr


def test_trace_option_requires_fused_collective() -> None:
    completed = run_cli("bench", "allreduce", "--trace", "file.json")
    assert completed.returncode == 2
    assert "--trace is not supported for allreduce" in completed.stderr
