"""ISTHMUS_TRACE and `isthmus trace merge`: real ranks, one of them late or killed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_program import CULPRIT, PAUSE_S, SIZE
from test_jobs import PATIENCE_S, job

import isthmus
from isthmus.cli.app import main


def merged(folder: Path, target: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary of the only communicator, and the calls of the timeline."""
    assert main(["trace", "merge", str(folder), "--out", str(target), "--json"]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    return events, [event for event in events if event["ph"] in "XB"]


@pytest.fixture(scope="module")
def with_a_late_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("late")
    with job("pause", folder, 600, ISTHMUS_TRACE=str(folder / "traces")) as processes:
        for process in processes:
            assert process.wait(PATIENCE_S) == 0
    yield folder / "traces"


def test_the_late_rank_is_named(
    with_a_late_rank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {file.stat().st_mode & 0o777 for file in with_a_late_rank.iterdir()} == {0o600}
    target = tmp_path / "trace.json"
    _, calls = merged(with_a_late_rank, target)
    (told,) = json.loads(capsys.readouterr().out)["communicators"]
    assert told["state"] == "ended" and told["size"] == SIZE and told["matched"] == 7
    ranks = {rank["rank"]: rank for rank in told["ranks"]}
    waited = {rank: each["others_waited_us"] for rank, each in ranks.items()}
    assert max(waited, key=waited.get) == CULPRIT
    # Two others waited, each nearly as long as it slept.
    assert waited[CULPRIT] > (SIZE - 1) * PAUSE_S * 1e6 / 2
    assert told["worst"][0]["last"] == CULPRIT
    assert told["worst"][0]["call"].startswith("allreduce #4 (float32 x 1024, sum) by host")

    assert len(calls) == SIZE * 7
    (late,) = [
        call for call in calls if call["pid"] == CULPRIT + 1 and call["args"]["call"].startswith("allreduce #4")
    ]
    assert late["args"]["last_rank"] == CULPRIT and late["args"]["bytes"] == 4096
    assert late["args"]["path"].startswith("host:") and "rule" in late["args"]["reason"]
    for call in calls:
        assert call["ph"] == "X" and call["dur"] >= 0 and 0 <= call["args"]["enqueued_us"] <= call["ts"]


def test_the_table(with_a_late_rank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "trace.json"
    arguments = ["trace", "merge", str(with_a_late_rank), "-o", str(target)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"allreduce #4 .*: rank {CULPRIT} came last", printed), printed
    assert main(arguments) == 2 and "--force overwrites it" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    for blocked in (target / "trace.json", tmp_path):  # below a file, and in the place of a folder
        assert main(["trace", "merge", str(with_a_late_rank), "-o", str(blocked), "-f"]) == 2
        assert f"cannot write {blocked}" in capsys.readouterr().err


def test_a_killed_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The survivors are killed, too, while they still hold the communicator."""
    folder = tmp_path / "traces"
    with job("die", tmp_path, 2, ISTHMUS_TRACE=str(folder)) as processes:
        for rank in set(range(SIZE)) - {CULPRIT}:
            output = processes[rank].stdout
            assert output is not None and output.readline()
    _, calls = merged(folder, tmp_path / "trace.json")
    (told,) = json.loads(capsys.readouterr().out)["communicators"]
    assert told["state"] == "died", told
    assert re.match(rf"rank {CULPRIT} \(pid \d+\) has ended and has not entered allreduce #4", told["sentence"])
    assert {rank["state"] for rank in told["ranks"]} == {"died"}
    assert [rank["calls"] for rank in told["ranks"]] == [4, 4, 3]
    assert any("failed" in call["args"] for call in calls)


def test_a_job_that_hangs_can_be_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    with job("slow", tmp_path, 600, ISTHMUS_TRACE=str(folder)):
        # The others come to their fourth call in their own time.
        for _ in range(PATIENCE_S * 20):
            _, calls = merged(folder, tmp_path / f"{os.urandom(4).hex()}.json")
            (told,) = json.loads(capsys.readouterr().out)["communicators"]
            if sum(call["ph"] == "B" for call in calls) == SIZE - 1:
                break
        assert told["state"] == "running", told
        assert f"rank {CULPRIT} (pid" in told["sentence"] and "has not entered allreduce #4" in told["sentence"]


def test_what_cannot_be_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(folder: Path) -> str:
        assert main(["trace", "merge", str(folder), "-o", str(tmp_path / "trace.json")]) == 2
        assert not list(tmp_path.glob("trace.json*"))
        return capsys.readouterr().err

    assert "is no folder" in refusal(tmp_path / "nowhere")
    assert "holds no trace" in refusal(tmp_path)
    (tmp_path / "a.trace").write_bytes(b"ITRECO9" + bytes(100))
    assert "layout 9" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [("ISTHMUS_TRACE", "/dev/null", "is no folder"), ("ISTHMUS_TRACE_CALLS", "few", "is no number from 256")],
)
def test_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, what: str
) -> None:
    monkeypatch.setenv("ISTHMUS_TRACE", str(tmp_path))
    monkeypatch.setenv(name, value)
    with pytest.raises(isthmus.Error, match=rf"environment {name}: .*{what}"):
        isthmus.Communicator.all(2)
