#!/usr/bin/env python3
"""Layers with sequence parallelism: the operators of isthmus.torch against separate calls and PyTorch's fused
operators. All run in one set of processes, one for each GPU.

    torch_sequence_parallel.py [--ranks N] [--samples N] [--rows M,M] [--shapes OPERATOR:KxN,...] [--device cpu]
                               [--out FILE]

M is the number of rows of all ranks. `allgather_matmul` gathers M x K and multiplies it by a weight of N x K.
`matmul_reduce_scatter` multiplies M x K by N x K and scatters the sum of M x N. `mlp` is the forward and the
backward pass of both with a SiLU between them: K is the model's size, and N the rank's part of the inner size.
A sample is the maximum over ranks of the device time of consecutive calls divided by their number, a result the
median over samples. The order of the providers rotates. Results are compared with float64. On the CPU, the
providers are compared with gloo instead of NCCL.
"""

import argparse
import statistics
import sys
from typing import Any

from torch_matmul import random, record_of
from torch_ranks import host_us, parser, run, slowest, timed
from torch_symm_mem import Call

# One of two ranks: the projections before and after attention, and the MLP, of Llama 8B and 70B.
SHAPES = [
    "allgather_matmul:4096x3072",
    "allgather_matmul:4096x14336",
    "allgather_matmul:8192x5120",
    "matmul_reduce_scatter:2048x4096",
    "matmul_reduce_scatter:7168x4096",
    "matmul_reduce_scatter:4096x8192",
    "mlp:4096x7168",
    "mlp:8192x14336",
]
ROWS = [2048, 8192]
CALLS = 8


