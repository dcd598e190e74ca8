"""isthmus.traces on synthetic files: matching, waits, clocks of two machines, and invalid files."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import _isthmus
from isthmus.table import Collective, Datatype
from isthmus.traces import MergedTrace, TraceError, merge, summarize, write_timeline
from isthmus.traces.files import ENTRY, HEADER

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "trace"
MS, HOUR_NS, SECOND_NS = 1_000_000, 3_600_000_000_000, 1_000_000_000
REASONS = 2
# (begin, end) of a call in ns; end 0: the call has not returned.
Times = Sequence[tuple[int, int]]


def make_trace(
    rank: int,
    times: Times,
    *,
    size: int = 2,
    counts: Sequence[int] = (),
    call_count: int | None = None,
    clock_shift: tuple[int, int] = (0, 0),
    **fields: Any,
) -> bytes:
    """Returns the trace of a rank that called allreduce at these times.

    `clock_shift` is added to the monotonic and to the real-time clock of the rank's machine.
    """
    head = np.zeros(1, HEADER)
    values = {
        "magic": b"ITRECO3",
        "header_bytes": HEADER.itemsize,
        "entry_bytes": ENTRY.itemsize,
        "token": (1, 2),
        "rank": rank,
        "size": size,
        "pid": 4711 + rank,
        "entries": max(16, 1 << (len(times) - 1).bit_length()),
        "reason_capacity": REASONS,
        "blocking_backends": 1,
        "call_count": len(times) if call_count is None else call_count,
        "paths": 2,
        "reasons": REASONS,
        "closing": 1,
        "clock_sample_count": 1,
        "machine": b"one",
        "boot": b"a",
        **fields,
    }
    for name, value in values.items():
        head[name] = value
    monotonic, realtime = clock_shift
    head["clock_samples"][0, 0] = (0, 1000 + monotonic, 5000 + realtime)
    head["clock_samples"][0, 2] = (HOUR_NS, HOUR_NS + 1000 + monotonic, HOUR_NS + 5000 + realtime)
    head["path"][0, 1] = b"shm:ring"
    entries = np.zeros(int(head["entries"][0]), ENTRY)
    signature = Collective.allreduce.value | Datatype.float32.value << 8
    for index, (begin, end) in enumerate(times):
        count = counts[index] if counts else 4
        entries[index] = (2 * index + 2, index + 1, signature, count, 1, begin, end, 1 if end else 0)
    sections = head.tobytes() + bytes(8 * size + 192 * REASONS)
    return sections + bytes(-len(sections) % 64) + entries.tobytes()


def write_traces(folder: Path, *traces: bytes) -> None:
    for rank, trace in enumerate(traces):
        (folder / f"isthmus-{rank}.trace").write_bytes(trace)


def write_documents(trace: MergedTrace, target: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the summary and the events of the timeline. Both must be JSON."""
    write_timeline(trace, target)
    return json.loads(json.dumps(summarize(trace))), json.loads(target.read_text())["traceEvents"]


