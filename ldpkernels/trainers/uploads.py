# SPDX-License-Identifier: Apache-2.0
"""One report of what training changed in the parameters that it may change."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Literal, SupportsFloat

from ldpkernels.calls.perturb import report
from ldpkernels.calls.reports import Report
from ldpkernels.common.arguments import number
from ldpkernels.common.keys import Generator
from ldpkernels.inputs.containers import Numbers, collect
from ldpkernels.inputs.shards import is_sharded
from ldpkernels.laws.registry import MechanismName
from ldpkernels.releases.budget import Budget, spent
from ldpkernels.releases.choice import Law, released, reported
from ldpkernels.releases.release import EachWeight
from ldpkernels.releases.vectors import WholeVector

if TYPE_CHECKING:
    import torch

Sent = Literal["update", "weights"]
logger = logging.getLogger("ldpkernels.trainers")


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters that require gradients, by the names that reports have: of a LoRA model, its adapters.

    Pass it to `report`, `perturb_`, `ranges`, `expected` and `load` in place of the model. Given a module, they take
    all of its parameters, frozen ones too, because a frozen number may be private as well. Passing these instead says
    that the others do not leave, or are public.

    >>> import torch, ldpkernels.trainers
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 1))
    >>> list(ldpkernels.trainers.trainable(model))
    ['1.weight', '1.bias']
    """
    tensors, _ = collect(model, "keep", sharded=is_sharded(model))
    found = {name: p for name, p in zip(tensors.names, tensors.values, strict=True) if p.requires_grad}
    if not found:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to send")
    return found


class Upload:
    """What one client sends after it trained: a report of its trainable parameters, in place of them.

    Call `start` before training and `finish` after it, or use a callback that calls both: `huggingface(upload)`,
    `lightning(upload)`. Then `report` holds what may leave. **Nothing else may**: neither the model, nor checkpoints or
    logged losses of the trainer.

    **A training that fails must look like any other**: if it raises, call `failed`, which reports no change.

    Args:
        C, R, eps, mechanism, generator: As for `ldpkernels.report`: eps is between any two values of a weight, for
            whoever sees the report. The server chooses C and R for what is sent.
        law: In place of eps and mechanism, exactly what is released, as `plan` finds it. `TwoPoint`, `Piecewise` and
            `Hybrid` need C and R. `VectorGaussian`, `PrivUnitG` and `KOfD` of the whole update do not; with them
            `report` is what `perturb_vector` gives: noised tensors by name.
        sent: "update", what training added to each parameter, or "weights".
        ledger: The file in which this client keeps what it has spent, over all runs.
        budget: The total epsilon that no report may pass; needs `ledger`. `start` spends, before anything is trained,
            and raises `accounting.BudgetExceeded`. What it spent stays spent, even if no report is sent.
        delta: The delta of that epsilon.

    >>> import torch, ldpkernels
    >>> from ldpkernels.trainers import Upload, trainable
    >>> model = torch.nn.Linear(3, 1)
    >>> upload = Upload(C=0.0, R=0.1, eps=4.0)
    >>> upload.start(model)
    >>> _ = model.weight.data.add_(0.05)  # train
    >>> upload.finish(model).nbytes
    2
    >>> upload = Upload(law=ldpkernels.VectorGaussian(0.5, dimension=4))
    >>> upload.start(model)
    >>> sorted(upload.finish(model))
    ['bias', 'weight']
    """

    def __init__(
        self,
        C: Numbers = 0.0,
        R: Numbers | None = None,
        eps: SupportsFloat | None = None,
        *,
        mechanism: MechanismName = "two-point",
        law: Law | None = None,
        generator: Generator = None,
        sent: Sent = "update",
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        delta: float = 1e-5,
    ) -> None:
        chosen = released(None if eps is None else number("eps", eps), mechanism, law=law)
        exactly = reported(chosen, "trainers.Upload")
        if not isinstance(exactly, EachWeight | WholeVector):
            raise ValueError(f"law={law!r} is not one that Upload takes: call ldpkernels.updates yourself")
        self._release = exactly
        if exactly.ranged != (R is not None):
            raise ValueError(
                f"R={R!r}: C and R are the range of single weights, and a law of whole updates has none: leave them out"
            )
        if sent not in ("update", "weights"):
            raise ValueError(f"sent={sent!r} must be 'update' or 'weights'")
        self.C, self.R, self.generator = C, R, generator
        self.sent = sent
        self.budget = Budget(ledger, budget, delta)
        self.report: Report | dict[str, torch.Tensor] | None = None
        self._before: dict[str, torch.Tensor] | None = None

    def start(self, model: torch.nn.Module, first: bool = True) -> None:
        """Note the model from which training starts, the server's, and spend: from here on a report leaves.

        If several processes train one model, `first` is true in the one that spends.
        """
        self.report = None
        before = {name: p.detach().clone() for name, p in trainable(model).items()}
        sizes = [p.numel() for p in before.values()]
        self._release.event(sizes)  # it refuses a model that the law is not of
        self._randomised(before, None)  # and this one what no report can have, before anything is spent
        if first:
            with self.budget.opened({}) as kept:
                if kept is not None:
                    spent(kept, self._release, sizes, "")
        self._before = before

    def finish(self, model: torch.nn.Module, first: bool = True) -> Report | dict[str, torch.Tensor] | None:
        """Make the report. If something is wrong with the parameters, that is logged, and reported as no change.

        If several processes hold one model, `first` is true in the one that reports it. Processes that hold parts of it
        (DTensor) all report together, and all have the report.
        """
        if self._before is None:
            raise RuntimeError("finish was called before start, so what training started from is unknown")
        before = self._before
        if not first and not is_sharded(before):
            self._before = None
            return None
        try:
            after = trainable(model)
            if [(n, p.shape, p.dtype) for n, p in after.items()] != [(n, p.shape, p.dtype) for n, p in before.items()]:
                raise ValueError("training froze, unfroze or replaced parameters: call start again")
            changes = after if self.sent == "weights" else {n: _difference(after[n], before[n]) for n in before}
            made = self._reported(changes)
        except Exception:
            logger.exception("the training failed: what leaves is a report of no change")
            return self.failed()
        self._before = None
        return made

    def failed(self) -> Report | dict[str, torch.Tensor]:
        """Report that nothing changed: for a training that raised, after `start`."""
        if self._before is None:
            raise RuntimeError("failed was called before start, so what training started from is unknown")
        before, self._before = self._before, None
        return self._reported(before if self.sent == "weights" else {n: _difference(p, p) for n, p in before.items()})

    def _reported(self, sent: dict[str, torch.Tensor]) -> Report | dict[str, torch.Tensor]:
        self.report = self._randomised(sent, self.generator)
        return self.report

    def _randomised(self, sent: dict[str, torch.Tensor], generator: Generator) -> Report | dict[str, torch.Tensor]:
        release = self._release
        if isinstance(release, EachWeight):
            assert self.R is not None  # a range was asked for
            return report(sent, self.C, self.R, release.eps, mechanism=release.mechanism, generator=generator)
        return release.randomised(sent, generator)


def _difference(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """What training changed, in fp32 at least: two bf16 numbers are near each other after training."""
    if after.dtype.itemsize < 4:
        return after.detach().float() - before.float()
    return after.detach() - before
