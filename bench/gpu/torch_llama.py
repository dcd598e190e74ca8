#!/usr/bin/env python3
"""Decode steps of a tensor-parallel Llama of transformers, over NCCL and over Isthmus with and without fusion.

    torch_llama.py [--layers N] [--batches 1,32,8] [--rounds N] [--samples N] [--limit SECONDS] [--out FILE]

LlamaForCausalLM has the shapes of Llama 3 8B in bfloat16 and random weights. parallelize_module distributes it,
and torch.compile compiles a step, which appends one token per sequence to a static cache. A CUDA graph contains
one step and the choice of the next token. Ways:

    nccl           the compiled step over NCCL
    isthmus        the same compiled code over Isthmus: the name of its group refers to another group during
                   capture
    isthmus_fused  a step that is compiled with isthmus.torch.FusionPass

A sample is the time of a step on the slowest rank, the mean over --tokens steps. Ways alternate in one set of
processes and share the weights. The logits of all ways are compared for the same input tokens, and then the
tokens that each way generates. With two ranks, nccl and isthmus add two numbers, so their bits must be equal.
By default, Inductor leaves out the rounding before the weights of the norms, but isthmus_fused does not. With
--exact, Inductor keeps all roundings of the model.

After --limit seconds, no further batch size is started. `--device cpu --tiny` tries the program on CPU ranks
without CUDA graphs, with gloo instead of NCCL. Its times have no meaning.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_ranks import parser, run, slowest, time_us, timed

SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
CONTEXT = 256  # tokens in the cache
WARM_UP = 2
ALIGNING_CALLS = 2  # of timed()
COMPARED_STEPS = 8
COLUMNS = [
    *(f"model.layers.*.self_attn.{name}_proj" for name in "qkv"),
    *(f"model.layers.*.mlp.{name}_proj" for name in ("gate", "up")),
]
ROWS = ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"]


def say(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)


def make_model(arguments: argparse.Namespace, group: Any) -> Any:
    """Creates the model with the same random weights on all ranks, and distributes it over the group."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=arguments.layers,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        **(TINY if arguments.tiny else SHAPE),
    )
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(arguments.device):
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator(arguments.device).manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # the weights of the norms
            parameter.normal_(mean=1.0, std=0.25, generator=generator)
        else:
            parameter.normal_(std=1.0 if "embed" in name else parameter.shape[1] ** -0.5, generator=generator)
    plan = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
    plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
    # All ranks have the same weights, so nothing is sent.
    is_known = "src_data_rank" in inspect.signature(parallelize_module).parameters
    options = {"src_data_rank": None} if is_known else {}
    return parallelize_module(model, DeviceMesh.from_group(group, arguments.device), plan, **options)


