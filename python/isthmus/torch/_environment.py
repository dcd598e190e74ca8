"""Environment variables of isthmus.torch, as rules and options of the selector: they bind like any other."""

from __future__ import annotations

import os

# Names the variable that tells what we have added to ISTHMUS_{}, here or in a process that started this one.
ADDED = "ISTHMUS_TORCH_ADDED_{}"


def apply_environment() -> None:
    """Adds what the opt-in variables ask for to ISTHMUS_RULE and ISTHMUS_OPTION, in place of earlier additions.

    Communicators read those when they are made, so the variables have to be set before the first collective
    or before reload_rules(), and alike on all ranks.
    """
    requested = _requested()  # complains before anything is changed
    for name in ("RULE", "OPTION"):
        previous = os.environ.pop(ADDED.format(name), None)
        entries = [text for text in _entries(f"ISTHMUS_{name}") if text != previous]
        if (entry := requested.get(name)) is not None and entry not in entries:
            entries.append(entry)
            os.environ[ADDED.format(name)] = entry
        if entries or f"ISTHMUS_{name}" in os.environ:
            os.environ[f"ISTHMUS_{name}"] = "; ".join(entries)


def _requested() -> dict[str, str]:
    if not _flag("ISTHMUS_DMA_ALLGATHER"):
        return {}
    requested = {"RULE": "collective=allgather,allgatherv platform=cuda,hip use=copy_engine"}
    if (max_bytes := _bytes("ISTHMUS_DMA_ALLGATHER_MAX_BYTES")) is not None:
        requested["OPTION"] = f"backend.copy_engine.staging_bytes={max_bytes}"
    return requested


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name}={value!r}: it must be 0 or 1")
    return value == "1"


def _bytes(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r}: it must be a whole number of bytes")
    return int(text)


def _entries(variable: str) -> list[str]:
    return [text.strip() for text in os.environ.get(variable, "").split(";") if text.strip()]
