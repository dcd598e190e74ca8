"""`isthmus explain`: which backend a call would take, by the rule that wins and the ones that did not."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from ..communicator import Communicator, Device
from ..sizes import format_size, parse_size
from ..table import collective as find_collective
from ..table import count_of_bytes
from . import job_query
from .console import BAD_ARGUMENT, CommandError, out, print_json


def explain(
    collective: Annotated[str, typer.Argument(help="A collective of THE TABLE, e.g. allreduce.")],
    size: Annotated[str, typer.Option("--bytes", help="Size as bench counts it: 8, 64K, 128M.")] = "64K",
    dtype: Annotated[str, typer.Option(help="Element type.")] = "float32",
    op: Annotated[str, typer.Option(help="Reduction.")] = "sum",
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="Ranks of the communicator.")] = 4,
    platform: Annotated[str, typer.Option(help="host, cuda, hip, level_zero or opencl.")] = "host",
    config: Annotated[str | None, typer.Option(help="Configuration file instead of the usual ones.")] = None,
    mpi: Annotated[bool, typer.Option("--mpi", help="Ask a job of that many processes under MPICH.")] = False,
    nodes: Annotated[
        int, typer.Option(min=1, help="Nodes that the ranks are dealt out to; above 1 it asks a job, too.")
    ] = 1,
    all_rules: Annotated[
        bool, typer.Option("--all", help="Also the rules for other collectives and platforms.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Which backend and rule a call would take here, and why the others did not.

    It makes a communicator of that many ranks, in this process or (--mpi) in a job of that many, and
    asks it: the selector that real calls run answers. With --nodes the job's ranks are told that they are on
    several (ISTHMUS_NODE).
    """
    if (mpi or nodes > 1) and platform != "host":
        raise CommandError("--mpi and --nodes ask a job of host ranks; leave --platform out", BAD_ARGUMENT)
    if nodes > ranks:
        raise CommandError(f"--nodes {nodes} are more than the {ranks} --ranks", BAD_ARGUMENT)
    run_query = partial(explain_in_job, nodes=nodes) if mpi or nodes > 1 else partial(explain_here, platform=platform)
    explanation = run_query(collective, parse_size(size), dtype=dtype, op=op, ranks=ranks, config=config)
    if as_json:
        print_json(explanation)
    else:
        _print(explanation, all_rules)


def explain_here(
    collective: str,
    size_bytes: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    ranks: int = 4,
    platform: str = "host",
    config: str | None = None,
) -> dict[str, Any]:
    """The explanation of a real communicator, as data."""
    name = find_collective(collective).name
    devices = [Device.parse((platform, 0 if platform == "host" else rank)) for rank in range(ranks)]
    communicators = Communicator.create_all(devices, config=config)
    try:
        count = count_of_bytes(name, size_bytes, dtype, ranks)
        return communicators[0].explain(name, count=count, dtype=dtype, op=op)
    finally:
        for communicator in communicators:
            communicator.close()


def explain_in_job(
    collective: str, size_bytes: int, *, dtype: str, op: str, ranks: int, config: str | None, nodes: int = 1
) -> dict[str, Any]:
    """The explanation of a job of `ranks` processes under MPICH, as data."""
    name = find_collective(collective).name
    count = count_of_bytes(name, size_bytes, dtype, ranks)
    arguments = {"collective": name, "count": count, "dtype": dtype, "op": op}
    return job_query.query_job(ranks, {"explain": arguments, "config": config, "nodes": nodes})


def _print(explanation: dict[str, Any], all_rules: bool) -> None:
    query = explanation["query"]
    size = "" if query["bytes"] is None else f" of {format_size(query['bytes'])} bytes"
    out.print(
        f"{query['collective']}{size}, {query['datatype']}, {query['ranks']} ranks, {query['nodes']} node(s), "
        f"{query['platform']}",
        markup=False,
    )
    table = Table("", "use", "rule", "source", "why", box=None, pad_edge=False)
    if explanation["backend"] is not None:
        table.add_row("[green]takes[/]", format_use(explanation), explanation["rule"], explanation["source"], "")
    visible_rules = [rejected for rejected in explanation["rejected"] if all_rules or rejected["is_relevant"]]
    for rejected in visible_rules:
        table.add_row("[dim]not[/]", format_use(rejected), rejected["rule"], rejected["source"], rejected["reason"])
    out.print(table)
    hidden_count = len(explanation["rejected"]) - len(visible_rules)
    if hidden_count:
        out.print(f"[dim]{hidden_count} rules for other collectives or platforms are left out (--all shows them)[/]")
    out.print(explanation["reason"], markup=False)
    if explanation["plan"]:
        _print_plan(explanation["plan"])


def _print_plan(steps: list[dict[str, Any]]) -> None:
    """What the backend makes of the call out of others, as rank 0 does it."""
    table = Table("step of rank 0", "collective", "bytes", "use", "rule", box=None, pad_edge=False)
    for step in steps:
        table.add_row(step["subcommunicator"], step["collective"], format_size(step["bytes"]), format_use(step), step["rule"])
    out.print(table)


def format_use(rule: dict[str, Any]) -> str:
    """ "backend" or "backend:algorithm", as configuration spells it."""
    return f"{rule['backend']}:{rule['algorithm']}" if rule["algorithm"] else str(rule["backend"])
