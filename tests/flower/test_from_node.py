# SPDX-License-Identifier: Apache-2.0
"""Numbers of the node's owner: read where they are set down, narrowed by a run, and never widened by one."""

import logging
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict, parse_config_args

import ldpkernels
from ldpkernels.accounting import Ledger
from ldpkernels.flower import LdpFedAvg, LdpMod
from ldpkernels.flower.node import settings_of
from ldpkernels.secure_sums import new_identity
from tests.flower.grid import LocalGrid
from tests.flower.test_attacks import START, answering, message_of, never
from tests.flower.test_rounds import NODES, app_of, started


def answer(message, node, run=None, train=None, mod=None):
    return (mod or LdpMod.from_node())(
        message, Context(1, NODES[0], node, RecordDict(), run or {}), train or answering()
    )


@pytest.fixture
def site(tmp_path):
    """A file of the owner's, and the configuration that names it."""
    path = tmp_path / "site.toml"
    path.write_text(f"eps = 2.0\nledger = '{tmp_path}/{{partition-id}}.ledger'\nbudget = 100\nmetrics = ['accuracy']\n")
    return {"ldp": str(path), "partition-id": 3}


def test_a_node_reports_by_its_own_numbers(site, tmp_path):
    reply = answer(message_of(eps=2.0), site)
    assert not reply.has_error()
    assert 0 < reply.content["metrics"]["ldp-epsilon"] < 100
    assert reply.content["metrics"]["accuracy"] == 0.0
    with Ledger(tmp_path / "3.ledger", epsilon=100.0) as ledger:
        assert len(ledger.history) == 1
    words = answer(message_of(eps=4.0), site, train=never).error.reason
    assert words == "the server says eps=4.0, and this client was set up with 2.0"
    assert not answer(message_of(eps=3.0), {"ldp.eps": 3.0}).has_error()


def test_one_mod_serves_nodes_of_different_owners(site):
    mod = LdpMod.from_node()
    assert not answer(message_of(eps=2.0), site, mod=mod).has_error()
    assert not answer(message_of(eps=3.0), {"ldp.eps": 3.0}, mod=mod).has_error()
    assert answer(message_of(eps=3.0), site, mod=mod, train=never).has_error()


def test_a_file_that_was_changed_is_read_again(site):
    mod = LdpMod.from_node()
    assert not answer(message_of(eps=2.0), site, mod=mod).has_error()
    path = Path(site["ldp"])
    path.write_text(path.read_text().replace("eps = 2.0", "eps = 0.5"))
    assert answer(message_of(eps=2.0), site, mod=mod, train=never).has_error()
    assert not answer(message_of(eps=0.5), site, mod=mod).has_error()


def test_an_app_cannot_choose_what_a_round_costs(site):
    """Rounds of a size that is chosen by what came before are in no composition: the ledger takes the first one's."""
    smaller = dict(list(START.items())[:1])
    assert not answer(message_of(eps=2.0), site, mod=LdpMod.from_node(like=START)).has_error()
    mod = LdpMod.from_node(like=smaller)
    reply = answer(message_of(eps=2.0, start=smaller), site, mod=mod, train=never)
    assert "whose names, shapes and dtypes are fixed" in reply.error.reason


