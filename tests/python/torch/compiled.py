"""Programs under torch.compile that use collectives. Each compiles to one graph, on the CPU or on GPUs.

torchrun --nproc-per-node 2 [-m isthmus.torch] tests/python/torch/compiled.py FOLDER CASE...

As a program, it writes results and counts of kernels and copies to FOLDER and stops after a case that fails.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WARMUPS, ITERATIONS = 3, 4
HEADS, BATCH = 8, 2
TOLERANCE = 2e-4  # of float32 relative to the largest value of float64

Tensors = list[torch.Tensor]
Step = Callable[[], Tensors]  # one iteration, which returns outputs and gradients
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class Block(nn.Module):
    """A transformer block. With parallel projections, each rank computes some of the heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.attention = Attention(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.perceptron(self.norms[1](x))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head_width = width // HEADS
        self.query, self.value, self.output = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)  # the gradient of a bias would be zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            projection(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


def loss_of(outputs: Tensors) -> torch.Tensor:
    return torch.stack([each.square().mean() for each in outputs]).sum()


def iteration(call: Callable[..., Any], inputs: Tensors, parameters: Tensors | None = None) -> Step:
    """Returns a step that calls `call(*inputs)`, and computes the gradients of tensors that require them."""
    differentiated = [each for each in [*inputs, *(parameters or [])] if each.requires_grad]

    def step() -> Tensors:
        for each in differentiated:
            each.grad = None
        result = call(*inputs)
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        if differentiated:
            loss_of(outputs).backward()
        return [each.detach() for each in outputs] + [each.grad for each in differentiated]

    return step


