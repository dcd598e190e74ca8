"""Reader of trace files. src/recorder/layout.hpp defines their layout."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..table import COLLECTIVES, DATATYPES, CollectiveRow, ReductionOp, has_rank_blocks

_MAGIC, _LAYOUT_VERSION = b"ITRECO", b"3"
_MAX_ENTRIES, _MAX_REASONS, _MAX_RANKS = 1 << 24, 64, 1 << 20
_REASON_BYTES, _PID_BYTES = 192, 8
_MAX_PATHS, _MAX_BACKENDS = 48, 16

_CLOCK_SAMPLE = np.dtype([("ticks", "<u8"), ("monotonic_ns", "<u8"), ("realtime_ns", "<u8")])
DESTROYED = 1  # health_record::destroyed, a value of `closing`
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("header_bytes", "<u4"),
        ("entry_bytes", "<u4"),
        ("token", "<u8", 2),
        ("rank", "<i4"),
        ("size", "<i4"),
        ("pid", "<i8"),
        ("start", "<u8"),
        ("pid_namespace", "<u8"),
        ("has_counter", "<u8"),
        ("entries", "<u8"),
        ("reason_capacity", "<u8"),
        ("timeout_s", "<f8"),
        ("blocking_backends", "<u8"),
        ("paths", "<u4"),
        ("reasons", "<u4"),
        ("clock_sample_count", "<u8"),
        ("clock_samples", _CLOCK_SAMPLE, 3),
        ("backend_of_path", "u1", _MAX_PATHS),
        ("path", "S48", _MAX_PATHS),
        ("program", "S64"),
        ("machine", "S64"),
        ("boot", "S64"),
        ("alignment", "V16"),
        # health_record of src/failure/health.hpp
        ("state", "<u4"),
        ("has_aborted", "<u4"),
        ("closing", "<u4"),
        ("awaited_rank", "<u4"),
        ("failure_details", "V184"),
        ("failure", "S1024"),
        ("failure_rest", "V632"),
        ("call_count", "<u8"),
        ("padding", "V56"),
    ]
)
ENTRY = np.dtype(
    [
        (name, "<u8")
        for name in ("version", "number", "signature", "count", "origin", "begin_ticks", "end_ticks", "state")
    ]
)
_FAILED_STATES = (2, 3)  # health_record: local, published

# entry.state
_RETURNED, FAILED_CALL = 1, 2
# entry.signature: the collective is a row of the collective table or a set-up step.
_SPLIT = 128

ROWS: list[CollectiveRow] = list(COLLECTIVES.values())
_DATATYPE_ROWS = list(DATATYPES.values())
_OP_NAMES = [op.name for op in ReductionOp]
_SEND = COLLECTIVES["send"].collective.value
_RECV = COLLECTIVES["recv"].collective.value

# A damaged file can contain arbitrary times. The limit (36 years) prevents overflows of their differences.
LIMIT_NS = 1 << 60


class TraceError(ValueError):
    """No trace can be read, or one file cannot be read."""


@dataclass
class Calls:
    """The recorded calls of a rank, oldest first. Each field has one element per call."""

    number: np.ndarray  # counts the rank's collectives, or its messages
    collective: np.ndarray
    datatype: np.ndarray
    op: np.ndarray
    is_check: np.ndarray
    root: np.ndarray
    count: np.ndarray
    path: np.ndarray  # index in Record.paths
    reason: np.ndarray  # index in Record.reasons; 0: none
    state: np.ndarray
    has_ended: np.ndarray  # the operation is known to be complete
    # Monotonic clock: requested, passed to the backend, returned. 0: not yet, or unknown.
    requested_ns: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def is_message(self) -> np.ndarray:
        return (self.collective == _SEND) | (self.collective == _RECV)


@dataclass
class Record:
    """One rank of a communicator, as recorded in its file."""

    communicator: str
    rank: int
    size: int
    pid: int
    program: str
    machine: str
    boot: str
    is_closed: bool  # the rank has destroyed the communicator
    call_count: int  # number of recorded calls; `calls` has the ones that are kept
    failure: str  # "": healthy
    created_ns: int  # real-time clock
    monotonic_ns: int  # latest sample of both clocks
    realtime_ns: int
    paths: list[str]  # "backend:algorithm"; "" for set-up steps
    is_blocking: list[bool]  # by path: calls return only when the operation is complete
    reasons: list[str]
    calls: Calls

    def shift_clock(self, shift_ns: int) -> None:
        """Adds a value to all times of calls."""
        shift_ns = max(-LIMIT_NS, min(shift_ns, LIMIT_NS))
        for times in (self.calls.requested_ns, self.calls.begin_ns, self.calls.end_ns):
            known = times != 0
            times[known] = np.clip(times[known] + shift_ns, -LIMIT_NS, LIMIT_NS)


def list_traces(folder: Path) -> list[Path]:
    """Returns the sorted paths of all traces in the folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".trace")
    except OSError as failure:
        raise TraceError(
            f"{folder} cannot be read: {failure.strerror}; use the folder that ISTHMUS_TRACE was set to"
        ) from None


