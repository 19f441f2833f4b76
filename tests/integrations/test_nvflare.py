# SPDX-License-Identifier: Apache-2.0
# NVFLARE's own classes and its simulator, where it is installed: `make integrations`.
import json
import logging
import re
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import ldpkernels
from ldpkernels.accounting import GaussianEvent, Ledger, SampledGaussianEvent
from ldpkernels.accounting.ledger import recorded

pytest.importorskip("nvflare.apis.filter")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.client import client_runner
from nvflare.recipe import SimEnv

from ldpkernels.nvflare import LdpDecoder, LdpFilter
from ldpkernels.releases.written import law_of
from tests.integrations.pages import FOLDER, blocks

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = {"a.weight": np.full((6, 5), 2.0, np.float32), "a.scale": np.array(1.5, np.float32), "b": np.zeros(3)}
UPDATE = {name: np.full_like(array, 0.05) for name, array in MODEL.items()}
SHARES = {"dimension": 34, "norm": 0.3, "clients": 4, "grid_norm": 500.0, "stddev": 80.0, "bits": 16, "invited": 6}
SURE = 30.0  # an eps at which a weight at its range's end is reported right but for 1e-13


def context(site="site-1", model=MODEL):
    found = FLContext()
    found.set_prop(ReservedKey.IDENTITY_NAME, site)
    found.set_prop(AppConstants.GLOBAL_MODEL, None if model is None else make_model_learnable(dict(model), {}))
    return found


def result(data=UPDATE, kind=DataKind.WEIGHT_DIFF, **meta):
    return DXO(kind, dict(data), {MetaKey.NUM_STEPS_CURRENT_ROUND: 17, **meta}).to_shareable()


def received(made, model=MODEL):
    """The filter learns of a task that comes with this model; the task's context."""
    fl_ctx = context()
    task = Shareable() if model is None else DXO(DataKind.WEIGHTS, dict(model)).to_shareable()
    fl_ctx.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
    made.handle_event(EventType.AFTER_TASK_DATA_FILTER, fl_ctx)
    return fl_ctx


def sent(made=None, shareable=None, model=MODEL):
    made = made or LdpFilter(4.0, R=0.1)
    fl_ctx = received(made, model)
    return made.process(result() if shareable is None else shareable, fl_ctx)


def test_nothing_leaves_but_the_report():
    upload = result(initial_metrics={"loss": 0.25})
    upload.set_header("secret", "patient 4711")
    upload["more"] = np.ones(3)
    answer = sent(shareable=upload)
    dxo = from_shareable(answer)
    assert (dxo.data_kind, list(dxo.data), dxo.meta) == (DataKind.APP_DEFINED, ["ldpkernels.report"], {})
    assert "secret" not in answer["__headers__"]
    assert set(answer) == {"__headers__", "DXO"}
    report = ldpkernels.Report.from_bytes(dxo.data["ldpkernels.report"])
    assert report.layout.names == tuple(MODEL)
    assert len(dxo.data["ldpkernels.report"]) < 600  # 34 weights are 6 bytes of bits; the rest is the header


FAILURES = {
    "error": make_reply(ReturnCode.EXECUTION_EXCEPTION),
    "another error": make_reply("patient 4711"),
    "weights": result(kind=DataKind.WEIGHTS),
    "metrics": result({"accuracy": 0.5}, DataKind.METRICS),
    "collection": DXO(DataKind.COLLECTION, {"x": DXO(DataKind.WEIGHT_DIFF, UPDATE)}).to_shareable(),
    "no DXO": Shareable({"weights": UPDATE}),
    "empty": result({}),
    "a list": result({**UPDATE, "b": [0.1, 0.2, 0.3]}),
    "integers": result({**UPDATE, "b": np.arange(3)}),
    "one more": result({**UPDATE, "n.running_mean": np.zeros(2)}),
    "a number's name": result({**UPDATE, 7: np.zeros(2)}),
    "another shape": result({**UPDATE, "b": np.zeros(4)}),
}


