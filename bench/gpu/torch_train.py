#!/usr/bin/env python3
"""Steps of data-parallel training (the trainers of examples/zero3) with Isthmus and with PyTorch's own backend.

    torch_train.py --out FILE --ranks N [--cases CASE,...] [--variants native,off,on] [--calls SIZE,...]

A case is FRAMEWORK:MODEL:LAYERS:BATCHxLENGTH, for example fsdp2:gpt-7b:8:1x2048. Frameworks are ddp, fsdp2 and
zero3 (DeepSpeed). For fsdp2, another part gives the number of layers to prefetch: fsdp2:gpt-7b:8:1x2048:2.

Variants:
    native     PyTorch's own backend: NCCL, or gloo with --device cpu
    off        Isthmus without ISTHMUS_DMA_ALLGATHER, the default
    on         with ISTHMUS_DMA_ALLGATHER
    symmetric  also with the buffers of FSDP2 in the symmetric heap
    both       on, and reduce-scatters by the copy engines
    all        symmetric, and reduce-scatters by the copy engines
    native_in_place, off_in_place, on_in_place, both_in_place, symmetric_in_place, all_in_place
               also with isthmus.torch.gather_in_place. With the copy engines, the gathered parameters (fsdp2)
               or the shards (zero3) are in the symmetric heap
    NAME_no_gathers, NAME_no_scatters, NAME_alone
               bounds, for NAME native and native_in_place: the all-gathers, the reduce-scatters or both of at
               least 1 MiB are left out of the timed steps. The model then computes with old parameters, so
               results are wrong and not compared
A case leaves out the variants that do not change it: ddp uses native and off, and zero3 has no symmetric
buffers.

All cases and variants run in one set of processes, because sets of processes differ by more than the
variants. Each variant has its own process group. Each turn trains a new model, with equal initial weights,
and every other turn has the opposite order. A step is the time of the slowest rank. `gain_pct` is the median
over turns of the median step of the first variant against that of this one, `gain_quartiles_pct` are the
quartiles over turns.

Before the cases of a framework, all variants train a small model deterministically. `wrong` counts the steps
in which the loss of any rank differs in any bit from that of the first variant. (Copy-engine reduce-scatters
add in another order, but start at 1 MiB, which the small model never reaches.) `turn_losses_differ` is the
same count for the timed turns, which are not deterministic, against the first turn of the first variant. If
it is not 0 for the first variant itself, kernels of the model cause differences.

Memory is the largest over ranks: `torch_peak_gib` of PyTorch's allocator, and `outside_torch_gib`, which is
all other device memory that was taken in the turns of this variant so far (communicators, staging areas, the
symmetric heap). The heap keeps the blocks of earlier cases.

--calls measures the host time of asynchronous calls of all_gather_into_tensor and reduce_scatter_tensor, with
the given bytes per rank. `wrong` counts the elements that differ from those of the first variant.

The file is written again after each case. Format: docs/internals/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench/python"))
from measured import quartiles, time_us, write_records  # noqa: E402

SMALL = {"model": "gpt-tiny", "layers": 2, "batch": 4, "length": 64, "rate": 1e-3}
Work = Callable[..., Any]
UNTIMED = 3  # untimed steps of each turn, in which communicators are created
CALLS = 20  # asynchronous calls of a turn
STAGING_BYTES = 512 << 20  # for all-gathers of hundreds of megabytes
# ISTHMUS_DMA_ALLGATHER stands for this rule.
GATHER_RULE = "collective=allgather,allgatherv platform=cuda,hip use=copy_engine"
SCATTER_RULE = "collective=reduce_scatter platform=cuda bytes=1M.. use=copy_engine"


@dataclass(frozen=True)
class Variant:
    provider: str
    rules: tuple[str, ...] = ()
    symmetric: bool = False
    in_place: bool = False
    left_out: frozenset[str] = frozenset()  # collectives

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the communicators of this variant read when they are created."""
        staging = f"backend.copy_engine.staging_bytes={STAGING_BYTES}" if self.rules else ""
        return {"ISTHMUS_RULE": "; ".join(self.rules), "ISTHMUS_OPTION": staging}

    @property
    def only_moves_data(self) -> bool:
        return SCATTER_RULE not in self.rules

    def applies_to(self, framework: str) -> bool:
        if framework == "ddp":
            return not (self.rules or self.in_place or self.left_out)
        return framework == "fsdp2" or not self.symmetric


