# SPDX-License-Identifier: Apache-2.0
# Reports and aggregates in several threads, copied and pickled.
import copy
import math
import pickle
import threading
from functools import partial

import numpy as np
import pytest

from ldpkernels import Aggregate, aggregate, expected
from ldpkernels.laws.registry import MECHANISMS
from tests.uploads import MODEL, same, upload


def near(one, other):
    """But for the last rounding, which depends on the number of clients."""
    return all(np.allclose(value, other[name], rtol=0, atol=1e-6) for name, value in one.items())


def at_once(*calls):
    """All calls in threads of their own, started together; the first exception, if there is one."""
    barrier, errors = threading.Barrier(len(calls)), []

    def run(call):
        barrier.wait()
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    if errors:
        raise errors[0]


def add_often(total, one):
    for _ in range(50):
        total.add(one)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_threads_that_add_lose_nothing(mechanism):
    model = {"w": np.zeros(3000)}
    sent = [upload(i, model, eps=2.0, mechanism=mechanism) for i in range(4)]
    wanted = aggregate(sent * 50)
    for _ in range(5):
        total = Aggregate()
        at_once(*[partial(add_often, total, one) for one in sent])
        assert total.clients == 200
        assert same(total.mean(), wanted)


def test_everything_else_while_threads_add():
    one, total, found = upload(), Aggregate(), []
    total.add(one)
    wanted = total.mean()

    def read():
        for _ in range(40):
            for other in (Aggregate.from_bytes(total.to_bytes()), copy.deepcopy(total)):
                found.append(near(other.mean(), wanted))
            found.append(near(total.mean(), wanted))
            assert "15 weights" in repr(total) or "17 weights" in repr(total)

    at_once(*[lambda: [total.add(one, one.to_bytes()) for _ in range(100)]] * 3, read)
    assert (total.clients, len(found), all(found)) == (601, 120, True)


def test_two_aggregates_that_merge_each_other_do_not_wait_for_ever():
    one, other = Aggregate(), Aggregate()
    one.add(upload(0))
    other.add(upload(1))
    at_once(*[lambda: [one.merge(other) for _ in range(15)], lambda: [other.merge(one) for _ in range(15)]] * 2)
    fibonacci = {one.clients, other.clients}
    assert max(fibonacci) > 30  # some order of 60 additions
    assert math.isfinite(one.mean()["w"].sum())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_copies_and_pickles_share_nothing(copied, mechanism):
    expect = expected(MODEL, 0.0, 1.0, 1.0, mechanism=mechanism)
    total = Aggregate(expect, on_bad="skip")
    assert copied(total).clients == 0
    total.add(upload(0, mechanism=mechanism), b"nonsense")
    other = copied(total)
    assert (other.expect, other.skipped, other.reasons) == (expect, 1, total.reasons)
    assert repr(other) == repr(total)
    other.add(upload(1, mechanism=mechanism), b"more")
    assert (other.clients, other.skipped, total.clients, total.skipped) == (2, 2, 1, 1)
    assert same(total.mean(), aggregate([upload(0, mechanism=mechanism)]))
    assert same(other.mean(), aggregate([upload(i, mechanism=mechanism) for i in range(2)]))
    one = copied(upload(mechanism=mechanism))
    assert one.to_bytes() == upload(mechanism=mechanism).to_bytes()
