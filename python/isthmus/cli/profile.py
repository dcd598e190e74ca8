"""The profile of a machine: its text, the conditions of its measurement, and whether they still hold."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .. import machine
from ..communicator import Communicator
from ..sizes import format_size, format_us
from .console import CommandError
from .tune_plan import Choice, Plan

# The datatype that `isthmus tune` measures.
DTYPE = "float32"

PLATFORMS = ("host", "cuda", "hip")


class Setting(NamedTuple):
    """The platform and the number of the ranks of a measurement. On devices, each rank has its own."""

    platform: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.platform}, {self.ranks} ranks"


# Conditions that profiles and journals are compared by, with their names in messages.
_LABELS = {
    "version": "Isthmus",
    "cpu": "CPU",
    "cores": "cores",
    "numa_nodes": "NUMA nodes",
    "gpus": "GPUs",
    "gpu_links": "GPU links",
    "commit": "commit",
    "min_time_s": "seconds per size",
}


def core_info(config: str | None = None) -> dict[str, Any]:
    """Returns Communicator.info() of a single rank in this process."""
    with Communicator.create_all(1, config=config)[0] as communicator:
        return communicator.info()


def core_info_of_any_backend(config: str | None = None) -> dict[str, Any]:
    """Returns core_info, also if ISTHMUS_BACKEND names a backend that this process cannot use, such as mpi."""
    backend = os.environ.pop("ISTHMUS_BACKEND", None)
    try:
        return core_info(config)
    finally:
        if backend is not None:
            os.environ["ISTHMUS_BACKEND"] = backend


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


def profile_mismatch(core: dict[str, Any]) -> str:
    """Returns why the profile that was read does not fit, with the remedy, or ""."""
    profile = core["profile"]
    changed = differences(profile["measured"], machine_conditions(core)) if profile["measured"] else []
    if not changed:
        return ""
    return (
        f"The profile {profile['file']} was measured under other conditions: {'; '.join(changed)}. "
        "Run isthmus tune to measure again, or set ISTHMUS_PROFILE=none to ignore the profile."
    )


def measured_ranks(core: dict[str, Any], platform: str) -> list[int]:
    """Returns the numbers of ranks that the profile was measured with on a platform."""
    return [
        int(ranks) for ranks in core["profile"]["measured"].get(f"{platform}_ranks", "").split(",") if ranks
    ]


def describe_profile(core: dict[str, Any]) -> str:
    """Returns the file of the profile and the numbers of ranks that it was measured with."""
    file = core["profile"]["file"]
    if not file:
        return "no profile"
    measured = {platform: measured_ranks(core, platform) for platform in PLATFORMS}
    parts = [f"{platform} {_listed(ranks)} ranks" for platform, ranks in measured.items() if ranks]
    return file + (f" ({'; '.join(parts)})" if parts else "")


def profile_use(core: dict[str, Any], explanation: Mapping[str, Any]) -> str:
    """Returns whether a call uses a rule of the profile, and why not, or "" if there is no tuned profile."""
    file, query = core["profile"]["file"], explanation["query"]
    setting = Setting(query["platform"], query["ranks"])
    if not file or not core["profile"]["measured"]:
        return ""
    source = explanation["source"] or ""
    if source.startswith("profile "):
        return f"The rule was measured with {setting} and {DTYPE}: {source}."
    measured = measured_ranks(core, setting.platform)
    for rule in explanation["rejected"]:
        if rule["unavailable"] and rule["source"].startswith("profile "):
            return f'The rule "{rule["rule"]}" ({rule["source"]}) is not followed: {rule["reason"]}.'
    if setting.ranks in measured:
        return f"The profile {file} was measured with {setting}, and none of its rules applies to this call."
    other = f" (only with {_listed(measured)} ranks)" if measured else ""
    return (
        f"The profile {file} was not measured with {setting}{other}. "
        "Its rules for other numbers of ranks do not apply. "
        f"Run isthmus tune --platform {setting.platform} --ranks {setting.ranks} to add rules."
    )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


@dataclass(frozen=True)
class Section:
    """The part of a profile for one collective and setting."""

    setting: Setting
    collective: str
    text: str  # the lines after the heading


_HEADING = re.compile(r"^# ==== (\w+), (\d+) ranks, (\w+): .*$", re.MULTILINE)


def make_section(setting: Setting, plan: Plan, date: datetime) -> Section:
    """Returns the section for a plan, of which all candidates were measured."""
    collective, choices, omissions = plan.collective, plan.choices(), plan.omissions()
    lines = [f"# ==== {setting}, {collective}: measured {date.isoformat()}"]
    lines += [f"# The time limit expired: {'; '.join(omissions)}."] if omissions else []
    lines += [] if choices else ["# No candidate is at least 3% faster than the built-in rules."]
    for rule, choice in zip(rules_of(setting, collective, choices), choices, strict=True):
        speedups = " to ".join(dict.fromkeys(f"{speedup:.2f}" for speedup in choice.speedups))
        instead = f", which select {', '.join(choice.replaced)}" if choice.replaced else ""
        times = ", ".join(
            f"{format_size(size)} {format_us(baseline)}/{format_us(time)}"
            for size, (baseline, time) in choice.times.items()
        )
        lines += ["", f"# {speedups} times as fast as the built-in rules{instead}"]
        lines += textwrap.wrap(
            f"bytes, us of the built-in rules/of this rule: {times}",
            width=110,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_on_hyphens=False,
        )
        lines.append("[[rule]]")
        for key, value in rule.items():
            text = f"[{', '.join(map(_quoted, value))}]" if isinstance(value, list) else _quoted(value)
            lines.append(f"{key} = {text}")
    return Section(setting, collective, "\n".join(lines))


def rules_of(setting: Setting, collective: str, choices: list[Choice]) -> list[dict[str, Any]]:
    """Returns the rules for the choices of a collective."""
    return [
        {
            "collective": [collective],
            "platform": [setting.platform],
            "ranks": str(setting.ranks),
            "nodes": "1",
            "bytes": f"{format_size(choice.first)}..{'' if choice.end is None else format_size(choice.end)}",
            "use": choice.candidate,
        }
        for choice in choices
    ]


def read_sections(text: str, conditions: Mapping[str, str]) -> tuple[list[Section], str]:
    """Returns the sections of a profile, and the reason why those of other conditions are not used, or ""."""
    matches = list(_HEADING.finditer(text))
    starts = [*(match.start() for match in matches), len(text)]
    sections = [
        Section(Setting(match[1], int(match[2])), match[3], text[start:end].rstrip())
        for match, (start, end) in zip(matches, pairwise(starts), strict=True)
    ]
    head = text[: starts[0]]
    measured = dict(re.findall(r"^(\w+) = (\".*\")$", head, re.MULTILINE))
    changed = differences({key: json.loads(value) for key, value in measured.items()}, conditions)
    return ([], "; ".join(changed)) if changed else (sections, "")


def profile_text(sections: Iterable[Section], conditions: Mapping[str, str], remarks: Iterable[str]) -> str:
    """Returns the profile as TOML (see docs/reference/configuration.md)."""
    ordered = sorted(sections, key=lambda each: (PLATFORMS.index(each.setting.platform), each.setting.ranks))
    ranks: dict[str, list[int]] = {}
    for section in ordered:
        ranks.setdefault(f"{section.setting.platform}_ranks", []).append(section.setting.ranks)
    measured = dict(conditions) | {key: ",".join(map(str, dict.fromkeys(each))) for key, each in ranks.items()}
    lines = [f"# {remark}" for remark in remarks]
    lines += ["", "[measured]", *(f"{key} = {_quoted(value)}" for key, value in measured.items())]
    if not any("[[rule]]" in section.text for section in ordered):
        lines += ["", "# No candidate was faster than the built-in rules, so this profile has no rules."]
    for section in ordered:
        lines += ["", section.text]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Returns a TOML string. Names of processors can contain any characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in escaped) + '"'
