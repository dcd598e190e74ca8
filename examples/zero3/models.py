"""Decoders with random weights in the shapes of GPT and Qwen3 models, of any depth, and tiny ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder. heads share key_value_heads.

    gated: SwiGLU, RMS norms and rotary positions, as Qwen3; otherwise as GPT.
    """

    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    gated: bool


SHAPES = {
    "gpt-small": Shape(768, 6, 12, 12, 64, 3072, 50304, gated=False),
    "gpt-medium": Shape(2048, 8, 16, 16, 128, 8192, 50304, gated=False),
    "gpt-7b": Shape(4096, 32, 32, 32, 128, 16384, 50304, gated=False),
    "gpt-175b": Shape(12288, 96, 96, 96, 128, 49152, 50304, gated=False),
    "qwen3-32b": Shape(5120, 64, 64, 8, 128, 25600, 151936, gated=True),
    "gpt-tiny": Shape(64, 2, 4, 4, 16, 256, 512, gated=False),
    "qwen3-tiny": Shape(64, 2, 4, 2, 16, 192, 512, gated=True),
}


def rotate(x: torch.Tensor, base: float = 1e6) -> torch.Tensor:
    """Applies rotary positions to [batch, heads, length, head width]."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * frequencies
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.queries = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.keys = nn.Linear(shape.width, shape.key_value_heads * shape.head_width, bias=False)
        self.values = nn.Linear(shape.width, shape.key_value_heads * shape.head_width, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)
        if shape.gated:
            self.query_norm, self.key_norm = nn.RMSNorm(shape.head_width), nn.RMSNorm(shape.head_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head_width)
        queries, keys, values = (
            part(x).view(split).transpose(1, 2) for part in (self.queries, self.keys, self.values)
        )
        if self.shape.gated:
            queries, keys = rotate(self.query_norm(queries)), rotate(self.key_norm(keys))
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=self.shape.heads != self.shape.key_value_heads
        )
        return self.out(attended.transpose(1, 2).reshape(batch, length, -1))


class Perceptron(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False) if shape.gated else None
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm = nn.RMSNorm if shape.gated else nn.LayerNorm
        self.first_norm, self.second_norm = norm(shape.width), norm(shape.width)
        self.attention, self.perceptron = Attention(shape), Perceptron(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.perceptron(self.second_norm(x))


class Decoder(nn.Module):
    """Maps words of shape [batch, length] to the mean loss of predicting the next word."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.places = None if shape.gated else nn.Embedding(length, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = (nn.RMSNorm if shape.gated else nn.LayerNorm)(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words[:, :-1])
        if self.places is not None:
            x = x + self.places(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
