"""Timeline and summary of a merged trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .files import FAILED_CALL, ROWS, Record, bytes_of, name_of, text_of, text_parts
from .merge import Communicator, MergedTrace, Rank

_MAX_WORST_CALLS = 5  # per communicator; the calls with the longest waits


def summarize(trace: MergedTrace) -> dict[str, Any]:
    """Returns the summary of the waits that `isthmus trace merge` prints."""
    return {
        "machines": [
            {
                "name": machine.name,
                "offset_us": machine.offset_ns * 1e-3,
                "uncertainty_us": machine.uncertainty_ns * 1e-3,
                "alignment_source": machine.alignment_source,
            }
            for machine in trace.machines
        ],
        "communicators": [_summarize_communicator(trace, each) for each in trace.communicators],
        "skipped_files": trace.skipped_files,
    }


def _summarize_communicator(trace: MergedTrace, communicator: Communicator) -> dict[str, Any]:
    recorded_ranks = {rank.record.rank for rank in communicator.ranks}
    return {
        "communicator": communicator.token,
        "size": communicator.size,
        "state": communicator.state,
        "sentence": communicator.sentence,
        "matched": communicator.matched.index.shape[1],
        "mismatched_calls": communicator.mismatched_calls,
        "absent": sorted(set(range(communicator.size)) - recorded_ranks),
        "ranks": [_summarize_rank(trace, rank) for rank in communicator.ranks],
        "worst": _worst_calls(communicator),
    }


def _summarize_rank(trace: MergedTrace, rank: Rank) -> dict[str, Any]:
    record = rank.record
    return {
        "rank": record.rank,
        "pid": record.pid,
        "program": record.program,
        "machine": trace.machines[rank.machine].name,
        "state": rank.state,
        "failure": record.failure,
        "calls": record.call_count,
        "overwritten": max(0, record.call_count - len(record.calls)),
        "last_arrivals": rank.last_arrivals,
        "others_waited_us": rank.others_waited_ns * 1e-3,
        "waited_us": rank.waited_ns * 1e-3,
    }


def _worst_calls(communicator: Communicator) -> list[dict[str, Any]]:
    matched = communicator.matched
    worst = np.argsort(-matched.waited_ns, kind="stable")[:_MAX_WORST_CALLS]
    first = communicator.ranks[0].record
    calls = []
    for position in (int(each) for each in worst if matched.waited_ns[each] > 0):
        index = matched.index[0, position]
        path = first.paths[first.calls.path[index]]
        calls.append(
            {
                "call": text_of(first, index) + (f" by {path}" if path else ""),
                "last": communicator.ranks[matched.last[position]].record.rank,
                "delay_us": float(matched.delay_ns[position]) * 1e-3,
                "others_waited_us": float(matched.waited_ns[position]) * 1e-3,
            }
        )
    return calls


# ---- timeline --------------------------------------------------------------------------------------------


def write_timeline(trace: MergedTrace, path: Path) -> None:
    """Writes a timeline in Chrome's trace event format, for ui.perfetto.dev.

    It has one track per process, with one thread per rank of a communicator. Creates a new file that only its
    user can access. Raises OSError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[')
        separator = "\n"
        for event in _events_of(trace):
            file.write(separator + event)
            separator = ",\n"
        file.write("\n]}\n")


def _events_of(trace: MergedTrace) -> Iterator[str]:
    # The timeline has one process per boot and pid. It uses its own numbers because processes of two machines
    # can have the same pid.
    processes: dict[tuple[str, int], int] = {}
    records = [rank.record for communicator in trace.communicators for rank in communicator.ranks]
    start_ns = min((int(each.calls.requested_ns.min()) for each in records if len(each.calls)), default=0)
    thread = 0
    for communicator in trace.communicators:
        for position, rank in enumerate(communicator.ranks):
            record, key, thread = rank.record, (rank.record.boot, rank.record.pid), thread + 1
            is_new = key not in processes
            process = processes.setdefault(key, len(processes) + 1)
            if is_new:
                name = f"rank {record.rank}: {record.program} (pid {record.pid}) on {record.machine}"
                yield _metadata("process_name", {"pid": process}, {"name": name})
                yield _metadata("process_sort_index", {"pid": process}, {"sort_index": record.rank})
            name = f"rank {record.rank} of {record.size}, communicator {record.communicator[:8]}"
            yield _metadata("thread_name", {"pid": process, "tid": thread}, {"name": name})
            waits = _wait_texts(communicator, position)
            yield from _call_events(record, f'"pid":{process},"tid":{thread}', start_ns, waits)


def _metadata(kind: str, track: dict[str, int], arguments: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": kind, **track, "args": arguments}, separators=(",", ":"))


def _wait_texts(communicator: Communicator, position: int) -> dict[int, str]:
    """Returns the straggler and the waits of each matched call, by its position in the calls of a rank."""
    matched = communicator.matched
    ranks = [rank.record.rank for rank in communicator.ranks]
    columns = (matched.index[position], matched.last, matched.delay_ns * 1e-3, matched.waited_ns * 1e-3)
    return {
        index: f',"last_rank":{ranks[last]},"last_behind_us":{delay:.3f},"others_waited_us":{waited:.3f}'
        for index, last, delay, waited in zip(*(column.tolist() for column in columns), strict=True)
    }


def _call_events(record: Record, track: str, start_ns: int, waits: dict[int, str]) -> Iterator[str]:
    calls = record.calls
    begin = ((calls.begin_ns - start_ns) * 1e-3).tolist()
    durations = np.maximum(0.0, (calls.end_ns - start_ns) * 1e-3 - (calls.begin_ns - start_ns) * 1e-3).tolist()
    requested = ((calls.requested_ns - start_ns) * 1e-3).tolist()
    is_open = (calls.end_ns == 0).tolist()  # the rank was still in the call at the end
    numbers = calls.number.tolist()
    columns = (calls.collective, calls.datatype, calls.op, calls.is_check, calls.root, calls.count)
    keys = zip(*(column.tolist() for column in (*columns, calls.path, calls.reason, calls.state)), strict=True)
    parts_of: dict[tuple, tuple[str, str, bool, str, str]] = {}
    for index, key in enumerate(keys):
        parts = parts_of.get(key)
        if parts is None:
            parts = parts_of[key] = _event_parts(record, index)
        head, before, has_number, after, tail = parts
        duration = "" if is_open[index] else f',"dur":{durations[index]:.3f}'
        yield (
            f'{{"ph":"{"B" if is_open[index] else "X"}",{head},{track},"ts":{begin[index]:.3f}{duration},'
            f'"args":{{"call":"{before}{numbers[index] if has_number else ""}{after}",'
            f'"enqueued_us":{requested[index]:.3f}{tail}{waits.get(index, "")}}}}}'
        )


def _event_parts(record: Record, index: int) -> tuple[str, str, bool, str, str]:
    """Returns the texts that are equal for all calls with the same arguments, path, reason and state."""
    calls = record.calls
    before, number, after = text_parts(record, index)
    path, reason = int(calls.path[index]), int(calls.reason[index])
    name = name_of(int(calls.collective[index]))
    tail = f',"bytes":{bytes_of(calls, index, record.size)},"path":{json.dumps(record.paths[path])}'
    if 0 < reason < len(record.reasons):
        tail += f',"reason":{json.dumps(record.reasons[reason])}'
    if calls.state[index] == FAILED_CALL:
        tail += f',"failed":{json.dumps(record.failure)}'
    if not record.is_blocking[path]:
        tail += ',"end":"enqueued on the stream"'
    head = f'"name":"{name}","cat":"{_category_of(record, index)}"'
    return head, before, bool(number), after, tail


def _category_of(record: Record, index: int) -> str:
    collective = int(record.calls.collective[index])
    if collective >= len(ROWS) or record.calls.is_check[index]:
        return "set-up"
    return "message" if ROWS[collective].peer == "PEER" else "collective"