@pytest.mark.parametrize("failed", FAILURES.values(), ids=FAILURES)
def test_what_failed_is_reported_as_no_change(failed, tmp_path):
    """In the form of what went well, for the price of it."""
    made = LdpFilter(SURE, R=0.1, ledger=str(tmp_path / "{site}.ledger"), budget=1e9)
    answers = [sent(made, upload) for upload in (failed, result())]
    assert {frozenset(answer) for answer in answers} == {frozenset({"__headers__", "DXO"})}
    reports = [from_shareable(answer).data["ldpkernels.report"] for answer in answers]
    assert len(reports[0]) == len(reports[1])
    numbers = from_shareable(LdpDecoder(SURE, R=0.1).process(answers[0], context())).data
    upper = np.concatenate([array.ravel() > 0 for array in numbers.values()])
    assert 2 < upper.sum() < 32  # of 34: bits of nothing, each right with probability 1/2
    with Ledger(tmp_path / "site-1.ledger", epsilon=1e9) as ledger:
        assert len(ledger.history) == 2


class Failing(Executor):
    def __init__(self, failure):
        super().__init__()
        self.failure = failure

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if isinstance(self.failure, BaseException):
            raise self.failure
        return self.failure


def run_by(handler, executor, filtered, monkeypatch):
    """NVFLARE's own runner of tasks, with a component that hears of events and a filter of results; and a context."""
    runner = client_runner.ClientRunner.__new__(client_runner.ClientRunner)
    runner.__dict__.update(
        job_id="job", task_lock=threading.Lock(), running_tasks={}, run_abort_signal=Signal(), task_data_filters={},
        task_result_filters={}, logger=logging.getLogger("runner"), find_executor=lambda task: executor,
        fire_event=handler.handle_event, _self_check=lambda: None, _run_abort_requested=False,
    )  # fmt: skip
    for name in ("log_info", "log_debug", "log_error", "log_exception"):
        setattr(runner, name, lambda *_, **__: None)

    def fired(event, fl_ctx, key, value):
        fl_ctx.set_prop(key, value, private=True, sticky=False)
        handler.handle_event(event, fl_ctx)

    runner.fire_event_with_data = fired
    runner._reply_and_audit = lambda reply, ref, msg, fl_ctx: reply
    monkeypatch.setattr(client_runner, "add_job_audit_event", lambda *_, **__: "")
    asked = lambda name, data, fl_ctx, *_, **__: filtered(data, fl_ctx) if "result" in name else data  # noqa: E731
    monkeypatch.setattr(client_runner, "apply_filters", asked)
    fl_ctx, server = context(), FLContext()
    server.set_prop(ReservedKey.RUN_NUM, "job")
    fl_ctx.set_peer_context(server)
    fl_ctx.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    server.get_job_id = fl_ctx.get_job_id = lambda: "job"
    return runner, fl_ctx


@pytest.mark.parametrize(
    "failure", [IndexError("label 7"), RuntimeError("label 7"), BaseException("label 7"), None, result()], ids=repr
)
def test_an_executor_that_raises_is_reported_as_no_change(failure, tmp_path, monkeypatch):
    """By NVFLARE's own runner, which asks no filter where an executor raises."""
    made = LdpFilter(4.0, R=0.1, ledger=str(tmp_path / "{site}.ledger"), budget=1e9)
    runner, fl_ctx = run_by(made, Failing(failure), made.process, monkeypatch)
    for spent in (1, 2):
        task = DXO(DataKind.WEIGHTS, dict(MODEL)).to_shareable()
        answer = runner._do_process_task(client_runner.TaskAssignment("train", f"id {spent}", task), fl_ctx)
        assert answer.get_return_code() == ReturnCode.OK
        assert list(from_shareable(answer).data) == ["ldpkernels.report"]
        with Ledger(tmp_path / "site-1.ledger", epsilon=1e9) as ledger:
            assert len(ledger.history) == spent


def test_a_task_without_a_model_gets_no_report(tmp_path):
    made = LdpFilter(4.0, R=0.1, ledger=str(tmp_path / "{site}.ledger"), budget=1e9)
    for model in (None, {}, {"b": np.arange(3)}):
        with pytest.raises(ContentBlockedException, match="no model"):
            sent(made, model=model)
    assert not list(tmp_path.iterdir())