def test_a_run_asks_for_less_and_not_for_more(site, tmp_path, caplog):
    spent = answer(message_of(eps=2.0), site, {"ldp.budget": 99.0, "lr": 0.1}).content["metrics"]["ldp-epsilon"]
    words = answer(message_of(eps=2.0), site, {"ldp.budget": spent}, train=never).error.reason
    assert f"past the budget of {spent:g}" in words
    with Ledger(tmp_path / "3.ledger", epsilon=100.0) as ledger:  # the owner's, which the run's end is not written to
        assert len(ledger.history) == 1
    for run in (
        {"ldp.eps": 1.0},
        {"ldp.budget": 101},
        {"ldp.ledger": "/tmp/mine"},
        {"ldp.budget": "2"},
        {"ldp.norm": 1.0},
    ):
        caplog.clear()
        reply = answer(message_of(eps=2.0), site, run, train=never)
        assert reply.error.reason == "this client's own configuration cannot be used; its log says why"
        (name,) = run
        assert f"the run's configuration: {name} = {run[name]!r}" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eps = '2'", "eps = '2' is not a number: write it without quotes"),
        ("eps = true", "eps = True is not a number"),
        ("eps = -1.0", "eps=-1.0 must be a finite number above 0"),
        ("epsilon = 2.0", "epsilon = 2.0 is unknown: keys are eps, norm"),
        ("eps = 2.0\nledger = 5", "ledger = 5 is not text"),
        ("eps = 2.0\nledger = '/a'", "ledger and budget go together"),
        ("eps = 2.0\nledger = 'a'", "ledger = 'a' is not an absolute path"),
        ("eps = 2.0\nmetrics = 'loss'", "metrics = 'loss' is not a list of names"),
        ("eps = 2.0\nthreshold = 2.5", "threshold = 2.5 is not a whole number"),
        ("eps = 2.0\nadaptive = 1", "adaptive = 1 is neither true nor false"),
        ("law = 'VectorGaussian'", "is not a table: begin it with [law]"),
        ("[law]\nkind = 'Laplace'", "kind='Laplace' must be one of TwoPoint"),
        ("[law]\nkind = 'VectorGaussian'", "is written with sigma, dimension, norm"),
        ("threshold = 5\n[roster]\n1 = 'ab'", "a key is 64 hexadecimal digits"),
        ("threshold = 5\n[roster]\none = 'ab'", "'one' is not a client's number"),
        ("threshold = 5\n[identity]\nnumber = 1", "needs number and key"),
        ("threshold = 5\n[identity]\nnumber = 1\nkey = '/no/such'", "the key can't be read"),
        ("eps = ", "can't be read"),
        ("", "has no ldp"),
    ],
)
def test_an_error_names_the_file_the_key_the_value_and_the_cure(tmp_path, text, words, caplog):
    """In the client's own log: of its paths and numbers the server learns nothing."""
    path = tmp_path / "site.toml"
    path.write_text(text)
    with caplog.at_level(logging.ERROR, "ldpkernels.flower"):
        reply = answer(message_of(), {"ldp": str(path)}, train=never)
    assert words in caplog.text
    assert not text or str(path) in caplog.text
    assert reply.error.reason == "this client's own configuration cannot be used; its log says why"


def test_flower_reads_what_the_page_says():
    """Its command's --node-config, and the table of an app's configuration."""
    node = parse_config_args(["partition-id=0 ldp.eps=4.0 ldp.budget=1000 ldp.ledger='/here/{partition-id}.ledger'"])
    found = settings_of(node, flatten_dict({"lr": 0.1, "ldp": {"budget": 10.0}}))
    assert found.settings == {"eps": 4.0, "budget": 1000.0, "ledger": "/here/{partition-id}.ledger"}
    assert found.limit == 10.0
    assert parse_config_args(["partition-id=0 ldp='/etc/ldp/site.toml'"])["ldp"] == "/etc/ldp/site.toml"


def test_no_configuration_and_two_of_them(site):
    with pytest.raises(ValueError, match=r"start the SuperNode with --node-config \"ldp='/path/of.toml'\""):
        settings_of({"partition-id": 1}, {})
    with pytest.raises(ValueError, match="eps is in the node's configuration too"):
        settings_of({**site, "ldp.eps": 1.0}, {})
    with pytest.raises(ValueError, match=r"/no/such.toml, of the node's configuration ldp, can't be read"):
        settings_of({"ldp": "/no/such.toml"}, {})


def test_a_secure_sum_of_nodes_with_files_of_their_own(tmp_path):
    """A law by what its `calibrated` takes, a roster and a private key: all from files."""
    identities = [new_identity() for _ in range(6)]
    law = {"eps": 8.0, "delta": 1e-5, "dimension": 34, "clients": 4, "invited": 6, "norm": 0.5}
    roster = {i: public for i, (_, public) in enumerate(identities)}
    nodes = {}
    for i, (private, _) in enumerate(identities):
        (tmp_path / f"{i}.key").write_text(private.hex() + "\n")
        lines = ["threshold = 5", f"ledger = '{tmp_path}/{i}.ledger'", "budget = 8.0", "[law]"]
        lines += ["kind = 'DistributedGaussian'", *(f"{name} = {value}" for name, value in law.items())]
        lines += ["[roster]", *(f"{number} = '{key.hex()}'" for number, key in roster.items())]
        lines += ["[identity]", f"number = {i}", f"key = '{tmp_path}/{i}.key'"]
        (tmp_path / f"{i}.toml").write_text("\n".join(lines))
        nodes[NODES[i]] = str(tmp_path / f"{i}.toml")
    grid = LocalGrid(app_of(LdpMod.from_node()), NODES[:6])
    for node, path in nodes.items():
        grid.contexts[node].node_config["ldp"] = path
    made = ldpkernels.DistributedGaussian.calibrated(law.pop("eps"), law.pop("delta"), **law)
    result = started(LdpFedAvg(law=made, threshold=5, roster=roster), grid, rounds=2)
    assert [m["reports"] for m in result.train_metrics_clientapp.values()] == [6, 0]  # which spent all of it
    assert "past the budget" in grid.received[-1].error.reason
