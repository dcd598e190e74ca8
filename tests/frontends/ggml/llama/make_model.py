#!/usr/bin/env python3
"""Writes a GGUF model with llama's architecture and random weights that llama.cpp can load and run.

The vocabulary consists of the 256 bytes and the words w0, w1, ... Requires the packages gguf and numpy.
"""

import argparse
import sys
import time
from dataclasses import dataclass

import gguf
import numpy as np

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
POOL_ELEMENTS = 1 << 26  # random numbers that all tensors share


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    feed_forward: int
    heads: int
    heads_kv: int
    vocabulary: int
    context: int


SHAPES = {
    # With three devices, the shares of the six attention heads and of the feed-forward width are unequal.
    "tiny": Shape(3, 384, 1056, 6, 6, 512, 1024),
    "7b": Shape(32, 4096, 11008, 32, 32, 32000, 4096),
}


class Weights:
    """Slices of a pool of normally distributed random numbers with standard deviation 1 / sqrt(width)."""

    def __init__(self, kind: str, width: int, seed: int) -> None:
        self.kind = kind
        random = np.random.default_rng(seed)
        self.random = random
        deviation = width**-0.5
        if kind == "q8_0":
            # Blocks of 32 values: a float16 scale, then 32 signed bytes, here uniform (standard deviation
            # 73.6).
            blocks = POOL_ELEMENTS // 32
            pool = np.empty((blocks, 34), dtype=np.uint8)
            pool[:, 2:] = random.integers(0, 256, size=(blocks, 32), dtype=np.uint8)
            scale = np.array([deviation / 73.6], dtype=np.float16)
            pool[:, :2] = scale.view(np.uint8)
            self.pool = pool.reshape(-1)
        else:
            pool = random.standard_normal(POOL_ELEMENTS // 4, dtype=np.float32) * np.float32(deviation)
            self.pool = pool.astype(np.float16 if kind == "f16" else np.float32)

    def matrix(self, rows: int, columns: int) -> np.ndarray:
        """Returns a view of the pool if the matrix fits, else repeated slices."""
        per_row = columns // 32 * 34 if self.kind == "q8_0" else columns
        size, unit = rows * per_row, 34 if self.kind == "q8_0" else 1
        first = int(self.random.integers(0, 1024)) * unit * 8
        room = self.pool.size - first
        if size <= room:
            return self.pool[first : first + size].reshape(rows, per_row)
        repeated = np.resize(self.pool[first : first + room // per_row * per_row], size)
        return repeated.reshape(rows, per_row)


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    special = [b"<unk>", b"<s>", b"</s>"]
    bytes_ = [f"<0x{i:02X}>".encode() for i in range(256)]
    words = [f"\u2581w{i}".encode() for i in range(size - 259)]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*special, *bytes_, *words])
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(words))])
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(words)]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write(path: str, shape: Shape, kind: str, seed: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads_kv)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    add_vocabulary(writer, shape.vocabulary)

    weights = Weights(kind, shape.width, seed)
    width_kv = shape.width // shape.heads * shape.heads_kv

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", weights.matrix(rows, columns), raw_dtype=TYPES[kind])

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(shape.width, dtype=np.float32))

    matrix("token_embd", shape.vocabulary, shape.width)
    for i in range(shape.layers):
        norm(f"blk.{i}.attn_norm")
        matrix(f"blk.{i}.attn_q", shape.width, shape.width)
        matrix(f"blk.{i}.attn_k", width_kv, shape.width)
        matrix(f"blk.{i}.attn_v", width_kv, shape.width)
        matrix(f"blk.{i}.attn_output", shape.width, shape.width)
        norm(f"blk.{i}.ffn_norm")
        matrix(f"blk.{i}.ffn_gate", shape.feed_forward, shape.width)
        matrix(f"blk.{i}.ffn_up", shape.feed_forward, shape.width)
        matrix(f"blk.{i}.ffn_down", shape.width, shape.feed_forward)
    norm("output_norm")
    matrix("output", shape.vocabulary, shape.width)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--type", choices=TYPES, default="f32")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    start = time.monotonic()
    write(arguments.path, SHAPES[arguments.shape], arguments.type, arguments.seed)
    print(f"{arguments.path}: {arguments.shape}, {arguments.type}, {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
