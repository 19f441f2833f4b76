# SPDX-License-Identifier: Apache-2.0
"""An upload's start and end, called by Hugging Face's Trainer and by Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ldpkernels.common.optional import require
from ldpkernels.trainers.uploads import Upload

if TYPE_CHECKING:
    import torch
    from lightning import Callback, LightningModule, Trainer
    from transformers import TrainerCallback, TrainerState


def huggingface(upload: Upload) -> TrainerCallback:
    """A callback for Hugging Face's `Trainer`: `trainer.add_callback(huggingface(upload))`.

    When `trainer.train()` returns, the process of rank 0 has `upload.report`.
    """
    base = require("transformers", "trainers", "a callback of Hugging Face's Trainer").TrainerCallback

    class OnTraining(base):  # type: ignore[misc, valid-type]  # known where it is installed
        def on_train_begin(
            self, args: object, state: TrainerState, control: object, *, model: torch.nn.Module, **_: object
        ) -> None:
            upload.start(model, first=state.is_world_process_zero)

        def on_train_end(
            self, args: object, state: TrainerState, control: object, *, model: torch.nn.Module, **_: object
        ) -> None:
            upload.finish(model, first=state.is_world_process_zero)

    return OnTraining()


def lightning(upload: Upload) -> Callback:
    """A callback for Lightning's `Trainer(callbacks=[lightning(upload)])`.

    When `trainer.fit(...)` returns, the process of rank 0 has `upload.report`.
    """
    base = require("lightning", "trainers", "a callback of Lightning's Trainer").Callback

    class OnTraining(base):  # type: ignore[misc, valid-type]  # known where it is installed
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            upload.start(pl_module, first=trainer.is_global_zero)

        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            upload.finish(pl_module, first=trainer.is_global_zero)

    return OnTraining()