def test_what_is_sent_is_the_report_whatever_came_after_the_filter():
    """A task that the job forgot to filter is emptied; what a filter after this one changed is undone."""
    made = LdpFilter(4.0, R=0.1)
    fl_ctx = received(made)
    answer = made.process(result(), fl_ctx)
    report = from_shareable(answer).data["ldpkernels.report"]
    answer["DXO"]["data"]["secret"], answer["more"] = np.ones(3), np.ones(3)
    answer.set_header("secret", "patient 4711")
    fl_ctx.set_prop(FLContextKey.TASK_RESULT, answer, private=True, sticky=False)
    made.handle_event(EventType.AFTER_TASK_RESULT_FILTER, fl_ctx)
    assert set(answer) == {"__headers__", "DXO"}
    assert "secret" not in answer["__headers__"]
    assert from_shareable(answer).data == {"ldpkernels.report": report}
    fl_ctx, other = received(made), result()
    fl_ctx.set_prop(FLContextKey.TASK_RESULT, other, private=True, sticky=False)
    made.handle_event(EventType.AFTER_TASK_RESULT_FILTER, fl_ctx)
    assert set(other) == {"__headers__"}
    assert other.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_a_ledger_stops_the_client(tmp_path):
    event = ldpkernels.TwoPoint(4.0).event
    probe = Ledger(None, epsilon=1e9, delta=1e-5)
    two = [probe.spend(event, 34).epsilon for _ in range(2)][-1]
    made = LdpFilter(4.0, R=0.1, ledger=str(tmp_path / "{site}.ledger"), budget=two * 1.01)
    sent(made), sent(made)
    with pytest.raises(ContentBlockedException, match="past the budget"):
        sent(made)
    assert len(recorded(tmp_path / "site-1.ledger")[1]) == 2


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("two-point", {"R": 0.05}),
        ("piecewise", {"R": 0.05}),
        ("privunitg", {"norm": 0.5}),
        ("k-of-d", {"norm": 0.5, "bound": 0.1}),
        ("gaussian", {"norm": 0.5}),
    ],
)
def test_the_server_has_numbers_again(mechanism, options):
    both = {"eps": SURE, "mechanism": mechanism, **options}
    upload = sent(LdpFilter(**both))
    upload.set_header("cookie", "of the workflow")
    answer = LdpDecoder(**both).process(upload, context())
    dxo = from_shareable(answer)
    assert answer.get_header("cookie") == "of the workflow"
    assert (dxo.data_kind, dxo.meta) == (DataKind.WEIGHT_DIFF, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
    assert {n: (a.shape, a.dtype) for n, a in dxo.data.items()} == {n: (a.shape, a.dtype) for n, a in MODEL.items()}
    if mechanism == "two-point":
        assert all(np.allclose(dxo.data[name], array, rtol=1e-5) for name, array in UPDATE.items())


@pytest.mark.usefixtures("fixed_keys")
@pytest.mark.parametrize(
    "law",
    [
        {"kind": "VectorGaussian", "sigma": 0.2, "dimension": 34, "norm": 0.5},
        {"kind": "PrivUnitG", "eps": 60.0, "dimension": 34, "norm": 0.5},
        {"kind": "TwoPoint", "eps": SURE},
    ],
    ids=lambda law: law["kind"],
)
def test_exactly_the_law_is_what_runs(law, tmp_path):
    both = {"law": law, **({"R": 0.1} if law["kind"] == "TwoPoint" else {})}
    made = LdpFilter(**both, ledger=str(tmp_path / "{site}.ledger"), budget=1e9)
    numbers = from_shareable(LdpDecoder(**both).process(sent(made), context())).data
    assert abs(np.concatenate([a.ravel() for a in numbers.values()]).mean() - 0.05) < 0.05
    _, rounds = recorded(tmp_path / "site-1.ledger")
    assert [one.event for one in rounds] == [law_of(law).event]
    if "dimension" in law:
        with pytest.raises(ContentBlockedException, match="the law is of 34"):
            sent(LdpFilter(**both), model={"w": np.zeros(3)})


def test_the_server_takes_reports_of_its_model_only():
    decoder = LdpDecoder(4.0, R=0.1)
    with pytest.raises(ContentBlockedException, match="no global model"):
        decoder.process(sent(), context(model=None))
    with pytest.raises(ContentBlockedException, match="needs LdpFilter"):
        decoder.process(result(), context())
    lie = DXO(DataKind.APP_DEFINED, {"ldpkernels.report": b"LDPK" * 9}).to_shareable()
    for upload in (lie, sent(LdpFilter(5.0, R=0.1)), sent(model={"w": np.zeros(2)})):
        with pytest.raises(ContentBlockedException):
            decoder.process(upload, context())
    failed = make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
    assert decoder.process(failed, context()) is failed


def test_models_of_torch_and_their_statistics():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    both = {"eps": 4.0, "R": 0.1, "buffers": "keep"}
    model = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    upload = sent(LdpFilter(**both), result(module.state_dict()), model)
    numbers = from_shareable(LdpDecoder(**both).process(upload, context(model=model))).data
    assert list(numbers) == [name for name, _ in module.named_parameters()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "R is missing"),
        ({"R": 0.1, "upload": "gradients"}, "upload"),
        ({"R": 0.1, "buffers": "send"}, "buffers"),
        ({"R": 0.1, "mechanism": "privunitg"}, "norm"),
        ({"R": 0.1, "mechanism": "privunitg", "norm": 1.0}, "leave out R"),
        ({"R": 0.1, "mechanism": "projected-code"}, "law=ProjectedCode"),
        ({"eps": None, "law": {"kind": "ProjectedCode", "eps": 8.0, "dimension": 34}}, "no round"),
        ({"eps": None, "law": {"kind": "Laplace"}}, "must be one of TwoPoint"),
        ({"eps": None, "law": {**SHARES, "kind": "DistributedGaussian"}}, "private only in a sum"),
        ({"R": 0.1, "eps": 0.0}, "eps"),
    ],
)
@pytest.mark.parametrize("side", [LdpFilter, LdpDecoder])
def test_settings_are_checked_where_they_are_given(side, options, words):
    with pytest.raises(ValueError, match=words):
        side(**{"eps": 4.0, **options})


