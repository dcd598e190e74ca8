"""The profile of a machine: its text, the conditions of its measurement, and whether they still hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import machine
from ..communicator import Communicator
from ..sizes import format_size
from .console import CommandError
from .tune_plan import Choice

# Conditions that profiles and journals are compared by, with their names in messages.
_LABELS = {
    "version": "Isthmus",
    "cpu": "CPU",
    "cores": "cores",
    "numa_nodes": "NUMA nodes",
    "gpus": "GPUs",
    "gpu_links": "GPU links",
    "ranks": "ranks",
    "memory": "memory",
    "commit": "commit",
    "min_time_s": "seconds per size",
}


def core_info(config: str | None = None) -> dict[str, Any]:
    """Returns Communicator.info() of a single rank in this process."""
    with Communicator.create_all(1, config=config)[0] as communicator:
        return communicator.info()


def default_profile(core: dict[str, Any]) -> Path:
    """Returns the path of the profile of this machine. Raises CommandError if there is none."""
    configured = os.environ.get("ISTHMUS_PROFILE", "")
    if configured and configured != "none":
        return Path(configured)
    if not core["profile_path"]:
        raise CommandError("there is no user configuration folder; pass --profile FILE and set ISTHMUS_PROFILE")
    return Path(core["profile_path"])


def machine_conditions(core: dict[str, Any]) -> dict[str, str]:
    """Returns the properties of this machine and library that measured times depend on."""
    described = core["machine"]
    gpus = sorted(described["gpus"])
    return {
        "version": core["version"],
        "cpu": described["cpu"],
        "cores": str(described["cores"]),
        "numa_nodes": str(machine.numa_nodes()),
        "gpus": ", ".join(gpus),
        "gpu_links": ", ".join(machine.gpu_links()) if len(gpus) > 1 else "",
    }


def differences(measured: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Returns the conditions that differ, e.g. "cores 4 (now 2)". Ignores conditions that either side lacks."""
    return [
        f"{label} {measured[key] or 'none'} (now {current[key] or 'none'})"
        for key, label in _LABELS.items()
        if key in measured and key in current and measured[key] != current[key]
    ]


def profile_mismatch(core: dict[str, Any], ranks: int | None = None) -> str:
    """Returns why the profile that was read does not fit, with the remedy, or "".

    If `ranks` is None, the number of ranks is not compared.
    """
    profile = core["profile"]
    if not profile["measured"]:
        return ""
    current = machine_conditions(core) | ({} if ranks is None else {"ranks": str(ranks)})
    changed = differences(profile["measured"], current)
    if not changed:
        return ""
    command = "isthmus tune" + ("" if ranks is None else f" --ranks {ranks}")
    return (
        f"The profile {profile['file']} was measured under other conditions: {'; '.join(changed)}. "
        f"Run {command} to measure again, or set ISTHMUS_PROFILE=none to ignore the profile."
    )


def rules_of(collective: str, choices: list[Choice], ranks: int) -> list[dict[str, Any]]:
    """Returns the rules for the choices of a collective."""
    return [
        {
            "collective": [collective],
            "platform": ["host"],
            "ranks": str(ranks),
            "nodes": "1",
            "bytes": f"{format_size(choice.first)}..{'' if choice.end is None else format_size(choice.end)}",
            "use": choice.candidate,
        }
        for choice in choices
    ]


def profile_text(
    rules: Mapping[str, list[dict[str, Any]]],
    choices: Mapping[str, list[Choice]],
    conditions: Mapping[str, str],
    remarks: list[str],
) -> str:
    """Returns the profile as TOML (see docs/reference/configuration.md)."""
    lines = [f"# {remark}" for remark in remarks]
    lines += ["", "[measured]", *(f"{key} = {_quoted(value)}" for key, value in conditions.items())]
    if not any(rules.values()):
        lines += ["", "# No candidate was faster than the built-in rules, so this profile has no rules."]
    for name, collective_rules in rules.items():
        for rule, choice in zip(collective_rules, choices[name], strict=True):
            speedups = " to ".join(dict.fromkeys(f"{speedup:.2f}" for speedup in choice.speedups))
            lines += ["", f"# {speedups} times as fast as without the profile", "[[rule]]"]
            for key, value in rule.items():
                text = f"[{', '.join(map(_quoted, value))}]" if isinstance(value, list) else _quoted(value)
                lines.append(f"{key} = {text}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Returns a TOML string. Names of processors can contain any characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in escaped) + '"'
