# SPDX-License-Identifier: Apache-2.0
# The lines that a candidate gives parse and construct what they name, and a ledger under them ends at the total.
import ast
import importlib.util
import re
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

import ldpkernels
from ldpkernels.accounting import LOCAL, composed_epsilon
from ldpkernels.planning.deployment import BY_HAND, LEDGERS, NO_SHUFFLER, TOO_MANY, deployment
from ldpkernels.releases.choice import released
from tests.planning.test_calls import CANDIDATES, IDS, N

FLOWER = importlib.util.find_spec("flwr") is not None


@pytest.mark.parametrize("one", CANDIDATES, ids=IDS)
def test_the_lines_run(one, tmp_path):
    lines = str(one.deploy)
    ledgers = re.findall('ledger="(.*?)"', lines)
    assert len(ledgers) == ("LdpMod" in lines)
    assert all(PurePosixPath(path).is_absolute() for path in ledgers)  # from another folder it was another budget
    tree = ast.parse(lines)
    assert eval(one.deploy.law, {"ldpkernels": ldpkernels}) == one.law
    if FLOWER:
        names = {}
        kept = [line for line in lines.splitlines() if "distributed" not in line]
        exec("\n".join(kept).replace(LEDGERS, f"{tmp_path}/"), names)
        assert names["mod"].release.terms == names["strategy"].release.terms
    assert any("LdpMod" in ast.unparse(node) for node in tree.body)


def deployed(name, trust, epsilon=16.0):
    return next(c for c in CANDIDATES if (c.name, c.setting.trust, c.setting.epsilon) == (name, trust, epsilon)).deploy


def test_each_trust_has_its_own_lines():
    assert deployed("distributed-gaussian", "secure-aggregation").server == f"law=law, threshold={N + 1}"
    assert deployed("central gaussian", "central").client == "central=law"
    assert deployed("privunitg", "local").server == "law=law"
    assert deployed("two-point", "local").server == "law=law, R=0.25"
    assert "distributed.mean(update, C=0.0, R=0.25, eps=" in deployed("two-point", "local").ranks
    assert "distributed.mean(update, law=law, secure=True)" in deployed("skellam", "secure-aggregation").ranks


def test_without_a_shuffler_a_sum_of_reports_serves_or_the_ledger_says_what_is_lost():
    summed = deployed("two-point", "shuffled")
    assert f"threshold={N + 1}" in summed.client
    assert "budget=16.0" in summed.client
    alone = ldpkernels.plan(8.0, rounds=20, clients=200, weights=9, trust="shuffled", norm=1.0)
    code = next(one for one in alone if one.name == "projected-code").deploy
    assert (code.client, code.notes) == ("", (NO_SHUFFLER, BY_HAND))  # Flower's server reads codes by their nodes
    alone = next(one for one in alone if one.name == "privunitg").deploy
    assert summed.notes[0] == alone.notes[0] == NO_SHUFFLER
    assert 50.0 < float(alone.client.partition("budget=")[2].partition(",")[0]) < 60.0
    assert deployed("privunitg", "shuffled").notes == ()  # whose total is the local one


def test_a_total_that_needs_no_shuffler_is_stated_in_the_local_view():
    """Of four clients it was 1e-8 less in the shuffled view, and that of lines that send each report by itself."""
    found = ldpkernels.plan(2.0, rounds=1, clients=4, weights=9, trust="shuffled", norm=1.0)
    for name in ("privunitg", "projected-code"):  # of a code there are lines as well: nobody has to hide its node
        one = next(one for one in found if one.name == name)
        assert one.deploy.notes == ()
        assert "budget=2.0" in one.deploy.client
        assert one.guarantee.adversary == LOCAL.adversary


@pytest.mark.parametrize("trust", ["shuffled", "secure-aggregation"])
@pytest.mark.parametrize("given", [{"threshold": 20}, {"threshold": 20, "participation": 0.5}, {"at_least": 20}])
def test_a_ledger_under_the_lines_has_the_rounds_that_were_planned(trust, given):
    """With trust="shuffled" eps was of all clients, whatever the sum's threshold: no round was within the total."""
    found = ldpkernels.plan(2.0, rounds=3, clients=60, weights=9, trust=trust, norm=1.0, **given)
    one = next(one for one in found if one.name == "two-point")
    asked = eval(f"dict({one.deploy.client})", {"law": one.law})
    release = released(law=one.law, threshold=asked["threshold"])
    assert any(release.against in note for note in one.deploy.notes)
    event, times = release.event([9])
    assert one.setting.sure == 20 - ("threshold" in given)
    assert 1.9 < composed_epsilon([(event, 3 * times)], asked["delta"]) <= one.epsilon <= asked["budget"] == 2.0


def test_more_clients_than_a_secure_sum_has_are_told():
    for one in CANDIDATES:
        many = replace(one.setting, clients=10**5)
        if one.law and one.setting.trust == "secure-aggregation":
            assert deployment(many, one.law).notes == (TOO_MANY,)
        if (one.name, one.setting.trust) == ("two-point", "shuffled"):
            assert deployment(many, one.law).notes == (NO_SHUFFLER, TOO_MANY)
