"""Environment variables of isthmus.torch, as rules and options of the selector: they bind like any other."""

from __future__ import annotations

import os


def apply_knobs() -> None:
    """Adds what the opt-in variables ask for to ISTHMUS_RULE and ISTHMUS_OPTION.

    Communicators read those when they are made, so the variables have to be set before the first collective,
    and alike on all ranks.
    """
    if _flag("ISTHMUS_DMA_ALLGATHER"):
        _add("ISTHMUS_RULE", "collective=allgather,allgatherv platform=cuda,hip use=copy_engine")
        if (most := _bytes("ISTHMUS_DMA_ALLGATHER_MAX_BYTES")) is not None:
            _add("ISTHMUS_OPTION", f"backend.copy_engine.transit_bytes={most}")


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


def _add(variable: str, piece: str) -> None:
    pieces = [text.strip() for text in os.environ.get(variable, "").split(";") if text.strip()]
    if piece not in pieces:  # a child process inherits what its parent has added
        os.environ[variable] = "; ".join([*pieces, piece])
