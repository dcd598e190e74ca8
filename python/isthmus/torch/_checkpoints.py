"""Checkpoints of an elastic job with sharded parameters, in a folder that survives its processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Checkpoints:
    """The latest checkpoint of a model and its optimizer. All functions are collective."""

    def __init__(
        self, folder: Path, every: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.every = every
        self._folder, self._model, self._optimizer = folder, model, optimizer

    def restore(self) -> int:
        """Loads the latest complete checkpoint, also of another number of ranks. Returns its step, or 0."""
        complete = [int(path.name) for path in self._all() if (path / ".metadata").exists()]
        box = [max(complete, default=0)]
        dist.broadcast_object_list(box, 0)
        if (step := box[0]) > 0:
            state = self._state()
            dcp.load(state, checkpoint_id=self._folder / str(step))
            set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        return step

    def save(self, step: int) -> None:
        """Saves a checkpoint and removes all others."""
        dcp.save(self._state(), checkpoint_id=self._folder / str(step))
        self.remove(kept=str(step))

    def remove(self, kept: str = "") -> None:
        if dist.get_rank() == 0:
            for path in self._all():
                if path.name != kept:
                    shutil.rmtree(path)

    def _state(self) -> dict[str, dict[str, object]]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _all(self) -> list[Path]:
        return [path for path in self._folder.glob("*") if path.name.isdecimal()]