def read_record(path: Path) -> Record:
    """Reads one file. Other processes may write to it in the meantime. Raises TraceError with the reason."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as failure:
        raise TraceError(failure.strerror) from None
    try:
        size_bytes = _checked_size(file)
        # Three copies show which entries changed while they were read. A closed file needs only one.
        copies = [_read(file, size_bytes)]
        if np.frombuffer(copies[0], HEADER, 1)[0]["closing"] != DESTROYED:
            copies += [_read(file, size_bytes), _read(file, size_bytes)]
    except OSError as failure:
        raise TraceError(failure.strerror) from None
    finally:
        os.close(file)
    return _decode(copies)


def _read(file: int, size_bytes: int) -> bytes:
    data = os.pread(file, size_bytes, 0)
    if len(data) < size_bytes:
        raise TraceError(f"it is truncated: {len(data)} bytes")
    return data


def _checked_size(file: int) -> int:
    """Returns the size of the file. Raises TraceError if it is not a complete trace of this user."""
    status = os.fstat(file)
    is_own = status.st_uid == os.geteuid() or os.geteuid() == 0
    if not stat.S_ISREG(status.st_mode) or not is_own or status.st_size == 0:
        raise TraceError("it is empty, or it belongs to another user")
    magic = _read(file, 8) if status.st_size >= 8 else b""
    if not magic:
        raise TraceError(f"it is truncated: {status.st_size} bytes")
    if magic[:6] != _MAGIC:
        raise TraceError("it was not written by a flight recorder")
    if magic[6:] != _LAYOUT_VERSION + b"\0":
        version = magic[6:7].decode(errors="replace")
        raise TraceError(
            f"it was written by another version of Isthmus: layout {version}, this version reads "
            f"{_LAYOUT_VERSION.decode()}"
        )
    if status.st_size < HEADER.itemsize:
        raise TraceError(f"it is truncated: {status.st_size} bytes")
    head = np.frombuffer(_read(file, HEADER.itemsize), HEADER)[0]
    entries = int(head["entries"])
    is_valid = (
        head["header_bytes"] == HEADER.itemsize
        and head["entry_bytes"] == ENTRY.itemsize
        and 0 <= head["rank"] < head["size"] <= _MAX_RANKS
        and 0 < entries <= _MAX_ENTRIES
        and entries & (entries - 1) == 0
        and head["reason_capacity"] <= _MAX_REASONS
    )
    if not is_valid:
        raise TraceError("its header is damaged")
    expected_bytes = _ring_offset(head) + entries * ENTRY.itemsize
    if status.st_size != expected_bytes:
        raise TraceError(f"it is truncated: {status.st_size} of {expected_bytes} bytes")
    return expected_bytes


def _reasons_offset(head: np.void) -> int:
    return HEADER.itemsize + int(head["size"]) * _PID_BYTES


def _ring_offset(head: np.void) -> int:
    return (_reasons_offset(head) + int(head["reason_capacity"]) * _REASON_BYTES + 63) // 64 * 64


def _text(data: bytes) -> str:
    return bytes(data).split(b"\0", 1)[0].decode(errors="replace")


def _decode(copies: list[bytes]) -> Record:
    data = copies[len(copies) // 2]
    head = np.frombuffer(data, HEADER, 1)[0]
    sample_count = int(head["clock_sample_count"])
    latest = head["clock_samples"][sample_count % 2 + 1 if sample_count else 0]
    paths = ["", *(_text(path) for path in head["path"][1:])]
    blocking = int(head["blocking_backends"])
    backends = head["backend_of_path"] % _MAX_BACKENDS
    is_blocking = [True, *(bool(blocking >> int(backend) & 1) for backend in backends[1:])]
    reason_count = min(int(head["reasons"]), int(head["reason_capacity"]))
    offsets = (_reasons_offset(head) + index * _REASON_BYTES for index in range(reason_count))
    return Record(
        communicator="{:016x}{:016x}".format(*head["token"].tolist()),
        rank=int(head["rank"]),
        size=int(head["size"]),
        pid=int(head["pid"]),
        program=_text(head["program"]),
        machine=_text(head["machine"]),
        boot=_text(head["boot"]),
        is_closed=bool(head["closing"] == DESTROYED),
        call_count=int(head["call_count"]),
        failure=_text(head["failure"]) if head["state"] in _FAILED_STATES else "",
        created_ns=int(head["clock_samples"][0]["realtime_ns"]),
        monotonic_ns=int(latest["monotonic_ns"]),
        realtime_ns=int(latest["realtime_ns"]),
        paths=paths,
        is_blocking=is_blocking,
        reasons=[_text(data[offset : offset + _REASON_BYTES]) for offset in offsets],
        calls=_decode_calls(copies, head, latest, np.array(is_blocking)),
    )


def _decode_calls(copies: list[bytes], head: np.void, latest: np.void, is_blocking: np.ndarray) -> Calls:
    """Decodes the complete entries: those whose version is even and equal before and after the copy."""
    before, entries, after = (
        np.frombuffer(copies[index], ENTRY, int(head["entries"]), _ring_offset(head))
        for index in (0, len(copies) // 2, -1)
    )
    versions = before["version"]
    is_complete = (versions != 0) & (versions % 2 == 0) & (versions == after["version"])
    order = np.flatnonzero(is_complete)
    entries = entries[order[np.argsort(versions[order], kind="stable")]]
    signature, origin = entries["signature"], entries["origin"]
    path = (origin & 0xFFFF).astype(np.intp)
    path[path >= _MAX_PATHS] = 0
    first = head["clock_samples"][0]
    rate = _ns_per_tick(first, latest, bool(head["has_counter"]))
    queued_ticks = (origin >> np.uint64(32)) * np.uint64(16)
    return Calls(
        number=entries["number"],
        collective=signature & 0xFF,
        datatype=signature >> 8 & 0xFF,
        op=signature >> 16 & 0xFF,
        is_check=signature >> 25 & 1 != 0,
        root=(signature >> 32).astype(np.uint32).view(np.int32),
        count=entries["count"],
        path=path,
        reason=origin >> 16 & 0xFFFF,
        state=entries["state"],
        has_ended=is_blocking[path] & (entries["state"] == _RETURNED),
        requested_ns=_to_ns(entries["begin_ticks"] - queued_ticks, first, rate),
        begin_ns=_to_ns(entries["begin_ticks"], first, rate),
        end_ns=_to_ns(entries["end_ticks"], first, rate),
    )


def _ns_per_tick(first: np.void, second: np.void, has_counter: bool) -> float:
    ticks = int(second["ticks"]) - int(first["ticks"])
    ns = int(second["monotonic_ns"]) - int(first["monotonic_ns"])
    return ns / ticks if has_counter and ticks > 0 and ns > 0 else 1.0


def _to_ns(ticks: np.ndarray, first: np.void, ns_per_tick: float) -> np.ndarray:
    """Converts ticks to nanoseconds of the monotonic clock; 0 stays 0."""
    elapsed = (ticks - first["ticks"]).view(np.int64) * ns_per_tick
    base = min(int(first["monotonic_ns"]), LIMIT_NS)
    ns = np.clip(elapsed, -LIMIT_NS, LIMIT_NS).astype(np.int64) + base
    return np.where(ticks == 0, 0, np.clip(ns, -LIMIT_NS, LIMIT_NS))


def name_of(collective: int) -> str:
    """Returns the name of a collective or a set-up step."""
    if collective < len(ROWS):
        return ROWS[collective].name
    return "communicator_split" if collective == _SPLIT else "heap_allocate"


def bytes_of(calls: Calls, index: int, size: int) -> int:
    """Returns the size of the call as defined by nccl-tests.

    For collectives with counts, this is the size of the rank's own block. The count of a set-up step is in
    bytes.
    """
    collective, datatype, count = (
        int(values[index]) for values in (calls.collective, calls.datatype, calls.count)
    )
    if collective >= len(ROWS):
        return count
    row = ROWS[collective]
    if datatype >= len(_DATATYPE_ROWS) or row.send_extent == row.recv_extent == "NOTHING":
        return 0
    return count * _DATATYPE_ROWS[datatype].bytes * (size if has_rank_blocks(row.name) else 1)


def text_of(record: Record, index: int) -> str:
    """Formats a call as "allreduce #17 (float32 x 1024, sum)", like src/recorder/format.cpp."""
    before, number, after = text_parts(record, index)
    return before + number + after


def text_parts(record: Record, index: int) -> tuple[str, str, str]:
    """Returns the text of a call in three parts. Only the second one depends on the number of the call."""
    calls = record.calls
    collective, root = int(calls.collective[index]), int(calls.root[index])
    before, number = ("check of " if calls.is_check[index] else "") + name_of(collective), ""
    if collective in (_SEND, _RECV):
        before += f" {'to' if collective == _SEND else 'from'} rank {root}"
    else:
        before, number = before + " #", str(calls.number[index])
    arguments = _arguments_of(calls, index)
    return before, number, f" ({arguments})" if arguments else ""


def _arguments_of(calls: Calls, index: int) -> str:
    collective, count = int(calls.collective[index]), int(calls.count[index])
    if collective >= len(ROWS):
        return "" if collective == _SPLIT else f"{count} bytes"
    row, arguments = ROWS[collective], []
    if row.send_extent != "NOTHING" or row.recv_extent != "NOTHING":
        arguments.append(f"{_name_at(_DATATYPE_ROWS, int(calls.datatype[index]))} x {count}")
    if row.reduces:
        arguments.append(_name_at(_OP_NAMES, int(calls.op[index])))
    if row.peer == "ROOT":
        arguments.append(f"root {calls.root[index]}")
    return ", ".join(arguments)


def _name_at(names: list[Any], index: int) -> str:
    if index >= len(names):
        return "?"
    return names[index] if isinstance(names[index], str) else names[index].name
