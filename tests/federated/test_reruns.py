# SPDX-License-Identifier: Apache-2.0
"""LDP-FL and LDP-Fed run again: the same seed is the same run, interrupted or not, and a checkpoint is its run's."""

import dataclasses

import pytest
import torch

import ldpkernels
from ldpkernels.federated import ldp_fed, ldp_fl, networks, runs, training
from ldpkernels.federated.training import Local

ADAPTIVE = {"method": "quantile", "growth": 1.5}
DRIVERS = {
    "ldp-fl": (ldp_fl, ldp_fl.Config(eps=2.0, adaptive=True, ranges=ADAPTIVE, local=Local(batch=5))),
    "ldp-fed": (ldp_fed, ldp_fed.Config(0.1, 4, cycles=2, select=2, selection="poisson", local=Local(batch=4))),
}


@pytest.fixture(params=DRIVERS)
def driver(request):
    return request.param


def run(driver, folder=None, *, rounds=4, resume=False, die_after=None, **changes):
    module, config = DRIVERS[driver]
    config = dataclasses.replace(config, **changes)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 1, 8, 8, generator=generator), torch.randint(10, (24,), generator=generator)
    network, key = networks.network("digits-mlp", 0), ldpkernels.key(config.seed)
    clients = training.clients_of(x, y, list(torch.arange(24).split(6)), key)

    def step(state):
        if state.round == die_after:
            raise KeyboardInterrupt
        after, row = module.round_(state, clients, network, config)
        return after, {**row, "accuracy": training.accuracy(network, after.weights, x, y)}

    state = module.init(network, config)
    options = {"folder": folder, "resume": resume, "described": {"config": config}, "progress": False}
    return runs.run(step, state, rounds, **options)


def same(a, b):
    (state, rows), (other, other_rows) = a, b
    for field in dataclasses.fields(state):
        mine, its = getattr(state, field.name), getattr(other, field.name)
        assert mine == its if field.name != "weights" else all(torch.equal(w, its[name]) for name, w in mine.items())
    without_time = [[{k: v for k, v in row.items() if k != "seconds"} for row in r] for r in (rows, other_rows)]
    assert without_time[0] == without_time[1]


def test_the_same_seed_is_the_same_run(driver):
    same(run(driver), run(driver))
    assert not torch.equal(run(driver, seed=1)[0].weights["1.weight"], run(driver)[0].weights["1.weight"])


def test_resuming_equals_no_interruption(driver, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(driver, tmp_path, die_after=2)
    (tmp_path / "checkpoint.new").write_bytes(b"the half of a checkpoint that was being written")
    same(run(driver, tmp_path, resume=True), run(driver))
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0].startswith("round,clients,")
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4"]


def test_a_checkpoint_is_not_taken_for_another_runs(tmp_path):
    run("ldp-fl", tmp_path, rounds=2)
    with pytest.raises(runs.CheckpointError, match="exists: resume that run, or give another folder"):
        run("ldp-fl", tmp_path)
    with pytest.raises(runs.CheckpointError, match=r"belongs to another run \(config.eps: 2.0 then, 3.0 now"):
        run("ldp-fl", tmp_path, resume=True, eps=3.0)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(runs.CheckpointError, match="is not a checkpoint, or is damaged"):
        run("ldp-fl", tmp_path, resume=True)
