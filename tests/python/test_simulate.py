"""`isthmus simulate`: table, JSON document, plot, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli import main

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["simulate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_document_explains_time(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "--nodes", "1024", "--gpus", "8", "--network", "400G", "allreduce", "128,1M,1G")
    assert [result["bytes"] for result in document["results"]] == [128, 1 << 20, 1 << 30]
    for result in document["results"]:
        times = [plan["time_us"] for plan in result["plans"]]
        assert times == sorted(times)
        for plan in result["plans"]:
            assert plan["time_us"] == pytest.approx(sum(plan["parts_us"].values()) - plan["overlap_us"])
            assert min(plan["parts_us"].values()) >= 0
    names = {plan["name"] for result in document["results"] for plan in result["plans"]}
    assert names == {"flat nccl ring", "flat nccl tree", "hierarchical", "hierarchical:single_leader"}
    assert any("H200" in line for line in document["inputs"]["measured"])
    assert any("8 ranks per node: extrapolated" in line for line in document["inputs"]["assumed"])


def test_chunk_limit_is_tried_only_for_larger_messages(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "allreduce", "1M,64M", "--chunk-bytes", "2M,4M,8M")
    chunks = [
        [plan["chunk_bytes"] for plan in result["plans"] if plan["name"] == "hierarchical"]
        for result in document["results"]
    ]
    assert chunks[0] == [None]
    assert sorted(chunks[1]) == [2 << 20, 4 << 20, 8 << 20]


def test_faster_network_is_faster(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("allreduce", "64M", "--platform", "host", "--nodes", "4", "--ranks-per-node", "8")
    times = [
        run_json(capsys, *options, "--network", rate)["results"][0]["plans"][0]["time_us"]
        for rate in ("10G", "100G", "1T")
    ]
    assert times == sorted(times, reverse=True)


def test_table_states_measured_and_assumed_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "allreduce", "1M", "--nodes", "4"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "4 nodes x 8 ranks",
        "flat nccl",
        "measured: nccl with 2, 4 ranks",
        "assumed: network: 8 x 400G",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("options", "backends"),
    [
        (["--nodes", "16", "--intra-node", "p2p"], ["nccl"]),
        (["--nodes", "1", "--intra-node", "p2p"], ["p2p"]),
        (["--nodes", "16", "--platform", "host"], ["shm"]),
    ],
)
def test_table_names_backends_of_printed_plans(
    options: list[str], backends: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "allreduce", "1M", "--all", *options]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^measured: (\w+) with", text, re.M) == backends, text


@pytest.mark.skipif(not RESULTS.is_dir(), reason="needs bench/results")
def test_host_platform_reports_omitted_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = json.loads((RESULTS / "2026-11-27-cpu16-host_sweep.json").read_text())
    document["records"] = [each for each in document["records"] if each["collective"] != "reduce"]
    record = tmp_path / "record.json"
    record.write_text(json.dumps(document))
    options = ("--platform", "host", "--record", str(record), "--nodes", "2", "--ranks-per-node", "4")
    document = run_json(capsys, "allreduce", "64M", *options, "--chunk-bytes", "1M,4M", "--network", "10G")
    plans = [(plan["name"], plan["chunk_bytes"]) for plan in document["results"][0]["plans"]]
    assert sorted(plans[:-1]) == [("hierarchical", 1 << 20), ("hierarchical", 4 << 20)]
    assert plans[-1] == ("flat ucx", None)
    assert document["omitted"] == ["the records of Intel(R) Xeon(R) Processor have no reduce of shm"]


@pytest.mark.skipif(not RESULTS.is_dir(), reason="needs bench/results")
def test_record_replaces_built_in_curves(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(RESULTS / "2026-11-22-cpu2-run.json")
    options = ("--platform", "host", "--record", file, "--nodes", "2", "--ranks-per-node", "2")
    document = run_json(capsys, "alltoall", "1M", *options)
    assert "2026-11-22-cpu2-run.json" in document["inputs"]["measured"][0]
    assert {plan["name"] for plan in document["results"][0]["plans"]} == {"flat ucx", "hierarchical"}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"plot.{suffix}"
    assert main(["simulate", "allreduce", "1K:1M", "--nodes", "3", "--plot", str(target)]) == 0
    assert target.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["allreduc"], 'COLLECTIVE .allreduc. is unknown; allowed: allreduce, .*did you mean "allreduce"'),
        (["allreduce", "1x"], "SIZES: size '1x' must be bytes, e.g. 8"),
        (["allreduce", "0"], "SIZES '0' must be at least 1; remove 0"),
        (
            ["allreduce", "--network", "400"],
            "--network '400' must be a bit rate above 0; pass a number with M, G",
        ),
        (["allreduce", "--network", "0G"], "--network '0G' must be a bit rate above 0; pass"),
        (["allreduce", "--efficiency", "2"], "--efficiency 2 must be above 0 and at most 1; pass"),
        (["allreduce", "--latency", "-1"], "--latency -1 must be at least 0 and finite; pass"),
        (["allreduce", "--overhead", "nan"], "--overhead nan must be at least 0 and finite; pass"),
        (["allreduce", "--platform", "hip"], "--platform 'hip' is unknown; allowed: cuda, host"),
        (["allreduce", "--intra-node", "gloo"], "--intra-node 'gloo' is unknown; allowed: .*nccl"),
        (["allreduce", "--inter-node", "tcp"], "--inter-node 'tcp' is unknown; allowed: ucx, mpi"),
        (["allreduce", "--chunk-bytes", "x"], "--chunk-bytes: size 'x' must be bytes"),
        (["allreduce", "--record", "/nowhere.json"], "--record /nowhere.json: No such file or directory; pass"),
    ],
)
def test_bad_input_names_argument_value_and_rule(
    arguments: list[str], pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    error_text = capsys.readouterr().err
    assert re.search(pattern, error_text) and error_text.count("\n") == 1, error_text
