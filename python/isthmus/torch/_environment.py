"""Converts the environment variables of isthmus.torch to rules and options, which have the usual priority."""

from __future__ import annotations

import os

# Variable that records what was added to ISTHMUS_{} by this process or by one of its ancestors.
ADDED = "ISTHMUS_TORCH_ADDED_{}"


def apply_environment() -> None:
    """Adds the rules and options of the opt-in variables to ISTHMUS_RULE and ISTHMUS_OPTION.

    Replaces earlier additions. Communicators read these variables when they are created. Set the opt-in
    variables to the same values on all ranks, before the first collective or before reload_rules().
    """
    requested = _requested()  # validates before anything is changed
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
        raise ValueError(f"{name} = {value!r}; it must be 0 or 1")
    return value == "1"


def _bytes(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name} = {text!r}; it must be a whole number of bytes")
    return int(text)


def _entries(variable: str) -> list[str]:
    return [text.strip() for text in os.environ.get(variable, "").split(";") if text.strip()]
