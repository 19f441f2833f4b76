# SPDX-License-Identifier: Apache-2.0
"""A ClientApp under audit, as its own server would ask it: LdpMod passes, and what leaks beside it is named."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg

import ldpkernels
from ldpkernels.accounting import RandomizedResponseEvent, composed_epsilon
from ldpkernels.audit import audit_client
from ldpkernels.flower import LdpFedAvg, LdpMod, records, rehearsed

pytestmark = pytest.mark.usefixtures("fixed_keys")
A, B = {"partition-id": 0}, {"partition-id": 1}
MODEL = {"w": np.zeros((2, 5), np.float32), "scale": np.array(0.25, np.float32)}


def app_of(mods, raises=False):
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        side = 2 * context.node_config["partition-id"] - 1
        if raises and side > 0:
            raise ValueError("no label 7")
        step = np.float32(side * context.run_config.get("step", 0.1))
        received = {name: a.numpy() for name, a in message.content["arrays"].items()}
        steps = {
            name: step * np.linspace(1, 2, a.size, dtype=np.float32).reshape(a.shape) for name, a in received.items()
        }
        trained = {name: Array(np.asarray(a + steps[name], a.dtype)) for name, a in received.items()}
        metrics = MetricRecord({"loss": float(0.5 + step), "num-examples": 10})
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)

    return app


def audit(mods, strategy=None, *, model=MODEL, raises=False, eps=None, runs=400, **more):
    strategy = strategy or LdpFedAvg(1.0, R=0.1)
    client = rehearsed(app_of(mods, raises), strategy, records.record_of(model), **more)
    return audit_client(client, A, B, eps=eps, runs=runs)


@pytest.mark.parametrize("raises", [False, True])
def test_a_mod_with_a_ledger_passes_whether_training_fails_or_not(raises, tmp_path):
    mod = LdpMod(1.0, ledger=tmp_path / "{partition-id}.ledger", budget=100.0)
    found = audit([mod], raises=raises, rounds=2).check()
    assert found.source == "its ledger"
    assert found.claimed == pytest.approx(composed_epsilon([(RandomizedResponseEvent(1.0), 22)], 1e-5), rel=1e-6)
    assert found.measured > 0.3
    assert list(tmp_path.iterdir()) == []


def test_the_apps_configuration_is_its_runs():
    assert audit([LdpMod(1.0)], run_config={"step": 0.0}).measured == 0


@pytest.mark.parametrize(
    ("mods", "strategy", "more", "words"),
    [
        ([LdpMod(1.0, metrics=["loss"])], None, {}, "0/metrics/loss is always 0.4"),
        ([], FedAvg(), {"raises": True, "eps": 1e6}, "always 0/error: error"),
        ([], FedAvg(), {"eps": 1e6}, "numbers of 0/arrays/w are never perturbed"),
        (
            [LdpMod(1.0, generator=lambda message, context: ldpkernels.key(3))],
            None,
            {"model": {"w": np.zeros((15, 16), np.float32)}},
            "the noise repeats",
        ),
    ],
    ids=["a metric on the list", "an error", "no mod", "a key that repeats"],
)
def test_what_leaks_is_named(mods, strategy, more, words):
    assert any(words in sentence for sentence in audit(mods, strategy, **more).leaks)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_weight_that_flowers_own_mod_leaves_as_it_is_is_found():
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    found = audit([mod], FedAvg(), eps=1.0)
    assert any(sentence.startswith("0/arrays/scale leaks") for sentence in found.leaks)
    assert not any("0/arrays/w" in sentence for sentence in found.leaks)


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ValueError, match=r"the server says eps=2\.0, and this client was set up with 1\.0"):
        audit([LdpMod(1.0)], LdpFedAvg(2.0, R=0.1))
    with pytest.raises(ValueError, match="masked"):
        audit([LdpMod(1.0)], LdpFedAvg(1.0, R=0.1, threshold=2))
