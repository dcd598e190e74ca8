"""Environment variables of isthmus.torch, as rules of the selector: they bind like any other rule."""

from __future__ import annotations

import os


def apply_knobs() -> None:
    """Adds to ISTHMUS_RULE what the opt-in variables ask for. Communicators read it when they are made."""
    if _flag("ISTHMUS_DMA_ALLGATHER"):
        _add_rule("collective=allgather,allgatherv platform=cuda,hip use=copy_engine")


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name}={value!r}: it must be 0 or 1")
    return value == "1"


def _add_rule(rule: str) -> None:
    rules = [text.strip() for text in os.environ.get("ISTHMUS_RULE", "").split(";") if text.strip()]
    if rule not in rules:  # a child process inherits what its parent has added
        os.environ["ISTHMUS_RULE"] = "; ".join([*rules, rule])