VARIANTS = {
    "native": Variant("torch"),
    "off": Variant("isthmus"),
    "on": Variant("isthmus_copy_engine", (GATHER_RULE,)),
    "symmetric": Variant("isthmus_copy_engine_symmetric", (GATHER_RULE,), symmetric=True),
    "both": Variant("isthmus_copy_engine_both", (GATHER_RULE, SCATTER_RULE)),
    "all": Variant("isthmus_copy_engine_all", (GATHER_RULE, SCATTER_RULE), symmetric=True),
}
VARIANTS |= {
    f"{name}_in_place": replace(VARIANTS[name], provider=f"{VARIANTS[name].provider}_in_place", in_place=True)
    for name in ("native", "off", "on", "both", "symmetric", "all")
}
BOUNDS = {
    "no_gathers": frozenset({"allgather"}),
    "no_scatters": frozenset({"reduce_scatter"}),
    "alone": frozenset({"allgather", "reduce_scatter"}),
}
VARIANTS |= {
    f"{name}_{bound}": replace(VARIANTS[name], provider=f"{VARIANTS[name].provider}_{bound}", left_out=left_out)
    for name in ("native", "native_in_place")
    for bound, left_out in BOUNDS.items()
}
NATIVE = {"cuda": "nccl", "cpu": "gloo"}


def is_native(name: str) -> bool:
    return name.startswith("native")


def provider_of(name: str, device: str) -> str:
    provider = VARIANTS[name].provider
    return provider.replace("torch", NATIVE[device]) if is_native(name) else provider


@dataclass(frozen=True)
class Case:
    framework: str
    model: str
    layers: int
    batch: int
    length: int
    prefetch: int = 0  # layers; 0: the framework's default

    @staticmethod
    def parse(text: str) -> Case:
        try:
            framework, model, layers, shape, *more = text.split(":")
            batch, length = shape.split("x")
            case = Case(framework, model, int(layers), int(batch), int(length), *map(int, more))
        except TypeError as error:
            raise argparse.ArgumentTypeError(f"--cases {text}: too many parts") from error
        except ValueError as error:
            message = f"--cases {text}: use FRAMEWORK:MODEL:LAYERS:BATCHxLENGTH, such as fsdp2:gpt-7b:8:1x2048"
            raise argparse.ArgumentTypeError(message) from error
        if framework not in MAIN_COLLECTIVE:
            message = f"--cases {text}: unknown framework {framework}; use {', '.join(MAIN_COLLECTIVE)}"
            raise argparse.ArgumentTypeError(message)
        if case.prefetch and framework != "fsdp2":
            raise argparse.ArgumentTypeError(f"--cases {text}: only fsdp2 has a number of layers to prefetch")
        return case

    def __str__(self) -> str:
        prefetch = f", prefetch {self.prefetch}" if self.prefetch else ""
        return f"{self.model}, {self.layers} layers, {self.batch} x {self.length} words{prefetch}"


MAIN_COLLECTIVE = {"ddp": "allreduce", "fsdp2": "allgather", "zero3": "allgather"}


@dataclass(frozen=True)
class Plan:
    """The work of the ranks. `begin`: time.monotonic() that `limit` counts from."""

    cases: tuple[Case, ...]
    names: tuple[str, ...]
    turns: int
    steps: int
    loss_steps: int
    calls: tuple[int, ...]
    limit: float
    begin: float

    def names_for(self, framework: str) -> tuple[str, ...]:
        return tuple(name for name in self.names if VARIANTS[name].applies_to(framework))


