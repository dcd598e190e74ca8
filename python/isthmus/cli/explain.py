"""`isthmus explain`: the backend that a call would use, with selected and rejected rules."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from rich.table import Column, Table

from .._console import lines, styled
from ..communicator import Communicator, Device
from ..sizes import format_size, parse_size
from ..table import DATATYPES, CollectiveName, count_of_bytes
from ..table import collective as find_collective
from ..table import datatype as find_datatype
from . import explain_fused, job_query, options
from .console import BAD_ARGUMENT, CommandError, counted, out, print_json, print_warning
from .options import COUNT, flag, option
from .profile import core_info_of_any_backend, profile_mismatch, profile_use

_RMSNORM = "allreduce_rmsnorm"
# The values of a call that the filters of rules compare, as in "rules are for other sizes".
_CALL_FILTERS = {
    "bytes": "sizes",
    "ranks": "numbers of ranks",
    "nodes": "numbers of nodes",
    "datatype": "datatypes",
    "op": "operations",
}
_TARGET_FILTERS = {"collective": "collectives", "platform": "platforms"}
_BITS_WITHOUT_DETERMINISTIC = "can depend on the rules: set deterministic = true for a guarantee"


@click.command()
@click.argument("collective")
@option("--bytes", "size", default="64K", help="Size as defined by `isthmus bench`: 8, 64K, 128M.")
@options.dtype
@options.op
@options.ranks
@option("--platform", default="host", help="host, cuda, hip, level_zero or opencl.")
@options.config
@flag("--mpi", help="Query an MPICH job with one process per rank.")
@option("--nodes", type=COUNT, default=1, help="Number of nodes to simulate. More than 1 implies --mpi.")
@options.product_sizes
@option("--output", help="Fused operators: datatype of C. Default: that of A.")
@flag("--measure", help="Fused operators: also run the plan of a product.")
@flag("--all", "all_rules", help="List every rule with its reason, instead of counting most of them.")
@options.json
def explain(
    collective: str,
    size: str,
    dtype: str,
    op: str,
    ranks: int,
    platform: str,
    config: str | None,
    mpi: bool,
    nodes: int,
    m: int,
    k: int,
    n: int,
    output: str | None,
    measure: bool,
    all_rules: bool,
    as_json: bool,
) -> None:
    """Prints the backend and rule that a call would use, and why other rules were rejected.

    COLLECTIVE is a collective or a fused operator: allgather_gemm, gemm_reduce_scatter, gemm_allreduce or
    allreduce_rmsnorm.

    The command creates a communicator in this process or, with --mpi, in an MPICH job. The result comes from
    the same selector that real calls use. --nodes sets ISTHMUS_NODE of each rank to simulate several nodes.

    For allgather_gemm, gemm_reduce_scatter and gemm_allreduce, the command creates a plan with the sizes --m,
    --k and --n, and prints its mode with the reason, the predicted times, and with --measure the measured
    times.
    """
    if (mpi or nodes > 1) and platform != "host":
        raise CommandError("--mpi and --nodes support only host ranks; remove --platform", BAD_ARGUMENT)
    if nodes > ranks:
        raise CommandError(f"--nodes {nodes} must be at most --ranks {ranks}", BAD_ARGUMENT)
    in_job = mpi or nodes > 1
    dtype = find_datatype(dtype).name
    if collective in explain_fused.KINDS:
        info = explain_fused.explain_product(
            explain_fused.Product(collective, m, k, n, dtype, output or dtype, measure),
            ranks=ranks,
            platform=platform,
            config=config,
            in_job=in_job,
            nodes=nodes,
        )
        return print_json(info) if as_json else explain_fused.print_product(info)
    if measure:
        raise CommandError(f"--measure is not supported for {collective}; use `isthmus bench`", BAD_ARGUMENT)
    size_bytes = parse_size(size)
    if collective == _RMSNORM:
        explain_fused.check_rmsnorm(dtype, n)
        size_bytes = m * n * DATATYPES[dtype].bytes
    run_query = partial(explain_in_job, nodes=nodes) if in_job else partial(explain_here, platform=platform)
    explanation = run_query(collective, size_bytes, dtype=dtype, op=op, ranks=ranks, config=config)
    if collective == _RMSNORM:
        explanation["operator"] = {"name": _RMSNORM, "tokens": m, "hidden": n}
    core = core_info_of_any_backend(config)
    explanation["profile_use"] = profile_use(core, explanation)
    explanation["profile_mismatch"] = profile_mismatch(core)
    if as_json:
        print_json(explanation)
    else:
        _print(explanation, all_rules)
        if explanation["profile_use"]:
            out.print(explanation["profile_use"])
        print_warning(explanation["profile_mismatch"])


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
    """Returns the explanation from a communicator in this process."""
    name, is_rmsnorm = _find_operation(collective)
    devices = [Device.parse((platform, 0 if platform == "host" else rank)) for rank in range(ranks)]
    communicators = Communicator.create_all(devices, config=config)
    try:
        count = count_of_bytes(name, size_bytes, dtype, ranks)
        return communicators[0].explain(name, count=count, dtype=dtype, op=op, rmsnorm=is_rmsnorm)
    finally:
        for communicator in communicators:
            communicator.close()


def _find_operation(name: str) -> tuple[CollectiveName, bool]:
    """Returns the name of the collective, and whether it is part of allreduce_rmsnorm."""
    return ("allreduce", True) if name == _RMSNORM else (find_collective(name).name, False)


def explain_in_job(
    collective: str, size_bytes: int, *, dtype: str, op: str, ranks: int, config: str | None, nodes: int = 1
) -> dict[str, Any]:
    """Returns the explanation from an MPICH job with `ranks` processes."""
    name, is_rmsnorm = _find_operation(collective)
    count = count_of_bytes(name, size_bytes, dtype, ranks)
    arguments = {"collective": name, "count": count, "dtype": dtype, "op": op, "rmsnorm": is_rmsnorm}
    return job_query.query_job(ranks, {"explain": arguments, "config": config, "nodes": nodes})


def _print(explanation: dict[str, Any], all_rules: bool) -> None:
    query, operator = explanation["query"], explanation.get("operator")
    if operator:
        out.print(
            f"{operator['name']}, {operator['tokens']} rows of {operator['hidden']} elements, selected as"
        )
    data = f", {query['datatype']}"
    if query["bytes"] is not None:
        data = f" of {format_size(query['bytes'])} bytes{data}" if query["bytes"] else ""
    out.print(
        f"{query['collective']}{data}, {counted(query['ranks'], 'rank')}, {counted(query['nodes'], 'node')}, "
        f"{query['platform']}",
    )
    _print_rules(explanation, all_rules)
    if explanation["reduction"]:
        _print_reduction(explanation["reduction"])
    if explanation["plan"]:
        _print_plan(explanation["plan"])
    if operator:
        is_host = query["platform"] == "host"
        out.print(
            "after the allreduce, the calling thread adds the residual and normalizes the rows"
            if is_host
            else "one kernel executes the allreduce, the residual addition and the norm",
        )
        out.print("There is no prediction of its time.", style="dim")


def _print_rules(explanation: dict[str, Any], all_rules: bool) -> None:
    """Prints the selected rule, and rejected rules with their reasons. Counts those that are not relevant."""
    table = Table(
        Column(no_wrap=True),
        Column("use", no_wrap=True),
        Column("rule (source)", overflow="fold"),
        box=None,
        pad_edge=False,
    )
    if explanation["backend"] is not None:
        rule = f"{explanation['rule']} ({explanation['source']})"
        table.add_row(styled("selected", "green"), format_use(explanation), rule)
    for rejected in explanation["rejected"]:
        if all_rules or rejected["is_relevant"]:
            rule = lines(f"{rejected['rule']} ({rejected['source']})", rejected["reason"])
            table.add_row(styled("rejected", "dim"), format_use(rejected), rule)
    out.print(table)
    if not all_rules:
        summary = summarize_rules(explanation["rejected"])
        for line in summary:
            out.print(line, style="dim")
        if summary:
            out.print("--all lists these rules.", style="dim")
    if explanation["backend"] is None:
        out.print(explanation["reason"])


def summarize_rules(rejected: list[dict[str, Any]]) -> list[str]:
    """Returns one line per reason for rules that are not relevant, such as "3 rules are for other sizes"."""
    hidden = [rule for rule in rejected if not rule["is_relevant"]]
    texts = []
    if rules := [rule for rule in hidden if rule["mismatch"] is None]:
        verb = "matches" if len(rules) == 1 else "match"
        texts.append(f"{_counted_rules(rules)} {verb}, but the selected rule takes precedence")
    if rules := [rule for rule in hidden if rule["mismatch"] == "memory"]:
        texts.append(f"{_counted_rules(rules)}: {rules[0]['reason']}")
    for filters in (_CALL_FILTERS, _TARGET_FILTERS):
        if rules := [rule for rule in hidden if rule["mismatch"] in filters]:
            mismatches = {rule["mismatch"] for rule in rules}
            *first, last = [name for key, name in filters.items() if key in mismatches]
            names = f"{', '.join(first)} or {last}" if first else last
            texts.append(f"{_counted_rules(rules)} {'is' if len(rules) == 1 else 'are'} for other {names}")
    return texts


def _counted_rules(rules: list[dict[str, Any]]) -> str:
    are_defaults = all(rule["source"].startswith("default") for rule in rules)
    return counted(len(rules), "default rule" if are_defaults else "rule")


def _print_reduction(reduction: dict[str, Any]) -> None:
    """Prints what determines the bits of a floating-point reduction."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("order", reduction["order"])
    table.add_row("rounding", reduction["rounding"])
    table.add_row(
        "bits", "depend only on the contributions" if reduction["is_required"] else _BITS_WITHOUT_DETERMINISTIC
    )
    out.print(table)


def _print_plan(steps: list[dict[str, Any]]) -> None:
    """Prints the steps of a composite backend on rank 0."""
    table = Table("step of rank 0", "collective", "bytes", "use", "rule", box=None, pad_edge=False)
    for step in steps:
        table.add_row(
            step["subcommunicator"],
            step["collective"] if step["calls"] == 1 else f"{step['calls']} x {step['collective']}",
            format_size(step["bytes"]),
            format_use(step),
            step["rule"],
        )
    out.print(table)


def format_use(rule: dict[str, Any]) -> str:
    """Formats "backend" or "backend:algorithm", as in the configuration."""
    return f"{rule['backend']}:{rule['algorithm']}" if rule["algorithm"] else str(rule["backend"])
