# SPDX-License-Identifier: Apache-2.0
"""Filters for the results of NVFLARE's tasks.

A result that is not an update of the model that was received is reported as no change, and so is an error: what failed
tells nothing. What is refused before a task is known to have run is refused by NVFLARE's error code alone.

NVFLARE writes a job's components down as JSON and makes them anew from it, so every argument is an attribute of its
name, and a number, a word or a mapping of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants

from ldpkernels.accounting import BudgetExceeded, LedgerError
from ldpkernels.common.arrays import Array
from ldpkernels.inputs.containers import Numbers
from ldpkernels.inputs.modules import Buffers
from ldpkernels.releases.budget import Budget, spent
from ldpkernels.releases.choice import released, reported
from ldpkernels.releases.codes import Codes
from ldpkernels.releases.layouts import Layouts
from ldpkernels.releases.release import Arrays, Asked, leaving
from ldpkernels.releases.vectors import ClippedUpdate
from ldpkernels.releases.written import law_of

REPORT = "ldpkernels.report"  # the key of the bytes
KINDS = {"updates": DataKind.WEIGHT_DIFF, "weights": DataKind.WEIGHTS}


class _Agreed(Filter):
    """A filter with the settings that both sides share."""

    def __init__(
        self,
        eps: float | None = None,
        mechanism: str = "two-point",
        C: Numbers = 0.0,
        R: Numbers | None = None,
        norm: float | None = None,
        bound: float | None = None,
        delta: float = 1e-5,
        upload: str = "updates",
        buffers: Buffers | None = None,
        law: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.mechanism, self.C, self.R = eps, mechanism, C, R
        self.norm, self.bound, self.delta, self.upload, self.buffers = norm, bound, delta, upload, buffers
        self.law = law
        exactly = None if law is None else law_of(law)
        found = released(eps, mechanism, law=exactly, norm=norm, bound=bound, delta=delta)  # type: ignore[arg-type]
        self._release = reported(found, "NVFLARE's filter")
        if isinstance(self._release, Codes | ClippedUpdate):
            raise ValueError(
                f"law={law!r} can't be run by filters, which see one client's result and no round: "
                "docs/integrations/nvflare.md says which laws can"
            )
        if upload not in KINDS:
            raise ValueError(f"upload={upload!r} must be 'updates' (what training changed) or 'weights'")
        if buffers not in (None, "perturb", "keep"):
            raise ValueError(f"buffers={buffers!r} must be 'perturb', 'keep' or None")
        if self._release.ranged:
            if R is None:
                raise ValueError(
                    "R is missing: the radius of what a client sends, which must not come from private data"
                )
        elif R is not None:
            raise ValueError(f"{self._release.terms} has a norm and no ranges: leave out R")
        self._round = Asked((C, 0.0 if R is None else R))

    def add_to_fed_job(self, job: object, ctx: object, **options: object) -> None:
        """NVFLARE's call, of `job.to`. It takes "*" for a task's name, so that such a filter never runs."""
        tasks = options.get("tasks")
        if not isinstance(tasks, (list, tuple)) or not tasks or "*" in tasks:
            raise ValueError(
                f"tasks={tasks!r}: NVFLARE filters tasks by name, and '*' is not one: pass for example tasks=['train']"
            )
        super().add_to_fed_job(job, ctx, **options)

    def _reported(self, data: object) -> Arrays:
        """The arrays that are reported of a DXO's data, or of a model."""
        if not isinstance(data, Mapping) or not data:
            raise ValueError("there are no arrays by name")
        return leaving({name: _array(name, value) for name, value in data.items()}, self.buffers)