class Ranks:
    """One new process per GPU that runs work(train, options, *more) with the parsed arguments of train.py.

    A generator sends its results one by one, the others a single one.
    """

    def __init__(
        self, work: Work, arguments: list[str], variables: dict[str, str], size: int, packages: str, *more: Any
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        arguments = [*arguments, "--init-method", f"file://{self._folder.name}/store"]
        context = multiprocessing.get_context("forkserver")
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            own = variables | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            job = (there, own, [*sys.path, packages], work, arguments, *more)
            self._processes.append(context.Process(target=_serve, args=job, daemon=True))
            self._processes[-1].start()
            there.close()
            self._pipes.append(here)

    def results(self, limit_s: float) -> list[Any]:
        """Returns the next result of every rank."""
        results: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while waiting := {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}:
            ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"ranks {sorted(waiting.values())} did not answer within {limit_s} s")
            for pipe in ready:
                succeeded, result = pipe.recv()
                if not succeeded:  # the other ranks wait for this one
                    raise RuntimeError(f"rank {waiting[pipe]}:\n{result}")
                results[waiting[pipe]] = result
        return [results[rank] for rank in range(len(self._pipes))]

    def join(self) -> None:
        for process in self._processes:
            process.join(30)


def _bind_to_own_cores(rank: int, size: int) -> None:
    """Gives each rank an equal share of the cores, like --bind_cores_to_rank of DeepSpeed."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // size
    if share > 0:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


def _serve(
    pipe: Any, variables: dict[str, str], path: list[str], work: Work, arguments: list[str], *more: Any
) -> None:
    os.environ.update(variables)
    _bind_to_own_cores(int(variables["RANK"]), int(variables["WORLD_SIZE"]))
    sys.path[:] = [str(ROOT / "examples/zero3"), *path]
    try:
        import torch.distributed as dist
        import train

        results = work(train, train.parse(arguments), *more)
        for result in results if inspect.isgenerator(results) else [results]:
            pipe.send((True, result))
        dist.destroy_process_group()
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def start_deepspeed_fast(device: str) -> None:
    """Makes DeepSpeed join the shards on the device when it starts, instead of through host memory."""
    os.environ.setdefault("DS_ACCELERATOR", device)
    import torch
    from deepspeed.runtime.zero import stage3

    def defragment(tensors: list[torch.Tensor]) -> torch.Tensor:
        joined = torch.cat([each.flatten() for each in tensors])
        for each, part in zip(tensors, joined.split([each.numel() for each in tensors]), strict=True):
            each.data = part
        return joined

    stage3.defragment = defragment


class Rank:
    """One rank with the process groups of all variants."""

    def __init__(self, train: Any, options: argparse.Namespace, plan: Plan) -> None:
        import torch
        import torch.distributed as dist

        import isthmus.torch  # registers the backend

        self._torch, self._dist, self._isthmus = torch, dist, isthmus.torch
        self._train, self._options, self._plan = train, options, plan
        self._is_cuda = options.device == "cuda"
        if self._is_cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        train.connect(options)
        if self._is_cuda:  # DeepSpeed uses the default group in its first steps
            dist.all_reduce(torch.zeros(1, device="cuda"))
        native = NATIVE[options.device]
        backends = {name: native if is_native(name) else "cpu:isthmus,cuda:isthmus" for name in plan.names}
        self._groups = {name: dist.new_group(backend=backend) for name, backend in backends.items()}
        self._outside_bytes = dict.fromkeys(plan.names, 0)

    def results(self) -> Iterator[dict[str, Any]]:
        checked: dict[str, dict[str, list[float]]] = {}
        for index, case in enumerate(self._plan.cases):
            if case.framework not in checked and self._plan.loss_steps:
                checked[case.framework] = self._small_losses(case.framework)
            left_s = self._plan.limit - self._elapsed_s()
            if left_s <= 0:
                yield {"case": case, "turns": []}
                continue
            turns = self._case(case, left_s / (len(self._plan.cases) - index))
            yield {"case": case, "turns": turns, "small_losses": checked.get(case.framework, {})}
        for size in self._plan.calls:
            yield {"calls": list(self._calls(size))}

    def _elapsed_s(self) -> float:
        """Returns the same value on all ranks."""
        elapsed = self._torch.tensor(time.monotonic() - self._plan.begin)
        self._dist.all_reduce(elapsed, self._dist.ReduceOp.MAX)
        return elapsed.item()

    def _load_kernels(self, case: Case) -> None:
        """Loads the kernels of the model, so that they do not count as memory of the first variant."""
        if not self._is_cuda:
            return
        torch = self._torch
        with torch.device("cuda"):
            model = self._train.Decoder(self._train.shape_of(self._case_options(case, layers=1)), case.length)
            words = torch.zeros(case.batch, case.length + 1, dtype=torch.int64)
        model.bfloat16()(words).backward()

    def _case_options(self, case: Case, **more: Any) -> argparse.Namespace:
        return argparse.Namespace(**(vars(self._options) | asdict(case) | more))

    def _case(self, case: Case, budget_s: float) -> list[dict[str, Any]]:
        """Returns the results of all turns that fit into the budget, at least one turn per variant."""
        self._load_kernels(case)
        options = self._case_options(case)
        names = self._plan.names_for(case.framework)
        steps = UNTIMED + self._plan.steps
        begin_s, results = self._elapsed_s(), []
        for turn in range(self._plan.turns):
            for name in names if turn % 2 == 0 else names[::-1]:
                results.append({"name": name, **self._turn(name, options, steps)})
            used_s = self._elapsed_s() - begin_s
            if used_s * (turn + 2) / (turn + 1) > budget_s:
                break
        return results

    def _small_losses(self, framework: str) -> dict[str, list[float]]:
        options = self._case_options(Case(framework, "gpt-tiny", 2, 4, 64), **SMALL, deterministic=True)
        names = [name for name in self._plan.names_for(framework) if not VARIANTS[name].left_out]
        try:
            return {name: self._turn(name, options, self._plan.loss_steps)["losses"] for name in names}
        finally:
            self._torch.use_deterministic_algorithms(False)

    @contextlib.contextmanager
    def _variant(self, name: str) -> Iterator[None]:
        """Sets the environment, and counts the memory that PyTorch does not manage."""
        os.environ.update(VARIANTS[name].environment)
        gc.collect()
        before = self._outside()
        self._isthmus.reset_report()
        yield
        gc.collect()
        self._outside_bytes[name] += self._outside() - before

    def _outside(self) -> int:
        if not self._is_cuda:
            return 0
        self._torch.cuda.synchronize()
        self._torch.cuda.empty_cache()
        free, total = self._torch.cuda.mem_get_info()
        return total - free - self._torch.cuda.memory_reserved()

    def _turn(self, name: str, options: argparse.Namespace, steps: int) -> dict[str, Any]:
        """Trains a new model."""
        with self._variant(name):
            result = self._steps(name, options, steps)
        return result | {"outside_gib": self._outside_bytes[name] / 2**30}

    def _steps(self, name: str, options: argparse.Namespace, steps: int) -> dict[str, Any]:
        from torch_bounds import without

        cuda, variant = self._torch.cuda, VARIANTS[name]
        if self._is_cuda:
            cuda.reset_peak_memory_stats()
        shape = self._train.shape_of(options)
        batches = self._train.make_batches(
            8, options.batch, options.length, shape.vocabulary, self._dist.get_rank()
        )
        if options.framework == "zero3":
            start_deepspeed_fast(options.device)
        trainer = self._train.start(options, shape, self._groups[name])
        if options.framework == "fsdp2":
            trainer.use_symmetric_heap(variant.symmetric)
            if options.prefetch:
                trainer.prefetch(options.prefetch)
        if variant.in_place:
            every_size = {"minimum_bytes": 1} if options.deterministic else {}
            trainer.gather_in_place(GATHER_RULE in variant.rules, **every_size)

        def timed_steps(numbers: range) -> list[tuple[float, Any]]:
            return [self._train.timed_step(trainer, batches[step % len(batches)], options) for step in numbers]

        def skipped_updates() -> int:
            """DeepSpeed leaves out an update if gradients are not finite."""
            return getattr(getattr(trainer, "engine", None), "skipped_steps", 0)

        timed = timed_steps(range(UNTIMED))
        with without(variant.left_out) as left_out:
            if variant.left_out:
                timed_steps(range(UNTIMED))  # fill memory that was not used before
                left_out.clear()
            skipped_before = skipped_updates()
            timed += timed_steps(range(UNTIMED, steps))
        result = {
            "steps_ms": [1e3 * seconds for seconds, _ in timed[UNTIMED:]],
            "losses": [loss.item() for _, loss in timed],
            "skipped_updates": skipped_updates() - skipped_before,
            "left_out_bytes": sum(left_out) / (steps - UNTIMED),
            "paths": [asdict(row) for row in self._isthmus.report()],
            "peak_gib": cuda.max_memory_allocated() / 2**30 if self._is_cuda else 0.0,
        }
        trainer.close()
        return result

    def _calls(self, size: int) -> Iterator[dict[str, Any]]:
        """Yields the host times of the asynchronous calls of each turn and variant."""
        dist, torch = self._dist, self._torch
        device, ranks = self._options.device, dist.get_world_size()
        count = size // 2
        generator = torch.Generator().manual_seed(dist.get_rank())
        small = torch.randn(count, generator=generator).bfloat16().to(device)
        large = torch.randn(count * ranks, generator=generator).bfloat16().to(device)
        # PyTorch 2.13 renamed the functions.
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        calls = {"allgather": (gather, small, count * ranks), "reduce_scatter": (scatter, large, count)}
        expected: dict[str, Any] = {}
        names = [name for name in self._plan.names if not VARIANTS[name].left_out]
        for turn in range(self._plan.turns):
            for name in names if turn % 2 == 0 else names[::-1]:
                with self._variant(name):
                    allocate = self._allocator(name)
                    for collective, (function, source, elements) in calls.items():
                        given, target = allocate(source.numel()), allocate(elements)
                        given.copy_(source)
                        target.fill_(float("nan"))
                        call = partial(function, target, given, group=self._groups[name], async_op=True)
                        times = self._call_times(call)
                        wrong = int((target != expected.setdefault(collective, target.clone())).sum())
                        paths = [asdict(row) for row in self._isthmus.report()]
                        result = {"name": name, "collective": collective, "bytes": size, "us": times}
                        yield result | {"wrong": wrong, "paths": paths}

    def _allocator(self, name: str) -> Callable[[int], Any]:
        torch = self._torch
        device = torch.device(self._options.device, torch.cuda.current_device() if self._is_cuda else None)
        if not VARIANTS[name].symmetric:
            return lambda count: torch.empty(count, dtype=torch.bfloat16, device=device)
        backend = self._groups[name]._get_backend(device)
        return lambda count: backend.allocate_tensor(count, dtype=torch.bfloat16, device=device)

    def _call_times(self, call: Callable[[], Any]) -> list[float]:
        times, works = [], []
        for _ in range(UNTIMED):
            call().wait()
        if self._is_cuda:
            self._torch.cuda.synchronize()
        self._dist.barrier()
        for _ in range(CALLS):
            begin = time.perf_counter()
            works.append(call())
            times.append((time.perf_counter() - begin) * 1e6)
        for work in works:
            work.wait()
        if self._is_cuda:
            self._torch.cuda.synchronize()
        return times


def run_rank(train: Any, options: argparse.Namespace, plan: Plan) -> Iterator[dict[str, Any]]:
    yield from Rank(train, options, plan).results()


@dataclass
class Series:
    """Results of one variant over the turns, one entry per rank in each."""

    turns: list[tuple[dict[str, Any], ...]] = field(default_factory=list)

    @property
    def turn_ms(self) -> list[list[float]]:
        """Steps of the slowest rank in each turn."""
        each_turn = ((rank["steps_ms"] for rank in ranks) for ranks in self.turns)
        return [[max(times) for times in zip(*steps, strict=True)] for steps in each_turn]

    def gains_pct(self, baseline: Series) -> list[float]:
        pairs = zip(baseline.turn_ms, self.turn_ms, strict=True)
        return [100 * (median(there) / median(here) - 1) for there, here in pairs]

    def largest(self, key: str) -> float:
        return max(rank[key] for ranks in self.turns for rank in ranks)


def path_of(collective: str, turn: dict[str, Any]) -> tuple[str, str, int]:
    """Path, reason and bytes per call of the path that moved most data of this collective in a turn."""
    rows = [row for row in turn["paths"] if row["collective"] == collective]
    if not rows:
        return "none", "", 0
    largest = max(rows, key=lambda row: row["bytes"])
    return largest["path"], largest["reason"], largest["bytes"] // largest["calls"]


def differing(losses: tuple[list[float], ...], reference: tuple[list[float], ...]) -> int:
    """Counts the steps in which the loss of any rank differs."""
    steps = zip(zip(*losses, strict=True), zip(*reference, strict=True), strict=True)
    return sum(mine != theirs for mine, theirs in steps)


def bound_fields(name: str, series: Series) -> dict[str, Any]:
    return {
        "left_out": sorted(VARIANTS[name].left_out),
        "left_out_gib": round(series.largest("left_out_bytes") / 2**30, 3),
        "skipped_updates": series.largest("skipped_updates"),
    }


def case_records(ranks: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of one case, one per variant."""
    case: Case = ranks[0]["case"]
    series: dict[str, Series] = {}
    for turn in zip(*(rank["turns"] for rank in ranks), strict=True):
        series.setdefault(turn[0]["name"], Series()).turns.append(turn)
    first = next(iter(series))
    small = {name: tuple(rank["small_losses"][name] for rank in ranks) for name in ranks[0]["small_losses"]}
    reference = tuple(rank["losses"] for rank in series[first].turns[0])
    records = []
    for name, each in series.items():
        times = [1e3 * time for turn in each.turn_ms for time in turn]
        step_ms = median(times) / 1e3
        gains = each.gains_pct(series[first])
        path, reason, call_bytes = path_of(MAIN_COLLECTIVE[case.framework], each.turns[-1][0])
        records.append(
            {
                "collective": f"{case.framework}_step",
                "dtype": "bfloat16",
                "bytes": 0,
                "largest_call_bytes": call_bytes,
                "ranks": options.ranks,
                "provider": provider_of(name, options.device),
                "backend": f"torch:{NATIVE[options.device]}" if is_native(name) else path,
                "reason": reason,
                "reduce_scatter_backend": path_of("reduce_scatter", each.turns[-1][0])[0],
                "mode": case.framework,
                "time_us": {key: round(value, 1) for key, value in time_us(times).items()},
                "algbw_gbs": 0,  # bandwidths are not applicable to a whole step
                "busbw_gbs": 0,
                **bound_fields(name, each),
                "wrong": differing(small[name], small[first]) if name in small else None,
                "turn_losses_differ": [
                    differing(tuple(rank["losses"] for rank in turn), reference) for turn in each.turns
                ],
                "model": str(case),
                "step_ms": round(step_ms, 2),
                "step_quartiles_ms": quartiles([time / 1e3 for time in times]),
                "turn_step_ms": [round(median(turn), 2) for turn in each.turn_ms],
                "gain_pct": round(median(gains), 2),
                "gain_quartiles_pct": quartiles(gains),
                "tokens_per_s": round(options.ranks * case.batch * case.length / step_ms * 1e3),
                "torch_peak_gib": round(each.largest("peak_gib"), 3),
                "outside_torch_gib": round(max(rank["outside_gib"] for rank in each.turns[-1]), 3),
                "samples": len(times),
            }
        )
        if name in small and not small[name][0][-1] < small[name][0][0] - 0.1:
            raise RuntimeError(f"{case.framework}, {name}: the loss of the small model does not fall")
    return records


