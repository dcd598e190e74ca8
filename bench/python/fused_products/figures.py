"""Derived results of a measured shape: rates, overlap, and records. Standard library only."""

from __future__ import annotations

from typing import Any

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
PIPELINES = ("pipelined", "fused", "torch_async_tp")
COMMUNICATION_VIEWS = ("communication_only", "collective_only")
_VERIFIED_VIEWS = ("sequential", "pipelined", "fused")  # views whose results are verified

Shape = dict[str, Any]  # the result of Bench.shape


def median_us(shape: Shape, view: str) -> float:
    """The median time of one view."""
    return shape["times_us"][view]["median"]


def communication_us(shape: Shape) -> float:
    """T_comm: the faster of chunked communication and the collective of the communicator."""
    return min(median_us(shape, "communication_only"), median_us(shape, "collective_only"))


def overlap_efficiency(shape: Shape, view: str) -> float:
    """The fraction of the possible overlap: (T_comm + T_gemm - T) / min(T_comm, T_gemm)."""
    moved, product = communication_us(shape), median_us(shape, "compute_only")
    return (moved + product - median_us(shape, view)) / min(moved, product)


def above_bound(shape: Shape, view: str) -> float:
    """The time of a view over max(T_gemm, T_comm), the lower bound of any schedule."""
    return median_us(shape, view) / max(communication_us(shape), median_us(shape, "compute_only"))


def tflops(shape: Shape, view: str) -> float:
    """The rate of a view: 2 m k n over its time."""
    return 2e-6 * shape["m"] * shape["k"] * shape["n"] / median_us(shape, view)


def torch_us(shape: Shape) -> float | None:
    """The faster variant of torch; None if neither was measured."""
    found = [median_us(shape, view) for view in shape["times_us"] if view.startswith("torch_")]
    return min(found, default=None)


def wrong(shape: Shape) -> int:
    """Elements that differ from float64 by more than rounding, over all verifications."""
    return shape["wrong_before"] + shape["wrong_after"] + shape["wrong_late"]


def summarize(shape: Shape) -> str:
    """One line: distance from the bound, overlap, and speedups."""
    parts = [
        f"pipelined takes {above_bound(shape, 'pipelined'):.3f} x max(T_gemm, T_comm)",
        f"overlap {100 * overlap_efficiency(shape, 'pipelined'):.1f} %",
        f"fused is {median_us(shape, 'sequential') / median_us(shape, 'fused'):.3f}x sequential",
    ]
    if (torch := torch_us(shape)) is not None:
        parts.append(f"{torch / median_us(shape, 'fused'):.3f}x the faster variant of torch")
    return ", ".join(parts)


def records(
    shape: Shape, ranks: int, dtype: str, output: str, platform: str, mode: str = "stream"
) -> list[dict[str, Any]]:
    """The results of the shape in the record format of the project."""
    gathers = shape["kind"] == "allgather_gemm"
    shard_bytes = (
        shape["m"] // ranks * (shape["k"] * ITEM_BYTES[dtype] if gathers else shape["n"] * ITEM_BYTES[output])
    )
    made = []
    for view, time in shape["times_us"].items():
        own = not view.startswith("torch_")
        moved = 0.0 if view.startswith("compute") else (ranks - 1) * shard_bytes / time["median"] / 1e3
        record = {
            "collective": shape["kind"],
            "dtype": dtype,
            "bytes": shard_bytes if gathers else shard_bytes * ranks,
            "ranks": ranks,
            "provider": "isthmus" if own else view,
            "backend": f"fused:{shape['info']['mode']}" if view == "fused" else "",
            "reason": shape["info"]["reason"] if view == "fused" else "",
            "mode": "host" if platform == "host" else mode,
            "time_us": time,
            "algbw_gbs": moved,
            "busbw_gbs": moved,
            "m": shape["m"],
            "k": shape["k"],
            "n": shape["n"],
            "output": output,
            "view": view,
            "host_us": shape["host_us"][view],
        }
        if view in _VERIFIED_VIEWS:
            record["wrong"] = wrong(shape)
        if view not in COMMUNICATION_VIEWS:
            record["tflops"] = tflops(shape, view)
        if view in PIPELINES:
            record["overlap_efficiency"] = overlap_efficiency(shape, view)
        if view == "pipelined":
            record["groups"] = [group["rows"] for group in shape["pipelined_info"]["groups"]]
            record["model"] = shape["pipelined_info"]["model"]
        made.append(record)
    return made
