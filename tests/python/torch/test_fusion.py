"""The pass that replaces operations in compiled tensor-parallel models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from test_norm import sum_in_documented_order
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import isthmus.torch

WIDTH, INNER, VOCABULARY, LAYERS, EPS = 96, 192, 61, 2, 1e-5


@pytest.fixture(scope="module")
def pair() -> Iterator[RankProcesses]:
    ranks = RankProcesses(2)  # each one compiles
    yield ranks
    ranks.close()


class LlamaNorm(nn.Module):
    """RMSNorm as in transformers: rounds before the product with the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.to(torch.float32)
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * rows.to(x.dtype)


class Layer(nn.Module):
    def __init__(self, make_norm: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([make_norm(WIDTH, eps=EPS) for _ in range(2)])
        self.query, self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(3))
        self.out, self.down = (nn.Linear(INNER, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.query(self.norms[0](x)).tanh())
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """The operations of Llama without attention between tokens. All ranks have the same random weights."""

    def __init__(self, dtype: torch.dtype, make_norm: Callable[..., nn.Module] = LlamaNorm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(make_norm) for _ in range(LAYERS)])
        self.norm = make_norm(WIDTH, eps=EPS)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            scale = 1.0 if parameter.dim() == 1 else WIDTH**-0.5
            parameter.data = (torch.randn(parameter.shape, generator=generator) * scale).to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def parallel_model(*arguments: Any) -> nn.Module:
    plan = {f"layers.*.{name}": ColwiseParallel() for name in ("query", "gate", "up")}
    plan |= {f"layers.*.{name}": RowwiseParallel() for name in ("out", "down")}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(Model(*arguments).eval(), mesh, plan).requires_grad_(False)


def use_documented_order(graph: torch.fx.Graph, item_bytes: int) -> None:
    """Gives the norms of a graph the operator's order of additions, and a correctly rounded square root."""

    def mean(squares: torch.Tensor, _: list[int], __: bool) -> torch.Tensor:
        width = squares.shape[-1]
        return sum_in_documented_order(squares.flatten(0, -2), item_bytes).view(*squares.shape[:-1], 1) / width

    def reciprocal_root(x: torch.Tensor) -> torch.Tensor:
        return 1 / x.double().sqrt().float()

    for node in graph.nodes:
        node.target = {
            torch.ops.aten.mean.dim: mean,
            torch.ops.aten.rsqrt.default: reciprocal_root,
        }.get(node.target, node.target)


def compiled(
    call: Callable[..., Any], fusion: Callable[[torch.fx.Graph], None] | None, item_bytes: int | None = None
) -> Callable[..., Any]:
    """Compiles to the graphs that Inductor gives to the pass, without generating code, which takes a minute.

    `item_bytes`: the remaining norms add in the documented order for elements of this size.
    """

    def apply(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        before = str(module.graph)
        if fusion is not None:
            count = fusion.replacements
            fusion(module.graph)
            assert (count == fusion.replacements) == (str(module.graph) == before)
            module.graph.lint()
        if item_bytes is not None:
            use_documented_order(module.graph, item_bytes)
        module.recompile()
        return module

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=apply,
        inference_compiler=apply,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,  # as in Inductor
    )
    return torch.compile(call, backend=backend, fullgraph=True)


def calls_by_name() -> dict[str, int]:
    calls = {row.collective: row.calls for row in isthmus.torch.report()}
    isthmus.torch.reset_report()
    return calls


def tokens_of(*shape: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(3))


def compare_models(dtype: torch.dtype, make_norm: Callable[..., nn.Module]) -> None:
    model, tokens = parallel_model(dtype, make_norm), tokens_of(2, 50)
    fusion = isthmus.torch.FusionPass()
    calls_by_name()
    expected = compiled(model, None)(tokens)
    assert calls_by_name() == {"allreduce": 2 * LAYERS}
    result = compiled(model, fusion)(tokens)
    assert calls_by_name() == {"allreduce_rmsnorm": 2 * LAYERS}
    assert fusion.replacements == 2 * LAYERS
    # The sums of squares differ by float32 roundings, which rarely change a bit of a shorter type.
    steps = (result.float() - expected.float()).abs() / (torch.finfo(dtype).eps * expected.float().abs().max())
    assert steps.max() <= (200 if dtype == torch.float32 else 8)
    assert dtype == torch.float32 or steps.ne(0).float().mean() < 0.05
    assert result.argmax(-1).equal(expected.argmax(-1))
    # With the same order of additions, no bit differs.
    bits = [compiled(model, each, dtype.itemsize)(tokens) for each in (None, fusion)]
    assert bits[0].equal(bits[1])


