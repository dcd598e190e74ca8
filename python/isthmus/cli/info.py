"""`isthmus info`: machine, build and configuration."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import click
from rich.table import Column, Table
from rich.text import Text

from .. import __version__, launch, layout, machine, memory
from .._console import lines, styled
from ..errors import Error
from . import gpus, options
from .console import BAD_ARGUMENT, CommandError, out, print_json, print_warning
from .isolation import environment_without_settings, run_isolated
from .options import flag
from .profile import core_info, profile_mismatch

_GPU_WAIT_S = 30.0
_STATES = {"available": "green", "unavailable": "red"}  # others are normal for this platform or these rules
_OWN_VARIABLES = ("ISTHMUS_", "OCL_ICD_FILENAMES", "SYCL_", "ONEAPI_DEVICE_SELECTOR", "UR_", "MPI4PY_")


@click.command()
@options.json
@options.config
@flag("--all", "show_all", help="Also list what this machine lacks, with complete reasons, and algorithms.")
def info(as_json: bool, config: str | None, show_all: bool) -> None:
    """Prints version, machine, backends (with a reason if unavailable), rules, memory, MPI and SYCL devices.

    If the configuration is invalid, prints the state without any settings, and the error.
    """
    own_variables = {key: value for key, value in sorted(os.environ.items()) if key.startswith(_OWN_VARIABLES)}
    problem = ""
    try:
        data = collect(config)
    except Error as failure:
        problem = str(failure)
        visible = environment_without_settings(("ISTHMUS_PLUGIN_PATH",))
        os.environ.clear()
        os.environ.update(visible | {"ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"})
        data = collect(None)
    data |= {"environment": own_variables, "configuration_error": problem}
    if as_json:
        print_json(data)
    else:
        _print(data, show_all)
    if problem:
        raise CommandError(problem, BAD_ARGUMENT)


def collect(config: str | None) -> dict[str, Any]:
    """Returns all information of `isthmus info`."""
    core = core_info(config)
    memory_by_device = {
        device: memory.explain(device) for device in ("host:0", "cuda:0", "hip:0", "level_zero:0")
    }
    return {
        "version": __version__,
        "commit": machine.commit(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "core": core,
        "profile_mismatch": profile_mismatch(core),
        "memory": memory_by_device,
        "gpus": _gpus(),
        "fused_host": gpus.fused_status("host"),
        "mpi": _mpi_families(),
        "sycl_devices": sycl_devices(),
        "package": str(layout.build_folder() or layout.library_folder()),
    }


def _gpus() -> dict[str, Any]:
    """Returns the status of backends and fused products. Queries them in a separate process if
    there are devices."""
    if not gpus.devices()[0]:
        return gpus.describe(_GPU_WAIT_S)
    reply = run_isolated("--gpus", dict(os.environ), 2 * _GPU_WAIT_S)
    if "devices" in reply:
        return reply
    unavailable = {"state": "unavailable", "library": "", "reason": reply["details"]}
    return {"devices": gpus.devices()[0], "reason": reply["details"], "backends": {}, "fused": unavailable}


def _mpi_families() -> dict[str, str]:
    """Returns the launcher of each family, or the reason why it is not available."""
    launchers = {}
    for family in launch.FAMILIES:
        try:
            launchers[family] = str(launch.launcher(family).executable)
        except layout.MissingError as error:
            launchers[family] = f"unavailable: {error}"
    return launchers


def sycl_devices() -> dict[str, Any]:
    """Returns the SYCL devices in the environment that `isthmus run` sets up.

    "state" is "available", "unavailable" (not installed), "not_tested" or "failed", with a "reason".
    """
    if layout.build_folder() is None:
        return {"devices": [], **_installed_sycl()}
    try:
        program = layout.program("sycl_devices")
    except layout.MissingError as error:
        return {"devices": [], "state": "unavailable", "reason": str(error)}
    completed = subprocess.run(
        [str(program)],
        env=launch.environment(),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    if completed.returncode:
        output = completed.stderr.strip().splitlines()
        reason = output[-1] if output else f"{program.name} exited with {completed.returncode}"
        return {"devices": [], "state": "failed", "reason": reason}
    devices = json.loads(completed.stdout)
    if not devices:
        return {"devices": [], "state": "failed", "reason": "the SYCL runtime found no device"}
    return {"devices": devices, "state": "available", "reason": ""}


def _installed_sycl() -> dict[str, str]:
    """Returns state and reason for an installed package, which has no program that lists devices."""
    headers, libraries = layout.get_include(), layout.environment_folder() / "lib"
    if (libraries / "libsycl.so").is_file():
        reason = (
            "this package cannot list SYCL devices; to test them, compile a program with the headers in "
            f"{headers} and the SYCL runtime in {libraries}"
        )
        return {"state": "not_tested", "reason": reason}
    reason = (
        f"no SYCL runtime in {libraries}; run pip install 'isthmus[sycl-cpu]', or compile programs with your "
        f"own SYCL compiler and the headers in {headers}"
    )
    return {"state": "unavailable", "reason": reason}


def _state(state: str) -> Text:
    return styled(state.replace("_", " "), _STATES.get(state, "dim"))


def _table(title: str, *headers: str) -> Table:
    """Returns a table that divides long words, such as paths, instead of cutting them off."""
    return Table(
        *(Column(header, overflow="fold") for header in headers),
        title=title,
        box=None,
        pad_edge=False,
        title_justify="left",
        title_style="bold underline",
        header_style="bold",
    )


def _short(reason: str) -> str:
    """Returns a reason without the list of libraries that were tried."""
    return re.sub(r": tried [^;]*", "", reason)


def _print(data: dict[str, Any], show_all: bool) -> None:
    machine_info = data["machine"]
    out.print(styled(f"Isthmus {data['version']}", "bold"), data["commit"][:12])
    out.print(f"machine   {machine_info['name']}: {machine_info['cpu']}, {machine_info['cores']} cores")
    for gpu in machine_info["gpus"]:
        out.print(f"          {gpu}")
    out.print("versions  " + ", ".join(f"{key} {value}" for key, value in data["versions"].items()))
    out.print(f"python    {sys.executable}")
    if data["configuration_error"]:
        out.print("The configuration is invalid. What follows is the state without your settings.", style="red")
    _print_backends(data["core"]["backends"], show_all)
    _print_configuration(data["core"])
    print_warning(data["profile_mismatch"])
    _print_devices(data["gpus"], data["fused_host"], show_all)
    _print_memory(data["memory"], show_all)
    _print_environment(data, show_all)
    if not show_all:
        out.print(
            "--all also lists what this machine lacks, with complete reasons, and algorithms.", style="dim"
        )


def _print_backends(backends: list[dict[str, Any]], show_all: bool) -> None:
    table = _table("Backends of a host communicator of one rank, without MPI", "backend", "", "description")
    hidden: dict[str, list[str]] = {"not used": [], "not for host": []}
    for backend in backends:
        is_other = backend["state"] == "other_platform"
        if not show_all and backend["state"] in ("not_used", "other_platform"):
            hidden["not for host" if is_other else "not used"].append(backend["name"])
            continue
        state = styled("not for host", "dim") if is_other else _state(backend["state"])
        name = " ".join(part for part in (backend["name"], backend["version"]) if part)
        algorithms = show_all and backend["algorithms"] and f"algorithms: {' '.join(backend['algorithms'])}"
        texts = (backend["description"], algorithms, not is_other and backend["reason"], *backend["notes"])
        table.add_row(name, state, lines(*filter(None, texts)))
    out.print(table)
    for state, names in hidden.items():
        if names:
            out.print(f"Backends that are {state}: {', '.join(names)}", style="dim")


def _print_configuration(core: dict[str, Any]) -> None:
    own_rules = [rule for rule in core["rules"] if not rule["source"].startswith("default")]
    if own_rules:
        rules = _table("Rules in addition to the defaults, lowest priority first", "rule", "source")
        for rule in own_rules:
            rules.add_row(rule["rule"], rule["source"])
        out.print(rules)
    out.print(
        f"Rules: {len(core['rules']) - len(own_rules)} defaults, {len(own_rules)} others "
        "(`isthmus explain` shows those of a call)"
    )
    files = ", ".join(core["config_files"]) or "none"
    out.print(f"Configuration files read: {files}")
    profile = core["profile"]["file"]
    if profile and profile != core["profile_path"]:
        out.print(f"Profile from ISTHMUS_PROFILE: {profile}")
    else:
        out.print(f"Profile of this machine: {_profile_text(core['profile_path'])}")
    out.print(f"Timeout: {core['timeout_s']:g} s")


def _profile_text(path: str) -> str:
    if not path:
        return "none (no user folder)"
    return path if os.path.isfile(path) else f"{path} (does not exist)"


def _print_devices(data: dict[str, Any], fused_host: dict[str, Any], show_all: bool) -> None:
    table = _table("Devices and fused products", "path", "", "library or reason")
    rows = {"fused products, host": fused_host}
    if data["devices"] or show_all:
        rows = data["backends"] | rows | {"fused products, device": data["fused"]}
    for name, status in rows.items():
        reason = status["reason"] if show_all else _short(status["reason"])
        table.add_row(name, _state(status["state"]), reason or status.get("library", ""))
    out.print(table)
    reason = data["reason"] if show_all else _short(data["reason"])
    out.print("Devices: " + (", ".join(data["devices"]) or f"none ({reason})"))


def _print_memory(devices: dict[str, Any], show_all: bool) -> None:
    headers = ("device", "provider", "pool", "", "reason")
    table = _table("Providers of plain memory, in order", *headers[: None if show_all else 3])
    for device, explanation in devices.items():
        for provider in explanation["providers"]:
            if not provider["available"] and not show_all:
                continue
            state = _state("available" if provider["available"] else "unavailable")
            pool = provider["pool"]
            pool_text = (
                f"blocks up to {pool['max_bytes'] >> 20} MiB"
                if isinstance(pool, dict)
                else _no_pool(pool, show_all)
            )
            cells = (device, provider["name"], pool_text, state, provider["reason"])
            table.add_row(*cells[: len(table.columns)])
    out.print(table)
    sources = sorted({explanation["order_source"] for explanation in devices.values()})
    if show_all or sources != ["default, memory.provider"]:
        out.print(f"Order of providers: {', '.join(sources)}")


def _no_pool(reason: str, show_all: bool) -> str:
    return f"none: {reason if show_all else _short(reason)}" if reason else ""


def _print_environment(data: dict[str, Any], show_all: bool) -> None:
    table = _table("MPI families", "MPI", "launcher")
    for family, executable in data["mpi"].items():
        is_default = family == launch.FAMILIES[0]
        if show_all or is_default or not executable.startswith("unavailable"):
            table.add_row(family, executable)
    out.print(table)
    sycl_info = data["sycl_devices"]
    devices = _table("SYCL devices", "device", "kind", "units", "platform", "driver")
    for device in sycl_info["devices"]:
        devices.add_row(
            device["name"], device["kind"], str(device["compute_units"]), device["platform"], device["driver"]
        )
    if not sycl_info["devices"]:
        out.print()
    out.print(devices if sycl_info["devices"] else f"SYCL: {sycl_info['reason']}")
    if data["environment"]:
        out.print()
        out.print("Environment", style="italic")
    for key, value in data["environment"].items():
        out.print(f"{key}={value}")