def test_a_budget_needs_a_ledger():
    with pytest.raises(ValueError, match="go together"):
        LdpFilter(4.0, R=0.1, budget=5.0)


CLIENT = """
import nvflare.client as flare
import numpy as np

flare.init()
while flare.is_running():
    model = flare.receive()
    change = {name: np.full_like(array, 0.5) for name, array in model.params.items()}
    flare.send(flare.FLModel(params=change, params_type="DIFF", metrics={"loss": 0.25}))
"""


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """The page's job with these words for others: the folder of its run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CLIENT)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))

    def run(words, block=0):
        page = blocks("nvflare.md")[block]
        for old, new in {"4.0": str(SURE), "R=0.1": "R=0.05", "spent-": f"{tmp_path}/spent-", **words}.items():
            assert old in page
            page = page.replace(old, new)
        names = {"__name__": "page", "environment": SimEnv(num_clients=2, workspace_root=str(tmp_path / "run"))}
        exec(page, names)
        if "job" in names:
            names["job"].simulator_run(str(tmp_path / "run"))
        return tmp_path

    return run


@pytest.mark.parametrize("block", [0, 1], ids=["job", "recipe"])
def test_the_page_runs_in_nvflares_simulator(block, simulated):
    """Two clients, two rounds: the model moves by R each, to which ten times as long a step is clipped."""
    folder = simulated({}, block)
    assert not list(folder.rglob("custom/ldpkernels"))
    (saved,) = folder.rglob("server.npy")
    start = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    assert np.allclose(np.load(saved), start + 2 * 0.05, atol=1e-5)
    ledgers = list(folder.glob("spent-site-*.ledger"))
    assert [len(recorded(path)[1]) for path in ledgers] == [2, 2]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(("budget", "rounds"), [("3.0", 2), ("1.7", 1)], ids=["done", "refused"])
def test_sites_protect_their_patients(budget, rounds, tmp_path):
    """By the page's script: a metric has noise, the ledger counts it, and of a refusal the server gets no word."""
    torch = pytest.importorskip("torch")
    script, job = blocks("nvflare.md")[2:]
    (tmp_path / "train.py").write_text(script.replace("/var/lib/ldp", str(tmp_path)).replace("3.0", budget))
    sites = ["site-1", "site-2"]
    for site in sites:
        x = torch.randn(600, 5)
        torch.save((x, (x[:, 0] > 0).long(), torch.arange(600) // 3), tmp_path / f"{site}.pt")
    names = {"__name__": "page", "environment": SimEnv(num_clients=2, workspace_root=str(tmp_path / "run"))}
    with nullcontext() if rounds == 2 else pytest.raises(RuntimeError, match="Simulation failed"):
        exec(job, names)
    folder = tmp_path / "run" / "patients"
    assert not list(folder.rglob("custom/torch"))
    (saved,) = folder.rglob("FL_global_model.pt")
    assert not torch.equal(torch.load(saved)["model"]["weight"], names["start"].weight)
    (lines,) = folder.rglob("round_metrics.jsonl")
    told = [one for line in lines.read_text().splitlines() for one in json.loads(line)["sites"]]
    assert sorted(one["name"] for one in told) == sorted(sites * rounds)
    assert {one["weight"] for one in told} == {1.0}
    for one in told:
        ((name, value),) = (metric.values() for metric in one["metrics"])
        assert name == "accuracy"
        assert abs(600 * value - round(600 * value)) > 1e-7  # an exact one is of so many records
    for site in sites:
        kinds = [type(one.event) for one in recorded(tmp_path / f"{site}.ledger")[1]]
        assert kinds == [SampledGaussianEvent, GaussianEvent] * rounds
    refused = [site for site in (*sites, "server") if "past the budget" in (folder / site / "log.txt").read_text()]
    assert refused == (sites if rounds == 1 else [])


def test_a_task_that_is_not_filtered_leaves_empty(simulated):
    """The clients' filter is there for a task of another name: what they trained does not reach the server."""
    ours = "job.to(ldp, site, filter_type=FilterType.TASK_RESULT, tasks=["
    folder = simulated({f'{ours}"train"])': f'{ours}"validate"])'})
    assert not list(folder.rglob("server.npy"))
    logs = "".join(path.read_text() for path in folder.rglob("site-1/log.txt"))
    assert "did not go through LdpFilter last" in logs


def test_a_site_has_the_filter_in_its_own_configuration(tmp_path, monkeypatch):
    """A job brings none, or one that puts the data in the place of what another gave: what leaves is a report."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    (policy,) = re.findall(r"^```json\n(.*?)^```$", (FOLDER / "nvflare.md").read_text(), re.M | re.S)
    for page, here in {
        "/var/lib/ldp/{site}.ledger": f"{tmp_path}/{{site}}",
        "4.0": str(SURE),
        '"R": 0.1': '"R": 0.05',
    }.items():
        assert page in policy
        policy = policy.replace(page, here)
    (tmp_path / "local" / "privacy.json").write_text(policy)
    manager = create_privacy_manager(Workspace(str(tmp_path), "site-1"), names_only=False)
    assert manager.is_policy_defined()
    (made,) = manager.components.values()
    runner, fl_ctx = run_by(made, Failing(result()), lambda data, _: result(secret="patient 4711"), monkeypatch)
    task = DXO(DataKind.WEIGHTS, dict(MODEL)).to_shareable()
    answer = runner._do_process_task(client_runner.TaskAssignment("train", "id", task), fl_ctx)
    assert "patient" not in repr(answer)
    numbers = from_shareable(LdpDecoder(SURE, R=0.05).process(answer, context())).data
    assert all(np.all(array > 0) for array in numbers.values())  # as was trained
    with Ledger(tmp_path / "site-1", epsilon=1000.0) as ledger:
        assert len(ledger.history) == 1


def test_a_components_tasks_are_reported_and_no_others(tmp_path):
    """Whatever filters of a job did to a result, and past the budget nothing of it leaves."""
    made = LdpFilter(SURE, R=0.1, ledger=str(tmp_path / "{site}"), budget=1000.0, tasks=["train"])
    codes = []
    for task in ("train", "validate", "train"):
        fl_ctx, upload = received(made), result()
        fl_ctx.set_prop(FLContextKey.TASK_NAME, task)
        fl_ctx.set_prop(FLContextKey.TASK_RESULT, upload)
        made.handle_event(EventType.AFTER_TASK_RESULT_FILTER, fl_ctx)
        codes.append(upload.get_return_code())
        assert "weights" not in repr(upload)
        assert (codes[-1] == ReturnCode.OK) == ("ldpkernels.report" in repr(upload))
    assert codes == [ReturnCode.OK, ReturnCode.TASK_RESULT_FILTER_ERROR, ReturnCode.TASK_RESULT_FILTER_ERROR]
    with pytest.raises(TypeError, match="pass a list of names"):
        LdpFilter(4.0, R=0.1, tasks="train")


def test_every_task_is_no_task_for_nvflare(monkeypatch, tmp_path):
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType

    for made in (LdpFilter(4.0, R=0.1), LdpDecoder(4.0, R=0.1)):
        for tasks in ({}, {"tasks": ["*"]}, {"tasks": []}):
            with pytest.raises(ValueError, match="tasks by name"):
                FedJob(name="x", min_clients=1).to(made, "site-1", filter_type=FilterType.TASK_RESULT, **tasks)