def call_records(ranks: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of the asynchronous calls, one per variant and collective."""
    found: dict[tuple[str, str], list[tuple[dict[str, Any], ...]]] = {}
    for turn in zip(*(rank["calls"] for rank in ranks), strict=True):
        found.setdefault((turn[0]["collective"], turn[0]["name"]), []).append(turn)
    records = []
    for (collective, name), turns in found.items():
        times = [max(us) for turn in turns for us in zip(*(rank["us"] for rank in turn), strict=True)]
        path, reason, _ = path_of(collective, turns[-1][0])
        records.append(
            {
                "collective": collective,
                "dtype": "bfloat16",
                "bytes": turns[0][0]["bytes"],
                "ranks": options.ranks,
                "provider": provider_of(name, options.device),
                "backend": f"torch:{NATIVE[options.device]}" if is_native(name) else path,
                "reason": reason,
                "mode": "torch_async_host",
                "time_us": {key: round(value, 2) for key, value in time_us(times).items()},
                "quartiles_us": quartiles(times),
                "algbw_gbs": 0,  # only the host is timed
                "busbw_gbs": 0,
                "wrong": sum(rank["wrong"] for turn in turns for rank in turn),
                "samples": len(times),
            }
        )
    return records


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--cases", default="fsdp2:gpt-7b:16:1x2048", help="list of cases ('': none)")
    parser.add_argument("--variants", default="native,off,on,symmetric", help="the first is the baseline")
    parser.add_argument("--turns", type=int, default=5, help="turns of each variant in a case")
    parser.add_argument("--device", choices=NATIVE, default="cuda")
    parser.add_argument("--steps", type=int, default=10, help="timed steps per turn")
    parser.add_argument(
        "--limit", type=float, default=300, help="limit of all cases in seconds; cases share what is left"
    )
    parser.add_argument("--loss-steps", type=int, default=100, help="steps of the loss comparison (0: none)")
    parser.add_argument("--calls", default="", help="bytes per rank of asynchronous calls, a list")
    parser.add_argument("--memory-gib", type=float, default=0, help="exit with 77 if a device has less memory")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack and use")
    options = parser.parse_args()
    try:
        options.cases = tuple(Case.parse(text) for text in options.cases.split(",") if text)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    options.variants = tuple(options.variants.split(","))
    if unknown := [name for name in options.variants if name not in VARIANTS]:
        parser.error(f"--variants {unknown[0]}: unknown variant; use {', '.join(VARIANTS)}")
    for case in options.cases:
        if not any(VARIANTS[name].applies_to(case.framework) for name in options.variants):
            parser.error(
                f"--variants {','.join(options.variants)}: none changes {case.framework}; add native or off"
            )
    options.calls = tuple(int(size) for size in options.calls.split(",") if size)
    return options


def min_memory_gib(options: argparse.Namespace) -> float:
    import torch

    if options.device != "cuda":
        return float("inf")
    sizes = (torch.cuda.get_device_properties(i).total_memory for i in range(options.ranks))
    return min(sizes) / 2**30


def main() -> int:
    options = parse()
    if (has := min_memory_gib(options)) < options.memory_gib:
        print(f"SKIPPED: needs devices with {options.memory_gib:.0f} GiB; the smallest has {has:.0f} GiB")
        return 77
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed.fsdp"])
    # PyTorch requires this for deterministic algorithms, before the first product of a process.
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    default_group = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}[options.device]
    plan = Plan(
        options.cases,
        options.variants,
        options.turns,
        options.steps,
        options.loss_steps,
        options.calls,
        options.limit,
        time.monotonic(),
    )
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as packages:
        for wheel in options.wheels.glob("*.whl") if options.wheels else ():
            zipfile.ZipFile(wheel).extractall(packages)
        arguments = ["--device", options.device, "--backend", default_group]
        ranks = Ranks(run_rank, arguments, variables, options.ranks, packages, plan)
        for index in range(len(plan.cases) + len(plan.calls)):
            results = ranks.results(options.limit + 60)
            if index < len(plan.cases) and not results[0]["turns"]:
                print(f"no time for {plan.cases[index].framework} {plan.cases[index]}", flush=True)
                continue
            made = (case_records if index < len(plan.cases) else call_records)(results, options)
            records += made
            write(options, records)
            for each in made:
                print_record(each)
        ranks.join()
    exact = {provider_of(name, options.device) for name in plan.names if VARIANTS[name].only_moves_data}
    return 1 if any(each["wrong"] for each in records if each["provider"] in exact) else 0


def print_record(each: dict[str, Any]) -> None:
    start = f"{each['collective']:14} {each['provider']:30} {each['backend']:20}"
    if each["mode"] == "torch_async_host":
        print(f"{start} {each['bytes']} B: {each['time_us']['median']} us {each['quartiles_us']}", end=" ")
        print(f"wrong {each['wrong']}", flush=True)
        return
    print(f"{start} {each['model']}: {each['step_ms']} ms {each['step_quartiles_ms']}", end=" ")
    print(f"gain {each['gain_pct']:+.2f} % {each['gain_quartiles_pct']}", end=" ")
    print(f"{each['torch_peak_gib']} + {each['outside_torch_gib']} GiB", end=" ")
    print(f"losses that differ: {each['wrong']}, in turns {each['turn_losses_differ']}", flush=True)


def write(options: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    import torch

    versions = {"torch": torch.__version__}
    if options.device == "cuda":
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    write_records(options.out, records, versions)


if __name__ == "__main__":
    sys.exit(main())
