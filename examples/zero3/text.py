"""Generates learnable text from a random grammar of words, so that nothing has to be downloaded.

Every word has four equally likely followers; one word in twenty is random. A model that knows the grammar
reaches a loss of about 1.9 nats per word (ln 4 for most words, more for the random ones). An untrained model
starts at ln(vocabulary).
"""

from __future__ import annotations

import torch

WORDS = 4096
FOLLOWERS = 4
SURPRISE = 0.05


def make_batches(
    count: int, batch: int, length: int, vocabulary: int, rank: int, seed: int = 7
) -> list[torch.Tensor]:
    """`count` batches of [batch, length + 1] words: different for every rank, equal in every run."""
    words = min(vocabulary, WORDS)
    grammar = torch.Generator().manual_seed(seed)
    followers = torch.randint(0, words, (words, FOLLOWERS), generator=grammar)
    chance = torch.Generator().manual_seed(seed + 1 + rank)
    shape = (count * batch, length + 1)
    text = torch.randint(0, words, shape, generator=chance)
    choices = torch.randint(0, FOLLOWERS, shape, generator=chance)
    surprises = torch.rand(shape, generator=chance) < SURPRISE
    for place in range(1, length + 1):
        likely = followers[text[:, place - 1], choices[:, place]]
        text[:, place] = torch.where(surprises[:, place], text[:, place], likely)
    return list(text.split(batch))