class Problem:
    """One operator with its tensors on this rank."""

    def __init__(
        self, operator: str, rows: int, shape: tuple[int, int], rank: int, size: int, device: str
    ) -> None:
        inner, columns = shape
        is_scatter = operator == "matmul_reduce_scatter"
        self.operator, self.rows, self.shape, self.rank, self.size = operator, rows, shape, rank, size
        self.input = random(rows if is_scatter else rows // size, inner, rank + 7, device)
        self.weights = [random(columns, inner, 100 + rank, device)]
        self.gradient = None
        if operator == "mlp":
            self.weights.append(random(inner, columns, 200 + rank, device))
            self.gradient = random(rows // size, inner, 300 + rank, device)
            for tensor in (self.input, *self.weights):
                tensor.requires_grad_()

    def calls(self, group: Any) -> dict[str, Call]:
        other = "nccl" if self.input.is_cuda else "gloo"
        import torch.distributed as dist

        calls = {
            "isthmus": self._fused(group.group_name),
            "isthmus_separate": self._separate(group),
            f"{other}_separate": self._separate(dist.group.WORLD),
        }
        if self.input.is_cuda and self.gradient is None:
            calls["torch_fused"] = self._symm_mem(dist.group.WORLD.group_name)
        return calls

    def _fused(self, name: str) -> Call:
        import torch

        ops = torch.ops.isthmus
        if self.operator == "allgather_matmul":
            return lambda: ops.allgather_matmul(self.input, self.weights[0], name)[0]
        if self.operator == "matmul_reduce_scatter":
            return lambda: ops.matmul_reduce_scatter(self.input, self.weights[0], name)

        def step() -> Any:
            hidden, _ = ops.allgather_matmul(self.input, self.weights[0], name)
            hidden = torch.nn.functional.silu(hidden)
            return self._backward(ops.matmul_reduce_scatter(hidden, self.weights[1], name))

        return step

    def _separate(self, group: Any) -> Call:
        import torch
        import torch.distributed as dist
        from torch.distributed import _functional_collectives as functional

        if self.operator == "mlp":

            def step() -> Any:
                gathered = functional.all_gather_tensor_autograd(self.input, 0, group)
                hidden = torch.nn.functional.silu(gathered @ self.weights[0].t())
                return self._backward(
                    functional.reduce_scatter_tensor_autograd(hidden @ self.weights[1].t(), "sum", 0, group)
                )

            return step
        gathered = self.input.new_empty((self.rows, self.shape[0]))
        block = self.input.new_empty((self.rows // self.size, self.shape[1]))

        def gather() -> Any:
            dist.all_gather_into_tensor(gathered, self.input, group)
            return torch.mm(gathered, self.weights[0].t())

        def scatter() -> Any:
            dist.reduce_scatter_tensor(block, torch.mm(self.input, self.weights[0].t()), group=group)
            return block

        return gather if self.operator == "allgather_matmul" else scatter

    def _symm_mem(self, name: str) -> Call:
        import torch

        ops = torch.ops.symm_mem
        if self.operator == "allgather_matmul":
            return lambda: ops.fused_all_gather_matmul(self.input, [self.weights[0].t()], 0, name)[1][0]
        return lambda: ops.fused_matmul_reduce_scatter(self.input, self.weights[0].t(), "sum", 0, name)

    def _backward(self, output: Any) -> Any:
        for tensor in (self.input, *self.weights):
            tensor.grad = None
        output.backward(self.gradient)
        return output.detach()

    def count_wrong(self, call: Call) -> int:
        """Counts the wrong elements of all ranks, for the `mlp` also those of the gradients."""
        import torch
        import torch.distributed as dist

        result = call()
        with torch.no_grad():
            wrong = sum(self._compare(*each) for each in self._expected(result))
        total = torch.tensor([wrong], device=result.device)
        dist.all_reduce(total)
        return int(total.item())

    def _compare(self, actual: Any, expected: Any, magnitude: Any) -> int:
        import torch

        bound = 2 * self.size * torch.finfo(actual.dtype).eps * magnitude
        return int((~((actual.double() - expected).abs() <= bound)).sum())  # NaN is wrong

    def _expected(self, result: Any) -> list[tuple[Any, Any, Any]]:
        """Pairs of results and float64 values, with the sums of magnitudes that bound the errors."""
        import torch

        if self.operator == "mlp":
            return self._expected_of_step(result)
        pairs = []
        for magnitude in (False, True):
            own, weight = (each.double() for each in (self.input, self.weights[0]))
            if magnitude:
                own, weight = own.abs(), weight.abs()
            if self.operator == "allgather_matmul":
                pairs.append(self._gather(own) @ weight.t())
            else:
                pairs.append(self._scatter(own @ weight.t()))
        assert isinstance(pairs[0], torch.Tensor)
        return [(result, *pairs)]

    def _expected_of_step(self, result: Any) -> list[tuple[Any, Any, Any]]:
        """The step with separate calls and float64. The largest element bounds the errors of all elements."""
        import torch

        own, up, down, gradient = (each.double() for each in (self.input, *self.weights, self.gradient))
        rows, of_rows = self._gather(own), self._gather(gradient)
        before = rows @ up.t()
        gate = torch.sigmoid(before)
        hidden = before * gate
        of_before = (of_rows @ down) * gate * (1 + before * (1 - gate))
        values = (
            (result, self._scatter(hidden @ down.t())),
            (self.input.grad, self._scatter(of_before @ up)),
            (self.weights[0].grad, of_before.t() @ rows),
            (self.weights[1].grad, of_rows.t() @ hidden),
        )
        return [(actual, exact, exact.abs().amax().expand_as(exact)) for actual, exact in values]

    def _gather(self, own: Any) -> Any:
        import torch.distributed as dist

        whole = own.new_empty((self.size * own.shape[0], own.shape[1]))
        dist.all_gather_into_tensor(whole, own.contiguous())
        return whole

    def _scatter(self, partial: Any) -> Any:
        import torch.distributed as dist

        dist.all_reduce(partial)
        return partial.chunk(self.size)[self.rank]


def compare(problem: Problem, group: Any, samples: int) -> list[dict[str, Any]]:
    calls = problem.calls(group)
    device = problem.input.device.type
    wrong = {provider: problem.count_wrong(call) for provider, call in calls.items()}
    times: dict[str, list[float]] = {provider: [] for provider in calls}
    names = list(calls)
    for turn in range(-1, samples):
        for position in range(len(names)):
            provider = names[(position + turn) % len(names)]
            if device == "cuda":
                value = timed(calls[provider], CALLS)
            else:
                value = slowest(host_us(calls[provider], CALLS), device)
            if turn >= 0:
                times[provider].append(value)
    inner, columns = problem.shape
    if problem.rank == 0:
        results = " ".join(
            f"{provider} {statistics.median(times[provider]):.1f}{' WRONG' if wrong[provider] else ''}"
            for provider in names
        )
        print(f"{problem.operator} {problem.rows} rows, {inner} x {columns}: {results}", flush=True)
    width = columns if problem.operator == "matmul_reduce_scatter" else inner
    fields = {"collective": problem.operator, "bytes": 2 * problem.rows * width, "m": problem.rows}
    fields |= {
        "k": inner,
        "n": columns,
        "ranks": problem.size,
        "mode": "stream" if device == "cuda" else "host",
    }
    return [record_of(fields, provider, times[provider], wrong[provider]) for provider in names]


def measure(rank: int, size: int, _: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch.distributed as dist

    import isthmus.torch  # noqa: F401 (registers the backend and the operators)

    group = dist.new_group(backend=f"{arguments.device}:isthmus")
    if arguments.device == "cuda":
        import torch.distributed._symmetric_memory as symm_mem

        symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    records = []
    for text in arguments.shapes:
        operator, sizes = text.split(":")
        inner, columns = (int(each) for each in sizes.split("x"))
        for rows in arguments.rows:
            problem = Problem(operator, rows, (inner, columns), rank, size, arguments.device)
            records += compare(problem, group, arguments.samples)
    return records


def main() -> int:
    options = parser(__doc__, samples=11)
    options.add_argument("--shapes", type=lambda text: text.split(","), default=SHAPES)
    options.add_argument("--rows", type=lambda text: [int(each) for each in text.split(",")], default=ROWS)
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = options.parse_args()
    return run(measure, arguments, device=arguments.device)


if __name__ == "__main__":
    sys.exit(main())