class Decoder:
    """A decode step with static tensors: the cache, the position, the newest tokens, and all tokens so far."""

    def __init__(self, model: Any, batch: int, ranks: int, device: str) -> None:
        import torch

        config = model.config
        self.model, self.ranks, self.position = model, ranks, torch.zeros(1, dtype=torch.int64, device=device)
        generator = torch.Generator().manual_seed(batch)
        self.start = torch.randint(config.vocab_size, (batch, 1), generator=generator).to(device)
        self.tokens = self.start.clone()
        self.history = torch.zeros(CONTEXT, batch, dtype=torch.int64, device=device)
        head = config.hidden_size // config.num_attention_heads
        shape = (batch, config.num_key_value_heads // ranks, CONTEXT, head)
        self.cache = make_cache(
            self.position,
            [
                [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2)]
                for _ in range(config.num_hidden_layers)
            ],
        )
        self.places = torch.arange(CONTEXT, device=device)
        names = inspect.signature(model.model.forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"  # renamed in transformers 5

    def logits(self) -> Any:
        """The compiled part of a step."""
        import torch

        # transformers uses a mask with four dimensions without changes.
        lowest = torch.finfo(torch.bfloat16).min
        mask = torch.where(self.places <= self.position, 0.0, lowest).to(torch.bfloat16)
        batch = self.tokens.shape[0]
        return self.model(
            input_ids=self.tokens,
            attention_mask=mask.expand(batch, 1, 1, CONTEXT),
            position_ids=self.position.expand(batch, 1),
            use_cache=True,
            **{self.cache_name: self.cache},
        ).logits[:, -1]

    def restart(self) -> None:
        self.position.zero_()
        self.tokens.copy_(self.start)

    def step(self, logits: Callable[[], Any]) -> Any:
        values = logits()
        chosen = values.argmax(-1)
        self.history.index_copy_(0, self.position, chosen[None])
        self.tokens.copy_(chosen[:, None])
        self.position.add_(1)
        return values


def make_cache(position: Any, layers: list[list[Any]]) -> Any:
    """A static cache of keys and values. StaticCache depends on the version of transformers."""
    from transformers.cache_utils import Cache

    class StaticKeysAndValues(Cache):
        is_compileable = True
        layers = ()

        def __init__(self) -> None:  # does not call that of Cache, which creates other storage
            pass

        def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
            for stored, new in zip(layers[layer], (keys, values), strict=True):
                stored.index_copy_(2, position, new)
            return tuple(layers[layer])

        def get_seq_length(self, *_: Any) -> int:
            return 0  # positions and masks are passed explicitly

        def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
            return CONTEXT, 0

        def get_max_cache_shape(self, *_: Any) -> int:
            return CONTEXT

    return StaticKeysAndValues()


@contextmanager
def renamed(name: str, group: Any) -> Iterator[None]:
    """Compiled code finds its group by name. The name refers to `group` in this block."""
    from torch._C import _distributed_c10d as c10d

    original = c10d._resolve_process_group(name)

    def refer_to(other: Any) -> None:
        c10d._unregister_process_group(name)
        c10d._register_process_group(name, other)

    refer_to(group)
    try:
        yield
    finally:
        refer_to(original)


@dataclass
class Way:
    name: str
    replay: Callable[[], Any]  # executes a step and returns its logits
    samples: list[float]
    replacements: int
    calls: dict[str, int]  # by Isthmus, of a step


def make_way(name: str, decoder: Decoder, logits: Callable[[], Any], device: str) -> Way:
    import torch

    import isthmus.torch

    for _ in range(WARM_UP):
        decoder.restart()
        decoder.step(logits)
    isthmus.torch.reset_report()
    decoder.restart()
    decoder.step(logits)
    calls = {row.collective: row.calls for row in isthmus.torch.report()}
    if device == "cpu":
        return Way(name, lambda: decoder.step(logits), [], 0, calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    decoder.restart()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        values = decoder.step(logits)

    def replay() -> Any:
        graph.replay()
        return values

    return Way(name, replay, [], 0, calls)


def make_ways(decoder: Decoder, group: Any, native: tuple[str, Any], rank: int, device: str) -> list[Way]:
    """Compiles twice: the code for nccl is also that for isthmus."""
    import torch

    import isthmus.torch

    begin = time.monotonic()
    torch._dynamo.reset()
    plain = torch.compile(decoder.logits, fullgraph=True, dynamic=False)
    with renamed(group.group_name, native[1]):
        ways = [make_way(native[0], decoder, plain, device)]
    seconds = [time.monotonic() - begin]
    ways.append(make_way("isthmus", decoder, plain, device))
    fusion = isthmus.torch.FusionPass()
    begin = time.monotonic()
    torch._dynamo.reset()  # otherwise, the guards would be checked against both programs
    fused = torch.compile(
        decoder.logits, fullgraph=True, dynamic=False, options={"post_grad_custom_pre_pass": fusion}
    )
    ways.append(make_way("isthmus_fused", decoder, fused, device))
    seconds.append(time.monotonic() - begin)
    ways[-1].replacements = fusion.replacements
    say(
        rank,
        f"compiled in {seconds[0]:.0f} s, with the pass in {seconds[1]:.0f} s;"
        f" {fusion.replacements} replacements",
    )
    for way in ways:
        say(rank, f"  {way.name}: Isthmus executes {way.calls or 'nothing'} in a step")
    return ways


def compare_logits(decoder: Decoder, ways: list[Way]) -> dict[str, float]:
    """Returns the largest difference of the logits from those of the first way, for its tokens."""
    found = dict.fromkeys((way.name for way in ways), 0.0)
    decoder.restart()
    for _ in range(COMPARED_STEPS):
        position, tokens = decoder.position.clone(), decoder.tokens.clone()
        reference = None
        for way in reversed(ways[1:] + ways[:1]):  # the first way is the reference
            decoder.position.copy_(position)
            decoder.tokens.copy_(tokens)
            values = way.replay().float().clone()
            if reference is None:
                reference, chosen = values, decoder.tokens.clone()
            difference = (values - reference).abs().max().item()
            if not difference < float("inf"):
                raise RuntimeError(f"{way.name}: the logits contain NaN or infinity")
            found[way.name] = max(found[way.name], difference)
        decoder.tokens.copy_(chosen)
    return {name: slowest(value, decoder.tokens.device.type) for name, value in found.items()}


def sample(decoder: Decoder, way: Way, steps: int) -> tuple[float, Any]:
    """Returns the microseconds of a step on the slowest rank, and the generated tokens."""
    import torch.distributed as dist

    device = decoder.tokens.device.type
    decoder.restart()
    if device == "cuda":
        result = timed(way.replay, steps)
    else:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(ALIGNING_CALLS + steps):
            way.replay()
        result = slowest((time.perf_counter() - begin) * 1e6 / (ALIGNING_CALLS + steps), device)
    return result, decoder.history[: ALIGNING_CALLS + steps].clone()


def first_difference(tokens: Any, reference: Any) -> int:
    """Returns the first step in which a sequence differs, or -1."""
    steps = tokens.ne(reference).any(1).nonzero()
    return int(steps[0]) if len(steps) else -1


def make_record(
    way: Way,
    decoder: Decoder,
    difference: float,
    tokens: Any,
    reference: Any,
    rank: int,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    summary, batch = time_us(way.samples), len(decoder.tokens)
    first, differing = first_difference(tokens, reference), tokens.ne(reference).any(0).sum().item()
    rate = batch * 1e6 / summary["median"]
    say(
        rank,
        f"batch {batch:3} {way.name:14} {summary['median']:9.1f} us per step {rate:9.1f} tokens/s;"
        f" logits differ by {difference:.3g}, {differing} of {batch} sequences differ, first step {first}",
    )
    return {
        "collective": "allreduce",
        "dtype": "bfloat16",
        "op": "sum",
        "bytes": batch * decoder.model.config.hidden_size * 2,
        "ranks": decoder.ranks,
        "provider": way.name,
        "mode": "graph" if arguments.device == "cuda" else "host",
        "time_us": summary,
        "algbw_gbs": 0,  # not applicable to a whole step
        "busbw_gbs": 0,
        "model": f"{arguments.layers} layers of {'a tiny model' if arguments.tiny else 'llama-8b'}",
        "batch": batch,
        "context": CONTEXT,
        "tokens_per_s": round(rate, 1),
        "replacements": way.replacements,
        "keeps_roundings": arguments.exact,
        "largest_logit_difference": difference,
        "first_differing_step": first,
        "differing_sequences": differing,
    }


def measure_batch(
    model: Any, batch: int, group: Any, native: tuple[str, Any], rank: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    ranks, device = group.size(), arguments.device
    decoder = Decoder(model, batch, ranks, device)
    ways = make_ways(decoder, group, native, rank, device)
    differences = compare_logits(decoder, ways)
    tokens: dict[str, Any] = {}
    for turn in range(arguments.rounds):
        for way in ways[:: -1 if turn % 2 else 1]:
            for _ in range(arguments.samples):
                value, generated = sample(decoder, way, arguments.tokens)
                way.samples.append(value)
                if not generated.equal(tokens.setdefault(way.name, generated)):
                    say(rank, f"WRONG: {way.name}, batch {batch}: two runs generated different tokens")
    if ranks == 2 and (differences["isthmus"] or first_difference(tokens["isthmus"], tokens[native[0]]) >= 0):
        say(rank, f"WRONG: batch {batch}: isthmus and {native[0]} differ")
    return [
        make_record(way, decoder, differences[way.name], tokens[way.name], tokens[native[0]], rank, arguments)
        for way in ways
    ]


def measure(rank: int, size: int, _: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    import isthmus.torch  # noqa: F401 (registers the backend)

    begin, device = time.monotonic(), arguments.device
    torch.set_grad_enabled(False)
    if arguments.exact:
        from torch._inductor import config

        config.emulate_precision_casts = True
    native = ("nccl" if device == "cuda" else "gloo", dist.group.WORLD)
    group = dist.new_group(list(range(size)), backend=f"{device}:isthmus")
    model = make_model(arguments, group)
    if device == "cuda":
        torch.cuda.empty_cache()
    say(rank, f"model with {arguments.layers} layers after {time.monotonic() - begin:.0f} s")
    records: list[dict[str, Any]] = []
    durations = [0.0]
    for batch in arguments.batches:
        start = time.monotonic()
        # All ranks must make the same decision. The next batch size takes about as long as the longest so far.
        if slowest(start - begin + max(durations), device) > arguments.limit:
            say(rank, f"batch {batch} is left out: {arguments.limit} s would not be enough")
            continue
        records += measure_batch(model, batch, group, native, rank, arguments)
        durations.append(time.monotonic() - start)
        if device == "cuda":
            torch.cuda.empty_cache()
    return records


def main() -> int:
    arguments_parser = parser(__doc__, 5)
    arguments_parser.add_argument("--layers", type=int, default=32)
    arguments_parser.add_argument("--batches", default="1,32,8", help="numbers of sequences")
    arguments_parser.add_argument("--tokens", type=int, default=64, help="steps per sample")
    arguments_parser.add_argument("--rounds", type=int, default=4)
    arguments_parser.add_argument("--limit", type=float, default=220, help="seconds")
    arguments_parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments_parser.add_argument("--exact", action="store_true", help="keep all roundings of the model")
    arguments_parser.add_argument("--tiny", action="store_true", help="tiny shapes")
    arguments = arguments_parser.parse_args()
    arguments.batches = [int(each) for each in arguments.batches.split(",")]
    if not 1 <= arguments.tokens <= CONTEXT - ALIGNING_CALLS:
        arguments_parser.error(f"--tokens {arguments.tokens}: pass 1 to {CONTEXT - ALIGNING_CALLS}")
    if importlib.util.find_spec("transformers") is None:
        print("SKIPPED: no transformers")
        return 77
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    versions = {"transformers": importlib.metadata.version("transformers")}
    return run(measure, arguments, versions, arguments.device)


if __name__ == "__main__":
    sys.exit(main())
