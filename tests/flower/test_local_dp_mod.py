# SPDX-License-Identifier: Apache-2.0
"""Where Flower's own LocalDpMod lets a client's update leave as it is, LdpMod sends a report, or refuses by name.

Each test shows both, so that it says when Flower mends its mod.
"""

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

import ldpkernels
from ldpkernels.flower import LdpMod, records
from ldpkernels.releases.choice import released

RECEIVED = {"weight": np.zeros(50, np.float32), "scale": np.array(0.25, np.float32)}
RANGES = (0.0, 0.1)


def asked(received, release):
    terms = records.terms(release, "updates", 1, {n: a for n, a in received.items() if a.dtype.kind == "f"}, RANGES)
    message = Message(RecordDict({"arrays": records.record_of(received), "ldp": terms}), 7, "train")
    message.metadata.__dict__["_message_id"] = "1"
    return message


def answered(mod, received, trained):
    def train(message, context):
        return Message(RecordDict({"arrays": records.record_of(trained)}), reply_to=message)

    return mod(asked(received, released(1.0, "two-point")), Context(1, 7, {}, RecordDict(), {}), train)


def by_flower(received, trained):
    np.random.seed(0)  # noqa: NPY002 - what LocalDpMod draws from
    reply = answered(LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5), received, trained)
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


def by_us(received, trained):
    """The report's values."""
    reply = answered(LdpMod(1.0, generator=lambda message, context: ldpkernels.key(5)), received, trained)
    return ldpkernels.aggregate([records.report_in(reply.content)])


OUTPUTS = set(ldpkernels.TwoPoint(1.0).outputs(0.0, float(np.float32(0.1))))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_weight_without_dimensions():
    """LocalDpMod adds noise to a NumPy scalar, which does not change in place: the weight is released."""
    trained = {"weight": RECEIVED["weight"] + np.float32(0.01), "scale": np.array(0.375, np.float32)}
    theirs = by_flower(RECEIVED, trained)
    assert theirs["scale"] == np.float32(0.375)
    assert not np.isclose(theirs["weight"], trained["weight"], atol=1e-3).any()
    ours = by_us(RECEIVED, trained)
    assert ours["scale"].shape == ()
    assert float(ours["scale"]) in {float(np.float32(value)) for value in OUTPUTS}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_nan_stops_no_clipping():
    """With one NaN LocalDpMod's norm is NaN, min(1, NaN) is 1, and a large update passes its noise by far."""
    trained = {"weight": np.full(50, 1e6, np.float32), "scale": np.array(np.nan, np.float32)}
    theirs = by_flower(RECEIVED, trained)
    assert np.allclose(theirs["weight"], 1e6, rtol=1e-3)
    for nan_at in ("scale", "weight"):
        trained = {"weight": np.full(50, 1e6, np.float32), "scale": np.array(0.3, np.float32)}
        trained[nan_at] = np.where(np.arange(trained[nan_at].size).reshape(trained[nan_at].shape) == 0, np.nan, 1e6)
        trained[nan_at] = trained[nan_at].astype(np.float32)
        ours = by_us(RECEIVED, trained)
        assert all(abs(value) <= max(OUTPUTS) * 1.001 for value in ours["weight"])


@pytest.mark.parametrize("mechanism", ["privunitg", "k-of-d", "gaussian"])
def test_one_nan_stops_no_clipping_of_a_vector(mechanism):
    release = released(1.0, mechanism, norm=1.0)
    lengths = []
    for first in (np.nan, 0.0):
        update = {"weight": np.full(50, 1e6, np.float32)}
        update["weight"][0] = first
        report = release.report(update, RANGES, ldpkernels.key(3))
        total = release.total(update, RANGES)
        total.add(report)
        lengths.append(np.linalg.norm(total.mean()["weight"]))
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-6)


def test_arrays_of_integers():
    """LocalDpMod cannot even clip them in place: training's work is lost to an exception, whose words leave.

    Where it could, noise rounded to integers would not be the noise that it accounts for.
    """
    received = {**RECEIVED, "steps": np.array([3, 4])}
    trained = {**RECEIVED, "steps": np.array([9, 12])}
    with pytest.raises(TypeError, match="Cannot cast"):
        by_flower(received, trained)
    reply = answered(LdpMod(1.0), received, trained)
    assert reply.has_error()
    assert "'steps' has dtype int64" in reply.error.reason
