"""`isthmus explain` for fused operators: the plan of a product with its predicted and measured times."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, get_args

import numpy as np
from rich.table import Table

from .._buffers import numpy_dtype
from ..communicator import Communicator, Device
from ..fused import KindName, Plan, ViewName
from ..table import RMSNORM_DATATYPES, RMSNORM_MAX_HIDDEN
from . import job_query
from .console import BAD_ARGUMENT, NOT_AVAILABLE, CommandError, counted, out

KINDS = get_args(KindName)
_VIEWS: dict[str, ViewName] = {"product": "compute_only", "transfer": "communication_only", "whole": "whole"}
_RUNS = 5


@dataclass(frozen=True)
class Product:
    """A product of an m x k matrix A and a k x n matrix B. `runs`: also measure it."""

    kind: KindName
    m: int
    k: int
    n: int
    dtype: str
    output: str
    runs: bool = False

    def shapes(self, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the shapes of one rank's A and B."""
        if self.kind == "allgather_gemm":
            return (self.m // size, self.k), (self.k, self.n)
        return (self.m, self.k // size), (self.k // size, self.n)

    def check(self, size: int) -> None:
        """Raises CommandError if the ranks do not divide the matrices."""
        sizes = {"m": self.m, "k": self.k}
        if self.kind == "allgather_gemm":
            del sizes["k"]
        if self.kind == "gemm_allreduce":
            del sizes["m"]
        for name, value in sizes.items():
            if value % size:
                raise CommandError(
                    f"--{name} {value} must be a multiple of the {size} ranks; {self.kind} divides it",
                    BAD_ARGUMENT,
                )


def check_rmsnorm(dtype: str, hidden: int) -> None:
    """Raises CommandError if allreduce_rmsnorm does not support the arguments."""
    if dtype not in RMSNORM_DATATYPES:
        raise CommandError(
            f"--dtype {dtype} is not supported by allreduce_rmsnorm; use {', '.join(RMSNORM_DATATYPES)}",
            BAD_ARGUMENT,
        )
    if hidden > RMSNORM_MAX_HIDDEN:
        raise CommandError(
            f"--n {hidden} must be at most {RMSNORM_MAX_HIDDEN}, the longest row of allreduce_rmsnorm",
            BAD_ARGUMENT,
        )


def explain_product(
    product: Product, *, ranks: int, platform: str, config: str | None, in_job: bool, nodes: int
) -> dict[str, Any]:
    """Returns the plan of rank 0: `Plan.info`."""
    product.check(ranks)
    if in_job:
        return job_query.query_job(ranks, {"product": asdict(product), "config": config, "nodes": nodes})
    devices = [Device.parse((platform, 0 if platform == "host" else rank)) for rank in range(ranks)]
    communicators = Communicator.create_all(devices, config=config)
    try:
        with ThreadPoolExecutor(ranks) as threads:
            plans = [threads.submit(describe_plan, each, product) for each in communicators]
            wait(plans, return_when=FIRST_EXCEPTION)
            for each in plans:  # the rank that fails first is the cause of the others' errors
                if each.done():
                    each.result()
            return plans[0].result()
    finally:
        for communicator in communicators:
            communicator.close()


def describe_plan(communicator: Communicator, product: Product) -> dict[str, Any]:
    """Creates the plan of one rank and runs it if requested. Collective."""
    a, b = (_zeros(communicator.device, shape, product.dtype) for shape in product.shapes(communicator.size))
    with Plan(communicator, a, b, kind=product.kind, output=product.output, trace=True) as plan:
        if product.runs:
            return plan.info | {"measured_us": _measure(plan, a, b)}
        return plan.info


def _measure(plan: Plan, a: Any, b: Any) -> dict[str, float]:
    """Returns the median times of this rank's runs. The first run of each view is not measured."""
    result = plan(a, b)
    times = {}
    for name, view in _VIEWS.items():
        samples = []
        for _ in range(_RUNS + 1):
            plan(a, b, out=result, view=view)
            samples.append(plan.info["measured_us"][name])
        times[name] = median(samples[1:])
    return times


def _zeros(device: Device, shape: tuple[int, int], dtype: str) -> Any:
    if device.platform.name == "host":
        return np.zeros(shape, numpy_dtype(dtype))
    try:
        import torch
    except ImportError:
        raise CommandError(
            f"plans on {device.platform.name} need PyTorch, which is not installed; pip install torch",
            NOT_AVAILABLE,
        ) from None
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=torch.device("cuda", device.ordinal))


def print_product(info: dict[str, Any]) -> None:
    """Prints a plan."""
    out.print(
        f"{info['kind']}, {info['m']} x {info['k']} x {info['n']} (m x k x n on rank 0), {info['input']} to "
        f"{info['output']}, {info['ranks']} ranks"
    )
    form = (
        f"pipelined, {counted(info['chunks'], 'chunk')} per rank"
        if info["mode"] == "pipelined"
        else info["mode"]
    )
    out.print(f"selected: {form}")
    out.print(f"reason: {info['reason']}", soft_wrap=True)
    out.print(f"costs: {info['model']}", soft_wrap=True)
    table = Table("time of", "predicted us", "measured us", box=None, pad_edge=False)
    predicted, measured = info["predicted_us"] or {}, info["measured_us"]
    times = {"product": measured["product"], "transfer": measured["transfer"], "bound": None}
    times |= {mode: measured["whole"] if mode == info["mode"] else None for mode in ("pipelined", "sequential")}
    for name, us in times.items():
        table.add_row(name, _format_us(predicted.get(name)), _format_us(us))
    out.print(table)
    out.print("The bound is the larger one of product and transfer.", style="dim")
    if not predicted:
        out.print("There is no prediction for this plan.", style="dim")
    for remark in info["notes"]:
        out.print(remark, soft_wrap=True)


def _format_us(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"
