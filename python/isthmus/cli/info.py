"""`isthmus info`: machine, build and configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .. import __version__, launch, layout, machine, memory
from .._console import styled
from . import gpus
from .console import out, print_json, print_warning
from .isolation import run_isolated
from .profile import core_info, profile_mismatch

_STYLE: Any = {
    "box": None,
    "pad_edge": False,
    "title_justify": "left",
    "title_style": "bold underline",
    "header_style": "bold",
}
_GPU_WAIT_S = 30.0
_OWN_VARIABLES = ("ISTHMUS_", "OCL_ICD_FILENAMES", "SYCL_", "ONEAPI_DEVICE_SELECTOR", "UR_", "MPI4PY_")


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    config: Annotated[
        str | None, typer.Option(help="Configuration file to use instead of the default files.")
    ] = None,
) -> None:
    """Prints version, machine, backends (with a reason if unavailable), rules, memory, MPI and SYCL devices."""
    data = collect(config)
    if as_json:
        print_json(data)
    else:
        _print(data)


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
        "environment": {
            key: value for key, value in sorted(os.environ.items()) if key.startswith(_OWN_VARIABLES)
        },
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
    unavailable = {"available": False, "library": "", "reason": reply["details"]}
    return {"devices": gpus.devices()[0], "reason": reply["details"], "backends": {}, "fused": unavailable}


def _mpi_families() -> dict[str, str]:
    """Returns the launcher of each family, or the reason why it is not available."""
    launchers = {}
    for family in launch.FAMILIES:
        try:
            launchers[family] = str(launch.launcher(family).executable)
        except layout.MissingError as error:
            launchers[family] = f"not available: {error}"
    return launchers


def sycl_devices() -> dict[str, Any]:
    """Returns the SYCL devices in the environment that `isthmus run` sets up."""
    try:
        program = layout.program("sycl_devices")
    except layout.MissingError as error:
        return {"devices": [], "reason": str(error)}
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
        lines = completed.stderr.strip().splitlines()
        return {
            "devices": [],
            "reason": lines[-1] if lines else f"{program.name} exited with {completed.returncode}",
        }
    return {"devices": json.loads(completed.stdout), "reason": ""}


def _state(is_available: bool) -> Text:
    return styled("available", "green") if is_available else styled("unavailable", "red")


def _print(data: dict[str, Any]) -> None:
    machine_info = data["machine"]
    out.print(styled(f"Isthmus {data['version']}", "bold"), data["commit"][:12])
    out.print(f"machine   {machine_info['name']}: {machine_info['cpu']}, {machine_info['cores']} cores")
    for gpu in machine_info["gpus"]:
        out.print(f"          {gpu}")
    out.print("versions  " + ", ".join(f"{key} {value}" for key, value in data["versions"].items()))
    out.print(f"python    {sys.executable}")
    _print_core(data["core"])
    print_warning(data["profile_mismatch"])
    _print_devices(data["gpus"], data["fused_host"])
    _print_memory(data["memory"])
    _print_environment(data)


def _print_core(core: dict[str, Any]) -> None:
    table = Table(
        "backend", "", "algorithms", "description", "reason", title="Backends of a host communicator", **_STYLE
    )
    for backend in core["backends"]:
        is_unused = backend["reason"].startswith("no rule names it")  # for a communicator of one rank
        state = styled("not used", "dim") if is_unused else _state(backend["available"])
        name = " ".join(part for part in (backend["name"], backend["version"]) if part)
        reason = "; ".join(part for part in (backend["reason"], *backend["notes"]) if part)
        table.add_row(name, state, " ".join(backend["algorithms"]), backend["description"], reason)
    out.print(table)
    rules = Table("rule", "source", title="Rules, lowest priority first", **_STYLE)
    for rule in core["rules"]:
        rules.add_row(rule["rule"], rule["source"])
    out.print(rules)
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


def _print_devices(data: dict[str, Any], fused_host: dict[str, Any]) -> None:
    table = Table("path", "", "library or reason", title="Devices and fused products", **_STYLE)
    rows = {name: {"available": not reason, "reason": reason} for name, reason in data["backends"].items()}
    rows |= {"fused, host": fused_host, "fused, device": data["fused"]}
    for name, status in rows.items():
        state = _state(status["available"])
        table.add_row(name, state, status["reason"] or status.get("library", ""))
    out.print(table)
    out.print(f"Devices: {', '.join(data['devices']) or data['reason']}")


def _print_memory(devices: dict[str, Any]) -> None:
    table = Table(
        "device", "provider", "", "pool", "reason", title="Providers of plain memory, in order", **_STYLE
    )
    for device, explanation in devices.items():
        for provider in explanation["providers"]:
            state = _state(provider["available"])
            pool = provider["pool"]
            pool_text = f"blocks up to {pool['max_bytes'] >> 20} MiB" if isinstance(pool, dict) else pool
            table.add_row(device, provider["name"], state, pool_text, provider["reason"])
    out.print(table)
    sources = sorted({explanation["order_source"] for explanation in devices.values()})
    out.print(f"Order of providers: {', '.join(sources)}")


def _print_environment(data: dict[str, Any]) -> None:
    table = Table("MPI", "launcher", title="MPI families", **_STYLE)
    for family, executable in data["mpi"].items():
        table.add_row(family, executable)
    out.print(table)
    sycl_info = data["sycl_devices"]
    devices = Table("device", "kind", "units", "platform", "driver", title="SYCL devices", **_STYLE)
    for device in sycl_info["devices"]:
        devices.add_row(
            device["name"], device["kind"], str(device["compute_units"]), device["platform"], device["driver"]
        )
    if not sycl_info["devices"]:
        out.print()
    out.print(devices if sycl_info["devices"] else f"No SYCL devices: {sycl_info['reason']}")
    if data["environment"]:
        out.print()
        out.print("Environment", style="italic")
    for key, value in data["environment"].items():
        out.print(f"{key}={value}")
