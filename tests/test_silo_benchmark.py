# SPDX-License-Identifier: Apache-2.0
# benchmarks/silo on scikit-learn's digits: a table and a picture, resumed, and hospitals as they are described.
import json
import sys

import pytest
import torch

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")
from benchmarks.silo import __main__ as benchmark
from benchmarks.silo.world import MOST, SILOS, world
from ldpkernels.accounting import sampled_gaussian


def test_patients_are_in_one_silo_and_have_one_to_eight_records():
    made = world("digits", None, 0)
    people = [set(silo.persons.tolist()) for silo in made.silos]
    assert len(people) == SILOS
    assert len(set().union(*people)) == sum(map(len, people))
    counts = torch.cat([silo.persons for silo in made.silos]).bincount()
    assert counts.min() == 1
    assert counts.max() == MOST
    assert max(map(len, people)) > 3 * min(map(len, people))


@pytest.mark.filterwarnings("ignore")
def test_a_small_version_runs_and_is_resumed(tmp_path, monkeypatch, capsys):
    noise = benchmark.Noise(3.0, 2.0, 2.1, 3.0, 2.0, 30.0)
    asked = []
    monkeypatch.setattr(benchmark, "calibrated", lambda task, epsilon: asked.append(epsilon) or noise)
    options = ["silo", "--epsilon", "3", "--seeds", "0", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", options)
    benchmark.main()
    found = {one["way"]: one for one in map(json.loads, (tmp_path / "digits.jsonl").read_text().splitlines())}
    assert found.keys() == benchmark.WAYS.keys()
    assert found["ours, shares of noise"]["accuracy"] > found["each silo alone"]["accuracy"]
    assert found["Flower and Opacus by hand"]["honest"] == 30.0
    table = (tmp_path / "digits.md").read_text()
    assert all(f"| {way} | " in table for way in found)
    assert (tmp_path / "digits.svg").stat().st_size > 10_000
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    monkeypatch.setattr(benchmark, "measured", lambda *_: pytest.fail("it was stored"))
    benchmark.main()
    assert asked == [3.0]
    assert "eps 3 seed 0" in capsys.readouterr().out


def test_records_that_are_drawn_alone_cost_a_patient_more():
    """One record each is DP-SGD; eight are more than twice that."""
    alone = benchmark.of_a_patient(4.0, 0.1, 15, 1)
    assert alone == pytest.approx(sampled_gaussian(4.0, 0.1, 15).epsilon, rel=0.02)
    assert benchmark.of_a_patient(4.0, 0.1, 15) > 2 * alone
