"""torch.ops.isthmus.allreduce_rmsnorm on CPU tensors, compared with separate operators of PyTorch."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from test_values import assert_same

import isthmus.torch

EPS = 1e-6
SHAPES = [(1, 1), (4, 200), (2, 3, 1024), (3, 9000)]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_FLOAT8 = 448.0
KINDS = ("plain", "scale", "row_scales")
Tensors = tuple[torch.Tensor, ...]


def inputs_of(dtype: torch.dtype, shape: tuple[int, ...], group: dist.ProcessGroup | None = None) -> Tensors:
    """The contribution of this rank, the residual and the weight. The sum depends on the order of the ranks."""

    def values(seed: int, *extents: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        exponents = torch.randint(-5, 5, extents, generator=generator)
        return (torch.randn(extents, generator=generator) * 2.0**exponents).to(dtype)

    return values(10 + dist.get_rank(group), *shape), values(1, *shape), values(2, shape[-1])


def sum_in_documented_order(rows: torch.Tensor, item_bytes: int) -> torch.Tensor:
    """Adds each row: vectors of 16 bytes, 1,024 accumulators, then halves of groups of 32."""
    length = 16 // item_bytes
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % (1024 * length)))
    padded = padded.view(len(rows), -1, 1024, length)
    vectors = torch.zeros(padded.shape[:-1])
    for index in range(length):
        vectors = vectors + padded[..., index]
    sums = torch.zeros(len(rows), 1024)
    for index in range(vectors.shape[1]):
        sums = sums + vectors[:, index]
    sums = sums.view(len(rows), 32, 32)
    for _ in range(2):
        while sums.shape[-1] > 1:
            low, high = sums.chunk(2, -1)
            sums = low + high
        sums = sums.squeeze(-1)
    return sums


def separate_operators(
    own: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    kind: str,
    scale: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    round_before_weight: bool = False,
) -> Tensors:
    """all_reduce, add, RMSNorm in float32 and the conversion to float8_e4m3fn."""
    total = own.clone()
    dist.all_reduce(total, group=group)
    residual = total + residual
    rows = residual.float().flatten(0, -2)
    mean = sum_in_documented_order(rows * rows, own.itemsize) / rows.shape[1]
    factor = 1 / (mean + EPS).double().sqrt().float()  # PyTorch's square root of float32 can be off by one unit
    normalized = rows * factor[:, None]
    if round_before_weight:
        normalized = normalized.to(own.dtype).float()
    normalized = (normalized * weight.float()).to(own.dtype)
    scales = torch.empty(0)
    if kind != "plain":
        if kind == "row_scales":
            largest = normalized.float().abs().amax(1, keepdim=True)
            scale = scales = torch.where(largest == 0, 1.0, largest / LARGEST_FLOAT8)
            scales = scales.view(*own.shape[:-1], 1)
        quotient = (normalized.float() / scale).clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8)
        normalized = quotient.to(torch.float8_e4m3fn)
    return normalized.view(own.shape), residual, scales


def arguments_of(kind: str, scale: torch.Tensor) -> dict[str, object]:
    return {"plain": {}, "scale": {"scale": scale}, "row_scales": {"row_scales": True}}[kind]


def check_bits(sizes: tuple[int, ...] = (1, 2, 4)) -> int:
    checked, scale = 0, torch.tensor(0.003)
    for ranks in sizes:
        group = dist.new_group(list(range(ranks)))
        if dist.get_rank() >= ranks:
            continue
        for dtype in DTYPES:
            for shape in SHAPES:
                inputs = inputs_of(dtype, shape, group)
                originals = [each.clone() for each in inputs]
                for kind, is_rounded in itertools.product(KINDS, (False, True)):
                    arguments = arguments_of(kind, scale) | {"round_before_weight": is_rounded}
                    results = torch.ops.isthmus.allreduce_rmsnorm(*inputs, EPS, group.group_name, **arguments)
                    expected = separate_operators(*inputs, kind, scale, group, is_rounded)
                    for result, right in zip(results, expected, strict=True):
                        assert_same(result, right)
                    checked += 1
                for own, original in zip(inputs, originals, strict=True):
                    assert_same(own, original)
    return checked


def test_results_have_the_bits_of_separate_operators(ranks: RankProcesses) -> None:
    cases = len(DTYPES) * len(SHAPES) * len(KINDS) * 2
    assert ranks.run(check_bits) == [3 * cases, 2 * cases, cases, cases]


def other_layouts() -> None:
    own, residual, weight = inputs_of(torch.bfloat16, (6, 40))
    name = dist.group.WORLD.group_name
    expected = torch.ops.isthmus.allreduce_rmsnorm(own, residual, weight, EPS, name)
    wide = torch.stack([weight, weight], 1)[:, 1]
    results = torch.ops.isthmus.allreduce_rmsnorm(
        own.T.contiguous().T, residual.repeat(2, 2)[:6, :40], wide, EPS, name
    )
    for result, right in zip(results, expected, strict=True):
        assert_same(result, right)
    nothing = torch.ops.isthmus.allreduce_rmsnorm(own[:0], residual[:0], weight, EPS, name, row_scales=True)
    assert [list(each.shape) for each in nothing] == [[0, 40], [0, 40], [0, 1]]


def test_tensors_may_have_any_strides(ranks: RankProcesses) -> None:
    ranks.run(other_layouts)


def report_rows() -> None:
    isthmus.torch.reset_report()
    own, residual, weight = inputs_of(torch.float16, (2, 64))
    torch.ops.isthmus.allreduce_rmsnorm(own, residual, weight, EPS, dist.group.WORLD.group_name)
    dist.all_reduce(own)
    rows = {row.collective: row for row in isthmus.torch.report()}
    assert set(rows) == {"allreduce_rmsnorm", "allreduce"}
    assert rows["allreduce_rmsnorm"].path.startswith("shm")
    assert rows["allreduce_rmsnorm"].bytes == own.nbytes


def test_report_lists_the_calls(ranks: RankProcesses) -> None:
    ranks.run(report_rows)


def bad_arguments() -> None:
    own, residual, weight = inputs_of(torch.float16, (2, 64))
    name, one = dist.group.WORLD.group_name, torch.ones(1)
    call = torch.ops.isthmus.allreduce_rmsnorm
    with pytest.raises(ValueError, match=r"input has the shape \[2, 64\] and the type Double"):
        call(own.double(), residual, weight, EPS, name)
    with pytest.raises(ValueError, match=r"residual has the shape \[1, 64\].*input requires \[2, 64\]"):
        call(own, residual[:1], weight, EPS, name)
    with pytest.raises(ValueError, match=r"weight has the shape \[64\], the type Float"):
        call(own, residual, weight.float(), EPS, name)
    with pytest.raises(ValueError, match="scale and row_scales are both set"):
        call(own, residual, weight, EPS, name, one, True)
    with pytest.raises(ValueError, match=r"scale has the shape \[2\].*one element"):
        call(own, residual, weight, EPS, name, torch.ones(2))
    with pytest.raises(ValueError, match="no_grad"):
        call(own, residual, weight.requires_grad_(), EPS, name)
    with torch.no_grad():
        call(own, residual, weight, EPS, name)
    weight = weight.detach()
    with pytest.raises(dist.DistBackendError, match="eps = -1 must be a finite float32"):
        call(own, residual, weight, -1.0, name)
    with pytest.raises(RuntimeError, match="is coalescing calls"), dist._coalescing_manager(device=own.device):
        call(own, residual, weight, EPS, name)
    call(own, residual, weight, EPS, name)


def test_bad_arguments_are_rejected(ranks: RankProcesses) -> None:
    ranks.run(bad_arguments)


def foreign_group() -> None:
    own, residual, weight = inputs_of(torch.float16, (2, 64))
    with pytest.raises(ValueError, match="has no isthmus backend for cpu"):
        torch.ops.isthmus.allreduce_rmsnorm(own, residual, weight, EPS, dist.group.WORLD.group_name)
    dist.barrier()  # gloo fails on a rank that connects after another one has left


def test_other_backends_are_rejected(ranks: RankProcesses) -> None:
    ranks.run(foreign_group, backend="gloo")


def compiled_layers() -> None:
    """Two layers around the operator, as one graph for each kind of output."""
    name, scale = dist.group.WORLD.group_name, torch.tensor(0.01)

    def layers(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, kind: str) -> Tensors:
        normalized, residual, scales = torch.ops.isthmus.allreduce_rmsnorm(
            x * 2, residual, weight, EPS, name, **arguments_of(kind, scale)
        )
        return normalized.to(x.dtype) + 1, residual, scales + 1

    for dtype in (torch.float16, torch.bfloat16):
        for kind in KINDS:
            torch._dynamo.reset()
            compiled = torch.compile(layers, fullgraph=True, backend="aot_eager", dynamic=kind == "plain")
            for tokens in (4, 7):
                inputs = inputs_of(dtype, (tokens, 64))
                with torch.no_grad():
                    results = compiled(*inputs, kind)
                for result, right in zip(results, layers(*inputs, kind), strict=True):
                    assert_same(result, right)


def test_compiled_layers_are_one_graph(ranks: RankProcesses) -> None:
    ranks.run(compiled_layers)


def operator_check() -> None:
    """The schema, the kernel for fake tensors and the dispatch agree with the results."""
    name = dist.group.WORLD.group_name
    for dtype in DTYPES:
        for kind in KINDS:
            torch.library.opcheck(
                torch.ops.isthmus.allreduce_rmsnorm.default,
                (*inputs_of(dtype, (3, 32)), EPS, name),
                arguments_of(kind, torch.tensor(0.01)),
                test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
            )


def test_fake_kernel_agrees_with_the_operator(ranks: RankProcesses) -> None:
    ranks.run(operator_check)
