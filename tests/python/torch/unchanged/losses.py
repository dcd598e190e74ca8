"""Common code of the unchanged scripts. Neither this file nor the scripts refer to Isthmus."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

STEPS, WIDTH, BATCH = 6, 16, 8
DEVICE = os.environ.get("DEVICE", "cpu")  # or "cuda"


def place() -> torch.device:
    """Returns this rank's device and makes it the current device."""
    if DEVICE == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def model() -> torch.nn.Module:
    """Returns a small network, the same on every rank."""
    torch.manual_seed(1)
    layers = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, 1)
    return torch.nn.Sequential(*layers).to(place())


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns this rank's random data. One batch repeats, so that the loss decreases."""
    generator = torch.Generator().manual_seed(100 + int(os.environ["RANK"]))
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    inputs = inputs.to(place())
    return [(inputs, inputs.sum(1, keepdim=True))] * STEPS


def write(losses: list[float], **more: object) -> None:
    """Writes the result to a file of this rank in the folder given as the first argument."""
    result = {"losses": losses, **more}
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(result))