def test_calls_of_real_recorder_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if files.py and src/recorder/layout.hpp differ."""
    monkeypatch.setenv("ISTHMUS_TRACE", str(tmp_path / "traces"))
    monkeypatch.setenv("ISTHMUS_TRACE_CALLS", "1024")
    (communicator,) = isthmus.Communicator.create_all(1)
    values = np.ones(4, np.float32)
    for _ in range(1100):
        communicator.allreduce(values, values, "max")
    _isthmus.group_start()
    communicator.broadcast(values, values, root=0)
    time.sleep(0.02)
    _isthmus.group_end()
    summary, events = write_documents(merge(tmp_path / "traces"), tmp_path / "running.json")
    (rank,) = summary["communicators"][0]["ranks"]
    assert rank["state"] == "running" and rank["pid"] == os.getpid() and rank["last_arrivals"] == 0
    assert rank["calls"] >= 1101 and rank["overwritten"] == rank["calls"] - 1024
    last, previous = events[-1], events[-2]
    assert previous["args"]["call"].startswith("allreduce #") and previous["args"]["bytes"] == 16
    assert previous["args"]["call"].endswith(" (float32 x 4, max)") and previous["ph"] == "X"
    assert last["args"]["call"].endswith("(float32 x 4, root 0)") and "rule" in last["args"]["reason"]
    assert last["ts"] - last["args"]["enqueued_us"] >= 19_000  # the group ended after the request
    assert ":" in last["args"]["path"] and last["cat"] == "collective"
    assert summary["communicators"][0]["sentence"].startswith("no rank waits; the last collective is broadcast")
    communicator.close()
    summary, _ = write_documents(merge(tmp_path / "traces"), tmp_path / "ended.json")
    assert summary["communicators"][0]["state"] == "ended" and summary["communicators"][0]["sentence"] == ""


def test_last_rank_is_identified(tmp_path: Path) -> None:
    # The first rank does not make the second call.
    first = make_trace(0, [(100 * MS, 121 * MS)], closing=0, pid=os.getpid())
    second = make_trace(1, [(120 * MS, 122 * MS), (130 * MS, 131 * MS)], counts=[4, 8])
    write_traces(tmp_path, first, second)
    summary, events = write_documents(merge(tmp_path), tmp_path / "timeline.json")
    (communicator,) = summary["communicators"]
    assert communicator["matched"] == 1 and communicator["mismatched_calls"] == 0
    late, early = communicator["ranks"][1], communicator["ranks"][0]
    assert (late["last_arrivals"], early["last_arrivals"]) == (1, 0)
    assert late["others_waited_us"] == early["waited_us"] == 20_000
    assert late["waited_us"] == early["others_waited_us"] == 0
    (worst,) = communicator["worst"]
    assert worst == {
        "call": "allreduce #1 (float32 x 4, sum) by shm:ring",
        "last": 1,
        "delay_us": 20_000,
        "others_waited_us": 20_000,
    }
    assert sum(event["ph"] == "X" for event in events) == 3
    assert events[-1]["args"] == {
        "call": "allreduce #2 (float32 x 8, sum)",
        "enqueued_us": 30_000,
        "bytes": 32,
        "path": "shm:ring",
    }
    assert (events[-1]["ts"], events[-1]["dur"], events[-1]["cat"]) == (30_000, 1000, "collective")
    with pytest.raises(FileExistsError):
        write_timeline(merge(tmp_path), tmp_path / "timeline.json")
    assert (tmp_path / "timeline.json").stat().st_mode & 0o777 == 0o600


def test_different_calls_are_not_matched(tmp_path: Path) -> None:
    times = [(1 * MS, 2 * MS), (3 * MS, 4 * MS)]
    write_traces(tmp_path, make_trace(0, times, counts=[4, 8]), make_trace(1, times, counts=[4, 16]))
    (communicator,) = merge(tmp_path).communicators
    assert communicator.matched.index.tolist() == [[0], [0]] and communicator.mismatched_calls == 1


def test_missing_ranks_and_lost_calls_are_reported(tmp_path: Path) -> None:
    write_traces(tmp_path, make_trace(2, [(1, 2)], size=4, call_count=1100))
    (communicator,) = summarize(merge(tmp_path))["communicators"]
    assert communicator["absent"] == [0, 1, 3]
    assert communicator["ranks"][0]["calls"] == 1100 and communicator["ranks"][0]["overwritten"] == 1099
    assert communicator["ranks"][0]["state"] == "ended"


def test_clocks_of_two_machines_are_aligned_by_calls(tmp_path: Path) -> None:
    """The ranks alternate in being early. At the end, one is 20 ms late."""
    early_times = [(each * MS, each * MS + 4000) for each in range(1, 51)]
    late_times = [(begin + 1000, end - 1000) for begin, end in early_times]
    first = [*sorted(early_times[::2] + late_times[1::2]), (100 * MS, 121 * MS)]
    second = [*sorted(late_times[::2] + early_times[1::2]), (120 * MS, 120 * MS + 1000)]
    other_machine = {"machine": b"other", "boot": b"elsewhere", "clock_shift": (HOUR_NS, SECOND_NS)}
    write_traces(tmp_path, make_trace(0, first), make_trace(1, second, **other_machine))
    merged = merge(tmp_path)
    _, machine = merged.machines
    assert machine.alignment_source == "the ends of collectives"
    assert abs(machine.offset_ns + HOUR_NS) <= machine.uncertainty_ns < 20 * MS
    matched = merged.communicators[0].matched
    assert matched.last[-1] == 1
    assert matched.delay_ns[-1] >= 19 * MS - machine.uncertainty_ns


def test_clocks_without_common_calls_use_real_time(tmp_path: Path) -> None:
    other_machine = {"machine": b"other", "boot": b"elsewhere", "clock_shift": (HOUR_NS, SECOND_NS)}
    write_traces(tmp_path, make_trace(0, [(MS, 2 * MS)]), make_trace(1, [], **other_machine))
    _, machine = merge(tmp_path).machines
    assert machine.alignment_source == "the real-time clocks"
    assert machine.offset_ns == SECOND_NS - HOUR_NS and machine.uncertainty_ns == 0


def refusal(folder: Path) -> str:
    with pytest.raises(TraceError) as caught:
        merge(folder)
    return str(caught.value)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    path, valid = tmp_path / "a.trace", make_trace(0, [(1, 2)])

    def refusal_of_contents(contents: bytes) -> str:
        path.write_bytes(contents)
        return refusal(tmp_path)

    assert "contains no trace; set ISTHMUS_TRACE" in refusal(tmp_path)
    assert "cannot be read: No such file" in refusal(tmp_path / "nowhere")
    assert "it is empty" in refusal_of_contents(b"")
    assert "truncated: 3 bytes" in refusal_of_contents(b"abc")
    assert "not written by a flight recorder" in refusal_of_contents(b"x" * 9000)
    assert "layout 1, this version reads 3" in refusal_of_contents(b"ITRECO1" + bytes(9000))
    assert "truncated: 100 bytes" in refusal_of_contents(valid[:100])
    expected = f"truncated: {len(valid) - 64} of {len(valid)} bytes"
    assert expected in refusal_of_contents(valid[:-64])
    assert "its header is damaged" in refusal_of_contents(make_trace(2, [(1, 2)]))
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "symbolic links" in refusal(tmp_path)
    path.unlink()
    # If another trace is readable, they are only reported.
    write_traces(tmp_path, valid)
    (tmp_path / "other.trace").write_bytes(b"abc")
    assert merge(tmp_path).skipped_files == [f"{tmp_path}/other.trace: it is truncated: 3 bytes"]


def test_copied_and_damaged_files_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    times = [(each * MS, each * MS + 1000) for each in range(1, 21)]
    originals = [make_trace(rank, times) for rank in (0, 1)]
    write_traces(folder, *originals)
    (folder / "y.trace").write_bytes(originals[1])
    assert len(merge(folder).skipped_files) == 1
    generator = random.Random(1)  # reproducible
    for attempt in range(300):
        damaged = bytearray(originals[1])
        for _ in range(4):
            limit = 256 if attempt % 2 == 0 else len(damaged)
            damaged[generator.randrange(limit)] = generator.randrange(256)
        write_traces(folder, originals[0], bytes(damaged))
        write_documents(merge(folder), tmp_path / f"{attempt}.json")


def fuzz_trace(rank: int) -> bytearray:
    """A valid trace like those of tests/fuzz/trace.cpp, which the inputs change."""
    begins = [1100 + 100 * index + 10 * rank for index in range(9)]
    trace = make_trace(
        rank,
        [(begin, begin + 50) for begin in begins],
        machine=b"other" if rank else b"one",
        boot=b"b" if rank else b"a",
    )
    return bytearray(trace)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not installed")
def test_fuzz_corpus_gives_json_or_error(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    merged_inputs = 0
    for number, path in enumerate(sorted(CORPUS.iterdir())):
        data, files = path.read_bytes(), [fuzz_trace(0), fuzz_trace(1)]
        for position in range(0, len(data) - 10, 11):
            file_index, word, value = struct.unpack_from("<BHQ", data, position)
            file, offset = files[file_index % 2], 4 * word
            if offset + 8 <= len(file):
                struct.pack_into("<Q", file, offset, value)
            else:
                file[offset:] = bytes(max(0, offset - len(file)))
        write_traces(folder, *map(bytes, files))
        try:
            write_documents(merge(folder), tmp_path / f"{number}.json")
            merged_inputs += 1
        except TraceError:
            pass
    assert merged_inputs > 20
