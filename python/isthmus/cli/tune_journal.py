"""Journal of `isthmus tune`: finished measurements, so that an interrupted run can continue."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..records import Record
from .console import BAD_ARGUMENT, CommandError
from .profile import differences
from .tune_plan import Batch


@dataclass(frozen=True)
class Entry:
    """The result of one batch. Sizes that the candidate does not support have no record."""

    batch: Batch
    records: list[Record]

    @property
    def times(self) -> dict[int, float]:
        """Median times by size."""
        return {record.bytes: record.time_us.median for record in self.records}

    @property
    def paths(self) -> dict[int, str]:
        """Selected backend[:algorithm] by size."""
        return {record.bytes: record.backend for record in self.records}


class Journal:
    """A file of one JSON document per line: the conditions of the run, then its entries."""

    def __init__(self, path: Path, conditions: dict[str, str], candidates: list[str]) -> None:
        self.path = path
        self._header = {"conditions": conditions, "candidates": candidates}

    @property
    def candidates(self) -> list[str]:
        return self._header["candidates"]

    def load(self) -> tuple[list[Entry], str]:
        """Returns the entries of an earlier run, and the reason why an existing journal is not used, or "".

        Starts a new journal if there are no entries. A line that was not written completely is removed.
        """
        try:
            complete_lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            complete_lines = []
        except OSError as failure:
            raise self._error("read", failure) from None
        reason, entries = "", []
        if complete_lines:
            try:
                reason = self._obstacle(json.loads(complete_lines[0]))
                entries = [] if reason else [_entry(json.loads(line)) for line in complete_lines[1:]]
            except (ValueError, KeyError, TypeError, AttributeError):
                reason = "it is damaged"
        if entries:
            os.truncate(self.path, sum(len(line) + 1 for line in complete_lines))
        else:
            self._write(_line(self._header), "wb")
        return entries, reason

    def append(self, entry: Entry) -> None:
        """Adds an entry. It is on disk when the function returns."""
        records = [record.model_dump(mode="json", exclude_none=True) for record in entry.records]
        self._write(_line(asdict(entry) | {"records": records}), "ab")

    def remove(self) -> None:
        """Deletes the file."""
        self.path.unlink(missing_ok=True)

    def _obstacle(self, header: dict[str, Any]) -> str:
        """Returns why the entries of another run cannot be used, or ""."""
        changed = differences(header["conditions"], self._header["conditions"])
        if header["candidates"] != self._header["candidates"]:
            now = ", ".join(self._header["candidates"])
            changed.append(f"candidates {', '.join(header['candidates'])} (now {now})")
        return "; ".join(changed)

    def _write(self, data: bytes, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as failure:
            raise self._error("write", failure) from None

    def _error(self, action: str, failure: OSError) -> CommandError:
        return CommandError(f"cannot {action} {self.path}: {failure.strerror}", BAD_ARGUMENT)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _entry(value: dict[str, Any]) -> Entry:
    batch = Batch(value["batch"]["collective"], value["batch"]["candidate"], tuple(value["batch"]["sizes"]))
    return Entry(batch, [Record.model_validate(record) for record in value["records"]])
