"""What the unchanged scripts share. Nothing here, and nothing in them, knows of Isthmus."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

STEPS, WIDTH, BATCH = 6, 16, 8
DEVICE = os.environ.get("DEVICE", "cpu")  # or "cuda"


def place() -> torch.device:
    """This rank's device, made the current one."""
    if DEVICE == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def model() -> torch.nn.Module:
    """A tiny network, the same on every rank."""
    torch.manual_seed(1)
    layers = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, 1)
    return torch.nn.Sequential(*layers).to(place())


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of random data: one batch, read again and again so that the loss falls."""
    generator = torch.Generator().manual_seed(100 + int(os.environ["RANK"]))
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    inputs = inputs.to(place())
    return [(inputs, inputs.sum(1, keepdim=True))] * STEPS


def write(losses: list[float], **more: object) -> None:
    """To the file of this rank in the folder that the script was given."""
    result = {"losses": losses, **more}
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(result))