def inputs_of_ranks(device: str, *shape: int) -> Tensors:
    """Returns the input of every rank, equal on all ranks."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(device) for _ in range(dist.get_world_size())]


def doubles(tensors: Tensors, requires_grad: bool = False) -> Tensors:
    return [each.double().requires_grad_(requires_grad) for each in tensors]


# ---- functional collectives -------------------------------------------------------------------------------


def functional_collectives(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    all_inputs = inputs_of_ranks(device, 4 * size, 64)
    # Rank r sends r + p + 1 rows to rank p.
    counts = [[source + target + 1 for target in range(size)] for source in range(size)]
    sent, received = counts[rank], [row[rank] for row in counts]

    def call(own: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.all_reduce(own * 2, "sum", group) + 1,
            functional.all_reduce(own.sin(), "max", group),
            functional.all_gather_tensor(own + 1, 0, group) * 2,
            functional.reduce_scatter_tensor(own * 3, "sum", 0, group) + 1,
            functional.reduce_scatter_tensor(own, "sum", 1, group),
            functional.all_to_all_single(own - 1, None, None, group) * 2,
            functional.all_to_all_single(own.repeat(size, 1)[: sum(sent)], received, sent, group),
            functional.broadcast(own.cos(), 0, group) + 1,
        )

    xs = doubles(all_inputs)
    parts = [x.repeat(size, 1)[: sum(row)].split(row)[rank] for x, row in zip(xs, counts, strict=True)]
    expected = [
        sum(xs) * 2 + 1,
        torch.stack([x.sin() for x in xs]).amax(0),
        torch.cat([x + 1 for x in xs]) * 2,
        (sum(xs) * 3).chunk(size)[rank] + 1,
        sum(xs).chunk(size, 1)[rank],
        torch.cat([(x - 1).chunk(size)[rank] for x in xs]) * 2,
        torch.cat(parts),
        xs[0].cos() + 1,
    ]
    return iteration(compiled(call), [all_inputs[rank]]), expected


def gathered_columns(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    group = dist.group.WORLD
    all_inputs = inputs_of_ranks(device, 8, 64)

    def call(own: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (functional.all_gather_tensor(own + 1, 1, group) * 2,)

    expected = [torch.cat([x + 1 for x in doubles(all_inputs)], 1) * 2]
    return iteration(compiled(call), [all_inputs[dist.get_rank()]]), expected


def coalesced_collectives(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    all_inputs = inputs_of_ranks(device, 4 * size, 64)

    def call(own: torch.Tensor) -> Tensors:
        parts = [own * 2, own[:size] + 1]
        return [
            *functional.all_reduce_coalesced(parts, "sum", group),
            *functional.all_gather_into_tensor_coalesced(parts, group),
            *functional.reduce_scatter_tensor_coalesced(parts, "sum", [0, 0], group),
        ]

    pairs = [(x * 2, x[:size] + 1) for x in doubles(all_inputs)]
    columns = list(zip(*pairs, strict=True))
    sums = [sum(column) for column in columns]
    expected = [*sums, *(torch.cat(column) for column in columns), *(each.chunk(size)[rank] for each in sums)]
    return iteration(compiled(call), [all_inputs[rank]]), expected


def calls_in_place(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    """Functions of torch.distributed that the compiler replaces by functional collectives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    all_inputs = inputs_of_ranks(device, 4 * size, 64)

    def call(own: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total, exchanged = own * 2, torch.empty_like(own)
        gathered, scattered = own.new_empty(size * len(own), 64), own.new_empty(len(own) // size, 64)
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, own + 1)
        dist.reduce_scatter_tensor(scattered, own * 3)
        dist.all_to_all_single(exchanged, own - 1)
        return total, gathered, scattered, exchanged

    xs = doubles(all_inputs)
    exchanged = torch.cat([(x - 1).chunk(size)[rank] for x in xs])
    expected = [sum(xs) * 2, torch.cat([x + 1 for x in xs]), (sum(xs) * 3).chunk(size)[rank], exchanged]
    return iteration(compiled(call), [all_inputs[rank]]), expected


def functional_gradients(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    all_inputs = inputs_of_ranks(device, 4 * size, 64)

    def call(own: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.all_gather_tensor_autograd(own.sin(), 0, group).sin(),
            functional.reduce_scatter_tensor_autograd(own.cos(), "sum", 0, group).sin(),
            functional.all_to_all_single_autograd(own + 1, None, None, group).sin(),
        )

    xs = doubles(all_inputs, requires_grad=True)
    by_rank = [
        [
            torch.cat([x.sin() for x in xs]).sin(),
            sum(x.cos() for x in xs).chunk(size)[target].sin(),
            torch.cat([(x + 1).chunk(size)[target] for x in xs]).sin(),
        ]
        for target in range(size)
    ]
    sum(loss_of(outputs) for outputs in by_rank).backward()
    expected = [*by_rank[rank], xs[rank].grad]
    return iteration(compiled(call), [all_inputs[rank].requires_grad_()]), expected


def allreduce_gradient(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    all_inputs = inputs_of_ranks(device, 4 * size, 64)

    def call(own: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(own.sin(), "sum", group).sin()

    xs = doubles(all_inputs, requires_grad=True)
    output = sum(x.sin() for x in xs).sin()
    (size * loss_of([output])).backward()  # every rank computes the loss
    return iteration(compiled(call), [all_inputs[rank].requires_grad_()]), [output, xs[rank].grad]


# ---- DTensor ----------------------------------------------------------------------------------------------


def sizes(device: str) -> tuple[int, int]:
    """Returns the width and the length of sequences."""
    return (512, 256) if device == "cuda" else (32, 16)


def make_block(device: str) -> Block:
    torch.manual_seed(0)
    return Block(sizes(device)[0]).to(device)


def differentiate(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
    """Returns the output and the gradients of the input and of the parameters, in float64 and without ranks."""
    reference, x = copy.deepcopy(model).double(), x.double().requires_grad_()
    output = reference(x)
    loss_of([output]).backward()
    return output.detach(), x.grad, [each.grad for each in reference.parameters()]


def tensor_parallel(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    width, length = sizes(device)
    block, x = make_block(device), inputs_of_ranks(device, BATCH, length, width)[0]
    output, gradient, of_parameters = differentiate(block, x)
    columns = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    rows = {name: RowwiseParallel() for name in ("attention.output", "perceptron.2")}
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    parallelize_module(block, mesh, columns | {"perceptron.0": ColwiseParallel()} | rows)
    expected = [output, gradient, *of_parameters]
    return iteration(compiled(block), [x.requires_grad_()], list(block.parameters())), expected


def sequence_parallel(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    width, length = sizes(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    block, x = make_block(device), inputs_of_ranks(device, BATCH, length, width)[0]
    output, gradient, of_parameters = differentiate(block, x)
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.output", "perceptron.2")}
    plan |= {"attention": whole, "perceptron": whole, "perceptron.0": ColwiseParallel()}
    plan |= {f"norms.{index}": SequenceParallel() for index in range(2)}
    parallelize_module(block, init_device_mesh(device, (size,)), plan)
    own = x.chunk(size, 1)[rank].clone().requires_grad_()
    # The mean of a part is `size` times larger than its share in the mean of the whole.
    expected = [output.chunk(size, 1)[rank], gradient.chunk(size, 1)[rank] * size]
    expected += [each * size for each in of_parameters]
    return iteration(compiled(block), [own], list(block.parameters())), expected


def async_tensor_parallel(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    enable_symm_mem_for_group(dist.group.WORLD.group_name)
    config._micro_pipeline_tp = True
    return sequence_parallel(device, compiled)


def cuda_graphs(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    config.triton.cudagraphs = True
    step, expected = tensor_parallel(device, compiled)
    return lambda: [each.clone() for each in step()], expected  # the next replay overwrites the results


def fsdp2(device: str, compiled: Compile) -> tuple[Step, Tensors]:
    width, length = sizes(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(Block(width), Block(width)).to(device)
    all_inputs = inputs_of_ranks(device, BATCH, length, width)
    references = [differentiate(model, x) for x in all_inputs]
    mean = [sum(each) / size for each in zip(*(reference[2] for reference in references), strict=True)]
    mesh = init_device_mesh(device, (size,))
    for block in model:
        block.forward = compiled(block.forward)  # as torch.compile of a block whose hooks stay eager
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return iteration(model, [all_inputs[rank]], list(model.parameters())), [references[rank][0], *mean]


CASES: dict[str, Callable[[str, Compile], tuple[Step, Tensors]]] = {
    case.__name__: case
    for case in (
        functional_collectives,
        gathered_columns,
        coalesced_collectives,
        calls_in_place,
        functional_gradients,
        allreduce_gradient,
        tensor_parallel,
        sequence_parallel,
        fsdp2,
        async_tensor_parallel,
        cuda_graphs,
    )
}


# ---- checks -----------------------------------------------------------------------------------------------


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check(name: str, device: str, backend: str) -> tuple[Step, Tensors]:
    """Runs a case and compares it with its reference. Returns its step and the results of the last call."""
    torch._dynamo.reset()
    counters.clear()
    step, expected = CASES[name](
        device, lambda call: torch.compile(call, fullgraph=True, backend=backend, dynamic=False)
    )
    for _ in range(WARMUPS):
        results = step()
    assert not counters["graph_break"], counters["graph_break"]
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    results = [whole(each) for each in results]
    for index, (own, right) in enumerate(zip(results, expected, strict=True)):
        torch.testing.assert_close(
            own.double(),
            right.detach(),
            rtol=0,
            atol=TOLERANCE * right.abs().max().item(),
            msg=lambda text, index=index: f"tensor {index} of {name}: {text}",
        )
    return step, results


def check_all(names: list[str], device: str, backend: str) -> None:
    for name in names:
        check(name, device, backend)


# ---- the program ------------------------------------------------------------------------------------------

COMMUNICATION = re.compile(r"nccl|isthmus", re.IGNORECASE)
COPY = re.compile(r"copy|CatArray", re.IGNORECASE)
COPYING_OPERATIONS = {"aten::copy_", "aten::cat", "aten::clone"}


@contextmanager
def unchanged_configuration() -> Iterator[None]:
    saved = config._micro_pipeline_tp, config.triton.cudagraphs
    try:
        yield
    finally:
        config._micro_pipeline_tp, config.triton.cudagraphs = saved


def count(step: Step, device: str) -> dict[str, Any]:
    """Returns the number of copies and kernels per iteration and their names."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, *([activity.CUDA] if device == "cuda" else [])]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=ITERATIONS)
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/trace.json"
        with torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=lambda profile: profile.export_chrome_trace(trace),
        ) as profile:
            for _ in range(1 + ITERATIONS):
                step()
                if device == "cuda":
                    torch.cuda.synchronize()
                profile.step()
        events = json.loads(Path(trace).read_text())["traceEvents"]
    names: Counter[str] = Counter()
    kinds = Counter({"copies": 0, "kernels": 0, "communication": 0})
    operations = {event["name"] for event in events if event.get("cat") == "cpu_op"}
    for event in events:
        category, name = event.get("cat"), event["name"]
        if category == "kernel":
            is_communication = COMMUNICATION.search(name)
            kinds["communication" if is_communication else "copies" if COPY.search(name) else "kernels"] += 1
        elif category in ("gpu_memcpy", "gpu_memset"):
            name = name.partition(" (")[0]  # "Memcpy DtoD (Device -> Device)"
            kinds["copies" if name == "Memcpy DtoD" else name] += 1
        elif device == "cpu" and name in COPYING_OPERATIONS:
            kinds["copies"] += 1
        else:
            continue
        names[name] += 1
    return {
        "per_iteration": {kind: number / ITERATIONS for kind, number in sorted(kinds.items())},
        "names": {name: number / ITERATIONS for name, number in sorted(names.items())},
        "fused": sorted(name for name in operations if name.startswith("symm_mem::fused")),
    }


def isthmus_paths() -> list[str]:
    """Returns the collectives that used Isthmus so far and their paths."""
    module = sys.modules.get("isthmus.torch")
    rows = module.report() if module is not None else []
    return sorted({f"{row.collective} {row.path}" for row in rows})


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    device = os.environ["DEVICE"]
    rank = int(os.environ["RANK"])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        for kind in ("flash", "mem_efficient", "cudnn"):  # their sums have no fixed order
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    dist.init_process_group({"cuda": "nccl", "cpu": "gloo"}[device], timeout=timedelta(seconds=60))
    results: dict[str, Any] = {}
    for name in names:
        begin = time.monotonic()
        try:
            with unchanged_configuration():
                step, tensors = check(name, device, "inductor")
                torch.save([each.cpu() for each in tensors], folder / f"{name}-{rank}.pt")
                del tensors
                results[name] = count(step, device) | {"problem": "", "paths": isthmus_paths()}
                del step
                if name == "async_tensor_parallel" and not results[name]["fused"]:
                    raise RuntimeError("the compiler has fused no collective with a matrix product")
        except Exception:
            results[name] = {"problem": traceback.format_exc()}
        results[name]["seconds"] = round(time.monotonic() - begin, 1)
        (folder / f"{rank}.json").write_text(json.dumps(results))
        if results[name]["problem"]:
            os._exit(1)  # the other ranks may wait in a collective, so nothing can be destroyed
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
