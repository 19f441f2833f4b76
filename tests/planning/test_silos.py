# SPDX-License-Identifier: Apache-2.0
# plan() for an example or a person: calibrated as others' accountants are, and shares of noise worth what they say.
import json
import math
import shlex

import dp_accounting
import dp_accounting.pld
import numpy as np
import pytest

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.accounting import Ledger, composed_epsilon
from ldpkernels.laws.distributed import FAR_APART, executed_row, rounded_square
from ldpkernels.planning import SiloSetting, plan
from ldpkernels.planning.answer import Unsuitable
from ldpkernels.planning.silos import shares_of_noise

SETTING = {"rounds": 3, "examples": 1000, "batch": 50, "epochs": 0.5}  # 10 steps a round, q = .05
PERSON = {**SETTING, "unit": "person", "most": 4}
SHARED = {**PERSON, "clients": 3, "weights": 100}


@pytest.fixture(scope="module")
def shared():
    return {one.name: one for one in plan(3.0, **SHARED)}


def test_the_multiplier_is_that_of_other_accountants():
    """dp-accounting's and Opacus's loss distributions have the total, and RDP's as ours are larger."""
    (one,) = plan(2.0, unit="example", **SETTING)
    sigma, q, steps = one.parameter, 0.05, 30
    accountant = dp_accounting.pld.PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    assert one.epsilon <= 2.0
    assert accountant.get_epsilon(1e-5) == pytest.approx(one.epsilon, rel=1e-3)
    accountants = pytest.importorskip("opacus.accountants")
    prv, rdp = accountants.PRVAccountant(), accountants.RDPAccountant()
    prv.history = rdp.history = [(sigma, q, steps)]
    assert prv.get_epsilon(1e-5) == pytest.approx(one.epsilon, abs=0.02)  # its eps_error is .01
    ours = composed_epsilon([(one.event, 30)], 1e-5, "rdp")
    assert rdp.get_epsilon(1e-5) == pytest.approx(ours, rel=2e-3)
    assert 2.0 < ours < 2.6


def test_a_number_less_noise_would_pass_the_total():
    (one,) = plan(2.0, unit="example", **SETTING)
    less = type(one.event)(one.parameter * 0.999, one.event.q)
    assert composed_epsilon([(less, 30)], 1e-5) > 2.0


def test_a_person_costs_what_an_example_does_and_each_says_who(shared):
    (example,) = plan(3.0, unit="example", **SETTING)
    each, summed = shared["noise at each silo"], shared["shares of noise"]
    assert example.parameter == each.parameter
    assert "one training example" in example.guarantee.neighbouring
    assert "a person, with all records of it" in each.guarantee.neighbouring
    assert "the federation's server included" in each.guarantee.adversary
    assert "sums" in summed.guarantee.adversary
    assert any("at least 3 silos" in text and "the total is" in text for text in summed.assumptions)
    assert all(any("batch" in text for text in one.assumptions) for one in shared.values())


def test_shares_are_worth_the_multiplier_and_lower_the_noise(shared):
    each, summed = shared["noise at each silo"], shared["shares of noise"]
    assert each.parameter <= summed.parameter <= each.parameter * 1.01 <= summed.law.multiplier(1.0) * 1.011
    assert summed.law.multiplier(1.0) >= summed.parameter
    share = summed.law.stddev * summed.law.unit  # of one silo, over C = 1
    assert share == pytest.approx(summed.parameter / math.sqrt(3), rel=0.02)
    assert summed.noise == pytest.approx(each.noise / math.sqrt(3), rel=0.01)
    assert summed.law.with_clients(2).multiplier(1.0) < 0.83 * summed.parameter  # one who tells


def test_two_sums_that_a_row_tells_apart_are_no_further_as_integers(shared):
    """Rounding alone, by the same draws: what the law calls apart, it is; and a longer row is further."""
    law, key = shared["shares of noise"].law, ldpkernels.key(1)
    quiet = ldpkernels.DistributedGaussian(100, law.norm, 3, law.grid_norm, 1.0, 32, 4)
    rng = np.random.default_rng(0)
    rest = rng.standard_normal(100) * law.rows_norm / 25
    row = rng.standard_normal(100)
    row /= np.linalg.norm(row)
    apart = math.sqrt(rounded_square(executed_row(1.0 / law.unit, law.grid_norm, law.padded), law.padded, FAR_APART))

    def integers(x):
        return ldpkernels.updates.encode(x, quiet, key, generator=ldpkernels.key(7)).astype(np.int32)

    found = [np.linalg.norm((integers(rest + c * row) - integers(rest)).astype(float)) for c in (1.0, 1.1)]
    assert found[0] <= apart < found[1]


def test_the_lines_of_a_candidate_keep_its_total(shared):
    """Those of noise at each silo are executed: three rounds are in the budget, and a fourth is not."""
    torch = pytest.importorskip("torch")
    lines = shared["noise at each silo"].deploy.replace('"/var/lib/ldp/silo.ledger"', "None")
    assert "shares=law" in shared["shares of noise"].deploy
    model = torch.nn.Linear(2, 1)
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    names |= {"loss": torch.nn.functional.mse_loss, "data": (torch.randn(40, 2), torch.randn(40, 1))}
    names |= {"persons": torch.arange(40) // 2}
    exec(lines, names)
    call = lines.splitlines()[-1]
    exec(f"{call}\n{call}", names)
    assert names["ledger"].epsilon == shared["noise at each silo"].epsilon
    with pytest.raises(ldpkernels.accounting.BudgetExceeded):
        exec(call, names)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"most": None}, "most = None with unit = 'person'"),
        ({"batch": 2000}, "batch = 2000.* is more than the examples = 1000"),
        ({"clients": 3}, "shares of noise need both"),
        ({"unit": "patient"}, "unit = 'patient' is unknown"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_bad_settings_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        plan(2.0, **{**PERSON, **wrong})


def test_what_is_of_another_unit_is_named():
    with pytest.raises(TypeError, match=r"unit='person': .*trust.* it takes .*examples"):
        plan(2.0, **PERSON, trust="local")
    with pytest.raises(TypeError, match=r"unit='client': .*examples"):
        plan(2.0, rounds=1, clients=3, weights=9, trust="local", norm=1.0, examples=9)


def test_too_many_weights_for_the_noise_are_left_out():
    with pytest.raises(Unsuitable, match="too many for this much noise on a grid"):
        shares_of_noise(SiloSetting(0.01, 1e-5, "example", rounds=100, examples=10, batch=10, clients=1, weights=2**28))


def test_the_command_says_the_plan(capsys):
    line = "plan --unit person --epsilon 3 --rounds 3 --examples 1000 --batch 50 --epochs .5 --most 4 --json"
    assert main(shlex.split(line)) == 0
    data = json.loads(capsys.readouterr().out)
    (ours,) = plan(3.0, **PERSON)
    assert data["candidates"] == [json.loads(json.dumps(ours.to_dict()))]
    for wrong, said in (
        (line.replace("--examples 1000", ""), "--unit person takes --examples"),
        (f"{line} --radius 1", "leave them out"),
        ("plan --epsilon 3 --rounds 3 --radius 1", "--clients and --weights"),
    ):
        with pytest.raises(SystemExit):
            main(shlex.split(wrong))
        assert said in capsys.readouterr().err


def test_the_ledger_of_a_plan_counts_its_event(shared):
    for one in shared.values():
        ledger = Ledger(None, epsilon=3.0)
        assert ledger.spend(one.event, times=30).epsilon == one.epsilon