class LdpFilter(_Agreed):
    """The last filter of a client's task results: of a result nothing leaves but a report.

    Give the server's `LdpDecoder` the same settings. **A result that is not an update of the task's model is reported
    as no change**: an error's code, a metric, a whole model where an update was agreed on. The round is spent, and the
    reason stays in the client's log. Meta properties (numbers of steps, metrics) and headers do not leave. If this
    filter did not run for a task, its result is emptied. If another filter changed the report, that is undone. A task
    without a model, and a round past the budget, get the code of a filter's error.

    A site's own policy (local/privacy.json) can have it among its `components`, with `tasks`. It then applies to the
    jobs of all who submit some, whatever filters they bring.

    Args:
        eps: Of each weight for "two-point", "piecewise" and "hybrid", of the whole update for "privunitg", "k-of-d" and
            "gaussian", which need `norm`: any two of them, for whoever sees the report.
        mechanism: One of these.
        C: Center of the ranges: a number, or one for each array or module by name. It is public, and so is R.
        R: Radius, likewise.
        norm: For whole vectors, the L2 norm to which an update is clipped.
        bound: For "k-of-d", as for `perturb_vector`.
        delta: The delta of the ledger's epsilon, and with "gaussian" of eps.
        upload: "updates" takes results of kind WEIGHT_DIFF, "weights" of kind WEIGHTS.
        buffers: As for `report`, for models with the statistics of batch normalisation.
        law: In place of eps and mechanism, exactly what is released, as plain data, because NVFLARE writes it to a
            file: `{"kind": "VectorGaussian", "sigma": 5.37, "dimension": 21840}`.
        ledger: The file in which this client keeps what it has spent, over all jobs; "{site}" is its name.
        budget: The total epsilon that no round may pass; needs `ledger`.
        tasks: For a component of a site's policy, which is in no chain of filters: the tasks whose results it reports.
            Results of other tasks leave empty.

    >>> LdpFilter(4.0, R=0.05, ledger="{site}.ledger", budget=1000.0).upload
    'updates'
    """

    def __init__(
        self,
        eps: float | None = None,
        mechanism: str = "two-point",
        C: Numbers = 0.0,
        R: Numbers | None = None,
        norm: float | None = None,
        bound: float | None = None,
        delta: float = 1e-5,
        upload: str = "updates",
        buffers: Buffers | None = None,
        law: Mapping[str, object] | None = None,
        ledger: str | None = None,
        budget: float | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        super().__init__(eps, mechanism, C, R, norm, bound, delta, upload, buffers, law)
        if isinstance(tasks, str):
            raise TypeError(f"tasks={tasks!r} is one name: pass a list of names")
        self.ledger, self.budget, self.tasks = ledger, budget, list(tasks)
        self._purse = Budget(ledger, budget, delta)
        self._asked: Arrays = {}  # the model that the current task came with
        self._answer: bytes | None = None  # the report that may leave

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """NVFLARE's call: a new result with the report, or an error's code."""
        self._answer = None
        try:
            report = self._report(shareable, fl_ctx)
        except (ValueError, TypeError, ArithmeticError, BudgetExceeded, LedgerError, OSError) as error:
            raise ContentBlockedException(f"nothing leaves: {error}") from error
        self._answer = report
        return DXO(DataKind.APP_DEFINED, {REPORT: report}).to_shareable()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """NVFLARE's call at every event: it notes a task's model, and makes what is sent anew from the report."""
        if event_type == EventType.AFTER_TASK_DATA_FILTER:
            self._asked, self._answer = self._received(fl_ctx), None
        elif event_type == EventType.BEFORE_TASK_EXECUTION:
            self._guard(fl_ctx)
        elif event_type == EventType.AFTER_TASK_RESULT_FILTER:
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            if not isinstance(result, Shareable):
                return
            answer = make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
            if self._answer is None and fl_ctx.get_prop(FLContextKey.TASK_NAME) in self.tasks:
                try:
                    self.process(result, fl_ctx)
                except ContentBlockedException as error:
                    self.log_error(fl_ctx, str(error))
            if self._answer is None:
                self.log_error(fl_ctx, "a task's result did not go through LdpFilter last: nothing of it leaves")
            else:
                answer = DXO(DataKind.APP_DEFINED, {REPORT: self._answer}).to_shareable()
            result.clear()
            result.update(answer)

    def _guard(self, fl_ctx: FLContext) -> None:
        """Have the task's executor answer with an error where it would raise: NVFLARE then asks its filters."""
        runner, task = fl_ctx.get_prop(FLContextKey.RUNNER), fl_ctx.get_prop(FLContextKey.TASK_NAME)
        executor = None if runner is None else runner.find_executor(task)
        if executor is None or getattr(executor.execute, "guarded", False):
            return
        execute = executor.execute

        def guarded(name: str, data: Shareable, ctx: FLContext, abort: Signal) -> Shareable:
            try:
                result = execute(name, data, ctx, abort)
            except BaseException:
                if abort.triggered:
                    raise
                self.log_exception(ctx, "the task's executor raised")
                return make_reply(ReturnCode.EXECUTION_EXCEPTION)
            return result if isinstance(result, Shareable) else make_reply(ReturnCode.EXECUTION_RESULT_ERROR)

        guarded.guarded = True  # type: ignore[attr-defined]
        executor.execute = guarded

    def _received(self, fl_ctx: FLContext) -> Arrays:
        """The arrays that a report of this task is of; none where the task brought no model."""
        task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        try:
            asked = self._reported(from_shareable(task).data)
            return {name: array.copy() for name, array in asked.items()}  # training may write there
        except (ValueError, TypeError) as error:
            self.log_error(fl_ctx, f"no report can be made of this task: {error}")
            return {}

    def _report(self, shareable: Shareable, fl_ctx: FLContext) -> bytes:
        asked = self._asked
        if not asked:
            raise ValueError("the task came with no model, so that a report has no shape")
        unchanged = asked if self.upload == "weights" else {n: np.zeros_like(a) for n, a in asked.items()}
        sizes = [array.size for array in asked.values()]
        self._release.event(sizes)  # it refuses arrays that the law is not of
        nothing = self._release.report(unchanged, self._round, None)
        with self._purse.opened({"site": fl_ctx.get_identity_name()}) as ledger:
            if ledger is not None:
                layout = Layouts.of(asked, self.buffers).digest
                spent(ledger, self._release, sizes, layout)  # before anything is released
        try:
            return self._release.report(self._update(shareable, asked), self._round, None)
        except Exception as error:
            self.log_error(fl_ctx, f"the task failed, and what leaves is a report of no change: {error!r}")
            return nothing

    def _update(self, shareable: Shareable, asked: Arrays) -> Arrays:
        """What the task made of the model that it came with; the errors are for the client's own log."""
        if (code := shareable.get_return_code()) != ReturnCode.OK:
            raise ValueError(f"the task answers {code}")
        dxo = from_shareable(shareable)
        if dxo.data_kind != (kind := KINDS[self.upload]):
            raise ValueError(
                f"a result of kind {dxo.data_kind!r}, and upload={self.upload!r} sends {kind.value!r} only: have "
                "the client send that (params_type), and evaluate on the server"
            )
        update = self._reported(dxo.data)
        if {n: a.shape for n, a in update.items()} != {n: a.shape for n, a in asked.items()}:
            raise ValueError("the result has other names or shapes than the model that was received")
        return {name: update[name].astype(array.dtype) for name, array in asked.items()}


class LdpDecoder(_Agreed):
    """The server's filter for task results: it turns a report into the numbers that a workflow averages.

    A result that is not a report of the global model under these settings is refused, and counts as a client's error.
    Every report counts the same, whatever a client says about its steps. The arguments are those of `LdpFilter`.

    >>> LdpDecoder(4.0, R=0.05).mechanism
    'two-point'
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """NVFLARE's call: the client's result with numbers in place of the report."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        if not isinstance(model, Mapping):
            raise ContentBlockedException("no global model is known: let a persistor load it")
        try:
            dxo = from_shareable(shareable)
            report = dxo.data.get(REPORT) if isinstance(dxo.data, Mapping) and len(dxo.data) == 1 else None
            if dxo.data_kind != DataKind.APP_DEFINED or not isinstance(report, bytes):
                raise ValueError("the result is not a report: the client needs LdpFilter")
            total = self._release.total(self._reported(model.get(ModelLearnableKey.WEIGHTS)), self._round)
            total.add(report)
            if total.skipped:
                raise ValueError("; ".join(total.reasons))
            numbers = total.mean()
        except (ValueError, TypeError) as error:
            raise ContentBlockedException(str(error)) from error
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
        return DXO(KINDS[self.upload], numbers, meta).update_shareable(shareable)


def _array(name: object, value: object) -> Array:
    """The array that a value is, or a tensor of torch as an array."""
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name of an array")
    held = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    if not isinstance(held, (np.ndarray, np.generic)):
        raise ValueError(f"array {name!r} is a {type(value).__name__}: send NumPy arrays or tensors")
    array: Array = np.asarray(held)
    return array
