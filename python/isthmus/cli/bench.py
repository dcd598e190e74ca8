"""`isthmus bench`: measures Isthmus and its peers in alternating order with random data."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from .. import layout, machine
from .._console import lines, styled
from ..analysis import speedup
from ..records import Record, best_peers
from ..sizes import format_size, format_us, parse_sizes
from ..table import datatype, reduction_op
from . import options
from .console import BAD_ARGUMENT, FAILED, CommandError, command_line, note, out, print_warning, write_output
from .measure import (
    SHIM,
    Provider,
    Sweep,
    isthmus_provider,
    measure,
    peer_provider,
    report_of,
    shim_provider,
)
from .options import COUNT, Number, flag, option
from .plot import draw, path_name


@click.command()
@click.argument("collective")
@options.ranks
@options.sizes
@options.dtype
@options.op
@option("--backend", default="", help="Force BACKEND[:ALGORITHM]. Default: use the rules.")
@option("--peers", default="mpich", help="List of mpich, openmpi, impi, listing1. Empty: none.")
@option("--rounds", type=COUNT, default=3, help="Number of rounds. Each provider runs once per round.")
@option("--check/--no-check", default=True, help="Verify all results.")
@flag("--heap", help="Also measure buffers in the symmetric heap.")
@flag("--mpi-shim", help="Measure each peer with and without the preloaded MPI shim instead of the C API.")
@option("--min-time", type=Number(0), default=0.05, help="Minimum seconds per size, provider and round.")
@option("--timeout", type=Number(1), default=120.0, help="Timeout in seconds for waits for other ranks.")
@option("--json", "json_file", metavar="FILE", default="", help="Write the report. '-': print it.")
@option("--plot", metavar="FILE", default="", help="Plot latency and bandwidth (PNG, SVG or PDF).")
@options.product_sizes
@option("--output", default="float32", help="Fused operators: datatype of C.")
@option("--device", default="host", help="Fused operators: host or cuda.")
@option("--chunks", type=click.IntRange(0), default=0, help="Fused operators: chunks per rank. 0: cost model.")
@option("--trace", metavar="FILE", default="", help="Fused operators: write a trace of one run for Perfetto.")
def bench(
    collective: str,
    ranks: int,
    sizes: str,
    dtype: str,
    op: str,
    backend: str,
    peers: str,
    rounds: int,
    check: bool,
    heap: bool,
    mpi_shim: bool,
    min_time: float,
    timeout: float,
    json_file: str,
    plot: str,
    trace: str,
    **product: Any,
) -> None:
    """Measures COLLECTIVE and prints median times, bandwidth and the ratio to the best peer (in a checkout).

    COLLECTIVE is a collective, sendrecv, ping, allgather_gemm or gemm_reduce_scatter.

    Each call gets new random input and an output filled with a pattern. The time is the maximum over all ranks.

    allgather_gemm measures C = allgather(A) B with the sizes --m, --k and --n. gemm_reduce_scatter measures the
    rows of a sum of products. Both ignore --sizes, --op, --backend, --rounds, --heap and --min-time. --peers ''
    excludes torch.
    """
    if collective in ("allgather_gemm", "gemm_reduce_scatter"):
        if layout.checkout() is None:
            raise layout.MissingError(
                f"bench {collective} requires a checkout, because the installed package has no measurement "
                "programs; run make build in a checkout, and then its .venv/bin/isthmus"
            )
        if dtype == "float32" and product["output"] == "float32":
            note("the input is float32; pass --dtype float16 or bfloat16 to use the matrix units")
        products = layout.import_bench_module("fused_products.command")
        request = products.Request(
            kind=collective,
            ranks=ranks,
            dtype=dtype,
            peers=bool(peers),
            trace=trace,
            plot=plot,
            json_file=json_file,
            command=command_line(),
            timeout=timeout,
            **product,
        )
        with machine.OtherLoad() as load:
            products.bench_fused(request)
        if json_file != "-":
            print_warning(machine.unreliable_reason(ranks if product["device"] == "host" else 1, load.cores))
        return
    if trace:
        raise CommandError(
            f"--trace is not supported for {collective}; use it with allgather_gemm or gemm_reduce_scatter",
            BAD_ARGUMENT,
        )
    sweep = Sweep(
        collective,
        [0] if collective == "barrier" else parse_sizes(sizes),
        datatype(dtype).name,
        reduction_op(op).name,
        check,
        min_time,
        timeout,
    )
    peer_names = [name for name in peers.split(",") if name]
    _check_shim(mpi_shim, peer_names, backend, heap)
    providers = _shim_providers(ranks, peer_names) if mpi_shim else _providers(ranks, backend, heap, peer_names)
    outcome = measure(providers, sweep, rounds)
    report = report_of(outcome, command_line())
    if json_file:
        write_output(json_file, report.to_json())
    if plot:
        draw(report.records, plot, f"{collective}, {dtype}, {ranks} ranks, {report.machine.cpu}")
    if json_file != "-":
        out.print(table_of(outcome.records))
        for line in reasons_of(outcome.records):
            out.print(line)
        print_warning(machine.unreliable_reason(ranks, outcome.other_cores))
        for name, reason in outcome.skipped.items():
            note(f"{name} was skipped: {reason}")
    wrong = sum(record.wrong or 0 for record in report.records)
    if wrong:
        raise CommandError(f"{wrong} elements are wrong", FAILED)
    if "isthmus" in outcome.skipped:
        raise CommandError(f"isthmus cannot run {collective}: {outcome.skipped['isthmus']}", FAILED)


def _providers(ranks: int, backend: str, heap: bool, peers: list[str]) -> list[Provider]:
    own = [isthmus_provider(ranks, backend=backend)]
    if heap:
        own.append(isthmus_provider(ranks, backend=backend, heap=True))
    return own + [peer_provider(name, ranks) for name in peers]


def _check_shim(mpi_shim: bool, peers: list[str], backend: str, heap: bool) -> None:
    if mpi_shim and (backend or heap):
        raise CommandError(
            "--mpi-shim excludes --backend and --heap, because the program uses only MPI", BAD_ARGUMENT
        )
    if mpi_shim and not peers:
        raise CommandError(
            "--mpi-shim requires --peers; each peer is measured with and without the shim", BAD_ARGUMENT
        )


def _shim_providers(ranks: int, peers: list[str]) -> list[Provider]:
    plain_providers = [peer_provider(name, ranks) for name in peers]
    return [provider for peer in plain_providers for provider in (peer, shim_provider(peer))]


def _reference_records(own: str, records: list[Record]) -> tuple[str, dict]:
    """Returns the name and the records by point of the reference: the best peer or, for a shim, its own MPI."""
    if not own.endswith(SHIM):
        return "best peer", best_peers(records)
    plain_name = own.removesuffix(SHIM)
    return plain_name, {record.point: record for record in records if record.provider == plain_name}


def table_of(records: list[Record]) -> Table:
    """Returns a table with one row per size: medians, bandwidth, ratio to the reference, and backend."""
    paths = list(dict.fromkeys(path_name(record) for record in records))
    own = [record for record in records if record.provider == "isthmus" or record.provider.endswith(SHIM)]
    own_paths = list(dict.fromkeys(path_name(record) for record in own))
    references = {path: _reference_records(path, records) for path in own_paths}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(lines("", "bytes"), justify="right")
    for path in paths:
        table.add_column(lines(path, "us"), justify="right")
    for path in own_paths:
        table.add_column(lines(path, "bus GB/s"), justify="right")
        reference_name, peers = references[path]
        if peers:
            table.add_column(lines(path, f"vs {reference_name}"), justify="right")
    table.add_column(lines("", "backend"))
    for size in dict.fromkeys(record.bytes for record in records):
        row = {path_name(record): record for record in records if record.bytes == size}
        cells: list[str | Text] = [format_size(size)]
        cells += [format_us(row[path].time_us.median) if path in row else "" for path in paths]
        for path in own_paths:
            cells += _own_cells(row.get(path), references[path][1])
        backends = dict.fromkeys(row[path].backend for path in own_paths if path in row)
        table.add_row(*cells, ", ".join(backends))
    return table


def _own_cells(record: Record | None, peers: dict) -> list[str | Text]:
    if record is None:
        return ["", ""] if peers else [""]
    cells: list[str | Text] = [f"{record.busbw_gbs:.2f}"]
    if peers:
        ratio = speedup(record, peers.get(record.point))
        style = "green" if ratio and ratio >= 1 else "red"
        cells.append(styled(f"{ratio:.2f}x", style) if ratio else "")
    return cells


def reasons_of(records: list[Record]) -> list[str]:
    """Returns one line per backend and rule, with the range of sizes and the reason for the selection."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for record in records:
        if record.backend and record.reason:
            sizes.setdefault((record.backend, record.reason), []).append(record.bytes)
    return [
        f"{backend}, {format_size(min(selected_sizes))} to {format_size(max(selected_sizes))}: {reason}"
        for (backend, reason), selected_sizes in sizes.items()
    ]
