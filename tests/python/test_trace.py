"""ISTHMUS_TRACE and `isthmus trace merge` with real ranks, one of which is late or killed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_program import FAULTY_RANK, PAUSE_S, SIZE
from test_jobs import DEADLINE_S, start_job

import isthmus
from isthmus.cli.app import main


def merge(folder: Path, target: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Merges traces. Returns all events of the timeline, and those of calls."""
    assert main(["trace", "merge", str(folder), "--out", str(target), "--json"]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    return events, [event for event in events if event["ph"] in "XB"]


@pytest.fixture(scope="module")
def late_rank_traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("late")
    with start_job("pause", folder, 600, ISTHMUS_TRACE=str(folder / "traces")) as processes:
        for process in processes:
            assert process.wait(DEADLINE_S) == 0
    yield folder / "traces"


def test_late_rank_is_named(late_rank_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {file.stat().st_mode & 0o777 for file in late_rank_traces.iterdir()} == {0o600}
    target = tmp_path / "trace.json"
    _, calls = merge(late_rank_traces, target)
    (summary,) = json.loads(capsys.readouterr().out)["communicators"]
    assert summary["state"] == "ended" and summary["size"] == SIZE and summary["matched"] == 7
    ranks = {rank["rank"]: rank for rank in summary["ranks"]}
    others_waited_us = {rank: each["others_waited_us"] for rank, each in ranks.items()}
    assert max(others_waited_us, key=others_waited_us.get) == FAULTY_RANK
    # Two other ranks waited, each almost as long as the late rank slept.
    assert others_waited_us[FAULTY_RANK] > (SIZE - 1) * PAUSE_S * 1e6 / 2
    assert summary["worst"][0]["last"] == FAULTY_RANK
    assert summary["worst"][0]["call"].startswith("allreduce #4 (float32 x 1024, sum) by shm:")

    assert len(calls) == SIZE * 7
    (late_call,) = [
        call
        for call in calls
        if call["pid"] == FAULTY_RANK + 1 and call["args"]["call"].startswith("allreduce #4")
    ]
    assert late_call["args"]["last_rank"] == FAULTY_RANK and late_call["args"]["bytes"] == 4096
    assert late_call["args"]["path"].startswith("shm:") and "rule" in late_call["args"]["reason"]
    for call in calls:
        assert call["ph"] == "X" and call["dur"] >= 0 and 0 <= call["args"]["enqueued_us"] <= call["ts"]


def test_merge_prints_table_and_protects_output(
    late_rank_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "trace.json"
    arguments = ["trace", "merge", str(late_rank_traces), "-o", str(target)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"allreduce #4 .*: rank {FAULTY_RANK} arrived last", printed), printed
    assert main(arguments) == 2 and "pass --force to overwrite it" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    for unwritable in (target / "trace.json", tmp_path):  # a path below a file, and a folder
        assert main(["trace", "merge", str(late_rank_traces), "-o", str(unwritable), "-f"]) == 2
        assert f"cannot write {unwritable}" in capsys.readouterr().err


def test_trace_of_killed_rank_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The survivors are also killed, before they destroy the communicator."""
    folder = tmp_path / "traces"
    with start_job("die", tmp_path, 2, ISTHMUS_TRACE=str(folder)) as processes:
        for rank in set(range(SIZE)) - {FAULTY_RANK}:
            output = processes[rank].stdout
            assert output is not None and output.readline()
    _, calls = merge(folder, tmp_path / "trace.json")
    (summary,) = json.loads(capsys.readouterr().out)["communicators"]
    assert summary["state"] == "died", summary
    assert re.match(
        rf"rank {FAULTY_RANK} \(pid \d+\) has exited and has not entered allreduce #4", summary["sentence"]
    )
    assert {rank["state"] for rank in summary["ranks"]} == {"died"}
    assert [rank["calls"] for rank in summary["ranks"]] == [4, 4, 3]
    assert any("failed" in call["args"] for call in calls)


def test_trace_of_hanging_job_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    with start_job("slow", tmp_path, 600, ISTHMUS_TRACE=str(folder)):
        # Wait until the other ranks have started their fourth call.
        for _ in range(DEADLINE_S * 20):
            _, calls = merge(folder, tmp_path / f"{os.urandom(4).hex()}.json")
            (summary,) = json.loads(capsys.readouterr().out)["communicators"]
            if sum(call["ph"] == "B" for call in calls) == SIZE - 1:
                break
        assert summary["state"] == "running", summary
        assert (
            f"rank {FAULTY_RANK} (pid" in summary["sentence"]
            and "has not entered allreduce #4" in summary["sentence"]
        )


def test_unreadable_traces_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def merge_error(folder: Path) -> str:
        assert main(["trace", "merge", str(folder), "-o", str(tmp_path / "trace.json")]) == 2
        assert not list(tmp_path.glob("trace.json*"))
        return capsys.readouterr().err

    assert "is not a folder" in merge_error(tmp_path / "nowhere")
    assert "contains no trace" in merge_error(tmp_path)
    (tmp_path / "a.trace").write_bytes(b"ITRECO9" + bytes(100))
    assert "layout 9" in merge_error(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ISTHMUS_TRACE", "/dev/null", "is not a directory"),
        ("ISTHMUS_TRACE_CALLS", "few", "must be a number from 256"),
    ],
)
def test_invalid_trace_settings_are_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv("ISTHMUS_TRACE", str(tmp_path))
    monkeypatch.setenv(name, value)
    with pytest.raises(isthmus.Error, match=rf"environment {name}: .*{message}"):
        isthmus.Communicator.create_all(2)