# The graphs of the two 16-bit types differ only in the type's name.
@pytest.mark.parametrize(
    ("dtype", "make_norm"),
    [(torch.bfloat16, LlamaNorm), (torch.float32, LlamaNorm), (torch.float16, nn.RMSNorm)],
    ids=str,
)
def test_fused_model_has_the_same_bits(
    pair: RankProcesses, dtype: torch.dtype, make_norm: Callable[..., nn.Module]
) -> None:
    pair.run(compare_models, dtype, make_norm)


def generated_code() -> None:
    torch._dynamo.reset()
    fusion = isthmus.torch.FusionPass()
    total = LlamaNorm(WIDTH, EPS).to(torch.bfloat16).requires_grad_(False)
    total.weight.copy_(torch.randn(WIDTH))
    # Multiples of 1/4, whose sums of squares are exact in every order.
    partial, residual = (torch.randint(-8, 9, (4, WIDTH)).to(torch.bfloat16) / 4 for _ in range(2))

    def call(partial: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + functional.all_reduce(partial, "sum", dist.group.WORLD)
        return total(residual), residual

    options = {"post_grad_custom_pre_pass": fusion}
    results = torch.compile(call, fullgraph=True, options=options)(partial, residual)
    assert fusion.replacements == 1
    expected = call(partial, residual)
    assert results[1].equal(expected[1])
    assert results[0].equal(expected[0])


def test_inductor_applies_the_pass(pair: RankProcesses) -> None:
    pair.run(generated_code)


def unchanged_graphs() -> None:
    weight, other_weight = torch.randn(WIDTH), torch.randn(WIDTH, dtype=torch.float64)
    x, residual = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    world, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]

    def norm(total: torch.Tensor, weight: torch.Tensor = weight, axis: int = -1) -> torch.Tensor:
        return weight * (total * torch.rsqrt(total.pow(2).mean(axis, keepdim=True) + EPS))

    def reduced(x: torch.Tensor, operation: str = "sum", group: dist.ProcessGroup = world) -> torch.Tensor:
        return functional.all_reduce(x, operation, group)

    def twice(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = reduced(x)
        return norm(residual + total), total

    def centered(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total = residual + reduced(x)
        return weight * (
            (total - total.mean(-1, keepdim=True)) * torch.rsqrt(total.pow(2).mean(-1, True) + EPS)
        )

    others = {
        "no collective": lambda x, residual: norm(x + residual),
        "no norm": lambda x, residual: reduced(x) + residual,
        "no residual": lambda x, _: norm(reduced(x)),
        "average": lambda x, residual: norm(residual + reduced(x, "avg")),
        "maximum": lambda x, residual: norm(residual + reduced(x, "max")),
        "group of gloo": lambda x, residual: norm(residual + reduced(x, group=gloo)),
        "group of one rank": lambda x, residual: norm(residual + reduced(x, group=alone)),
        "float64": lambda x, residual: norm(residual.double() + reduced(x.double()), other_weight),
        "weight of another type": lambda x, residual: norm(residual + reduced(x), other_weight),
        "weight of another shape": lambda x, residual: norm(residual + reduced(x), x),
        "residual of another shape": lambda x, residual: norm(residual[:1] + reduced(x)),
        "scaled residual": lambda x, residual: norm(torch.add(residual, reduced(x), alpha=2)),
        "other axis": lambda x, residual: norm(residual + reduced(x), axis=0),
        "sum with two uses": twice,
        "another norm": centered,
        "two factors": lambda x, residual: norm(residual + reduced(x)[:, ::2].repeat(1, 2)),
    }
    for name, call in others.items():
        fusion = isthmus.torch.FusionPass()
        result, expected = compiled(call, fusion)(x, residual), call(x, residual)
        assert fusion.replacements == 0, name
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, msg=name)
    fusion = isthmus.torch.FusionPass()
    result = compiled(lambda x, residual: norm(reduced(x.view(2, 2, -1)).view(4, -1) + residual), fusion)(
        x, residual
    )
    assert fusion.replacements == 1
    torch.testing.assert_close(result, norm(residual + reduced(x)), rtol=1e-5, atol=1e-5)


def test_other_graphs_are_unchanged(pair: RankProcesses) -> None:
    pair.run(unchanged_graphs)


def two_norms_of_one_sum() -> list[str]:
    weight, messages = torch.randn(WIDTH), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("isthmus.torch")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def call(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = residual + functional.all_reduce(x, "sum", dist.group.WORLD)
        norms = [nn.functional.rms_norm(total, (WIDTH,), each, EPS) for each in (weight, weight + 1)]
        return *norms, total, functional.all_reduce(x, "max", dist.group.WORLD)

    x, residual = torch.randn(2, 4, WIDTH)
    results = compiled(call, isthmus.torch.FusionPass())(x, residual)
    for result, right in zip(results, call(x, residual), strict=True):
        torch.testing.assert_close(result, right, rtol=1e-5, atol=1e-5)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    return messages


def test_second_norm_uses_the_fused_sum(pair: RankProcesses) -> None:
    assert pair.run(two_norms_of_one_sum) == [["replaced 1 norms and 0 products; 1 allreduces are left"]] * 2


def generated_tokens() -> None:
    """A model of transformers: greedy decoding without a cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": WIDTH // 4}
    model = (
        LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, **sizes, **heads)).eval().requires_grad_(False)
    )
    for parameter in model.parameters():
        parameter.normal_(std=1.0 if parameter.dim() == 1 else WIDTH**-0.5)
    plan = {f"model.layers.*.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {f"model.layers.*.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    plan |= {f"model.layers.*.{name}_proj": RowwiseParallel() for name in ("self_attn.o", "mlp.down")}
    parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)

    fusion = isthmus.torch.FusionPass()
    step = compiled(lambda tokens: model(tokens, use_cache=False).logits, fusion)
    tokens = tokens_of(3, 4)
    for _ in range(3):
        expected, result = model(tokens, use_cache=False).logits, step(tokens)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert result.argmax(-1).equal(expected.argmax(-1))
        tokens = torch.cat([tokens, result[:, -1:].argmax(-1)], 1)
    assert fusion.replacements % (2 * LAYERS) == 0
    assert fusion.replacements > 0


def test_model_of_transformers_has_the_same_tokens(pair: RankProcesses) -> None:
    pytest.importorskip("transformers")
    pair.run(generated_tokens)


def test_old_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.0+cpu")
    with pytest.raises(RuntimeError, match=r"PyTorch 2\.10\.0\+cpu must be 2\.11 or newer"):
        isthmus.torch.FusionPass()


class Gate(nn.Module):
    """Two products of one input, and a product of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class SequenceLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(WIDTH), Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


def sequence_layer(mesh: DeviceMesh, axis: int) -> nn.Module:
    plan = {
        "norm": SequenceParallel(sequence_dim=axis),
        "mlp": PrepareModuleInput(input_layouts=(Shard(axis),), desired_input_layouts=(Replicate(),)),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(axis), use_local_output=False),
    }
    return parallelize_module(SequenceLayer().to(torch.bfloat16), mesh, plan)


SEQUENCES = [((1, 24), 1), ((3, 24), 1), ((24, 2), 0)]  # shapes without the width, dimensions of the sequence


def sequence_step(mesh: DeviceMesh, fusion: Any) -> list[torch.Tensor]:
    """The outputs and all gradients of compiled layers with sequence parallelism."""
    torch.manual_seed(4)
    layers = [sequence_layer(mesh, axis) for _, axis in SEQUENCES]
    inputs = []
    for shape, axis in SEQUENCES:
        own = torch.randn(*shape, WIDTH).to(torch.bfloat16).chunk(mesh.size(), axis)[dist.get_rank()]
        inputs.append(DTensor.from_local(own.contiguous(), mesh, (Shard(axis),)).requires_grad_())

    def run(*inputs: DTensor) -> list[torch.Tensor]:
        return [layer(each).to_local() for layer, each in zip(layers, inputs, strict=True)]

    outputs = compiled(run, fusion)(*inputs)
    sum(each.float().square().sum() for each in outputs).backward()
    leaves = [*inputs, *(parameter for layer in layers for parameter in layer.parameters())]
    return [*(each.detach() for each in outputs), *(leaf.grad.to_local() for leaf in leaves)]


def compare_sequence_layers() -> None:
    fusion, mesh = isthmus.torch.FusionPass(), init_device_mesh("cpu", (dist.get_world_size(),))
    separate, fused = (sequence_step(mesh, each) for each in (None, fusion))
    # Forward: the first product of the gathered input, and the scattered sum. Backward: the gathered gradient.
    assert fusion.replacements == 3 * len(SEQUENCES), fusion.replacements
    for expected, result in zip(separate, fused, strict=True):
        assert result.equal(expected)


def test_sequence_parallel_layers_are_fused(pair: RankProcesses) -> None:
    pair.run(compare_sequence_layers)


def sums_of_products() -> None:
    """Products of few rows with a weight of torch.nn.Linear are replaced, others are not."""
    weight = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))

    def layer(x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = torch.mm(x.flatten(0, -2), right).unflatten(0, x.shape[:-1])
        return functional.all_reduce(product, "sum", dist.group.WORLD) + 1

    for shape, is_linear, expected in (((2, 8), True, 1), ((2, 9), True, 0), ((2, 8), False, 0)):
        x, right = torch.randn(*shape, WIDTH), weight if is_linear else weight.t().contiguous()
        fusion = isthmus.torch.FusionPass()

        def run(x: torch.Tensor, right: torch.Tensor, is_linear: bool = is_linear) -> torch.Tensor:
            return layer(x, right.t() if is_linear else right)

        assert compiled(run, fusion)(x, right).equal(run(x, right))
        assert fusion.replacements == expected


def test_sums_of_few_rows_are_fused(pair: RankProcesses) -> None:
    pair.run(sums_of_products)
