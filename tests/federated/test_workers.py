# SPDX-License-Identifier: Apache-2.0
"""Workers: the bits of one process for any number of them, after a kill too; whatever goes wrong is said."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import ldpkernels
from benchmarks.papers import comparisons, private_sgd
from ldpkernels.__main__ import main
from ldpkernels.federated import data, han_xue, ldp_fed, ldp_fl, networks, runs, training
from ldpkernels.federated.dp_gan import Recipe
from ldpkernels.federated.training import Local
from ldpkernels.federated.workers import WorkerError, Workers
from tests.federated import crews
from tests.federated.test_han_xue import same

LOCAL = Local(batch=4, rate=0.05)
DRIVERS = {
    "ldp-fl": (ldp_fl, ldp_fl.Config(eps=2.0, C=0.0, R=0.3, fraction=0.8, local=LOCAL)),
    "ldp-fed": (ldp_fed, ldp_fed.Config(rounds=6, cycles=1, select=4, local=LOCAL)),
    "non-private": (comparisons, comparisons.Config("non-private", select=4, local=LOCAL)),
    "smc": (comparisons, comparisons.Config("smc", select=4, local=LOCAL)),
    "dpsgd": (comparisons, comparisons.Config("dpsgd", select=4, local=LOCAL)),
    "local": (comparisons, comparisons.Config("local", local=LOCAL)),
}


@pytest.fixture(scope="module")
def federation():
    """A network with convolutions, which trains clients one after another, and six of these."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6 * 12, 1, 28, 28, generator=generator)
    y = torch.randint(10, (6 * 12,), generator=generator)
    network = private_sgd.group_normalised(networks.network("ldp-fed-cnn", 0))
    return network, training.clients_of(x, y, list(torch.arange(6 * 12).split(12)), ldpkernels.key(1))


@pytest.fixture(scope="module")
def examples():
    """More than a worker counts at once, and not a multiple of it."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1203, 1, 28, 28, generator=generator), torch.randint(10, (1203,), generator=generator)


@pytest.fixture(scope="module")
def crew(federation, examples):
    """Two processes for all tests: to start one takes longer than any of them."""
    with training.crew(*federation, 2, test=examples) as workers:
        yield workers


def two_rounds(driver, federation, workers=None):
    network, clients = federation
    module, config = DRIVERS[driver]
    state = module.init(network, config, clients) if module is comparisons else module.init(network, config)
    for _ in range(2):
        state, _ = module.round_(state, clients, network, config, workers=workers)
    return state.weights


@pytest.mark.parametrize("driver", DRIVERS)
def test_workers_are_not_in_the_bits(driver, federation, crew):
    """Nor is their number: results come in the order of the items, and a task knows nothing of others."""
    alone = two_rounds(driver, federation)
    processes = [crew] if driver in ("ldp-fl", "ldp-fed") else []  # torch imports more in each for other drivers
    for workers in (*processes, crews.crew(*federation)):
        spread = two_rounds(driver, federation, workers)
        assert all(torch.equal(w, spread[name]) for name, w in alone.items())


def test_workers_count_what_one_process_counts(federation, examples, crew):
    network, _ = federation
    weights = training.weights_of(network)
    expected = training.accuracy(network, weights, *examples)
    assert 0 < expected < 1
    assert training.accuracy(network, weights, *examples, workers=crew) == expected
    with pytest.raises(ValueError, match="started with other examples"):
        training.accuracy(network, weights, examples[0].clone(), examples[1], workers=crew)


def test_workers_of_another_run_are_refused(federation, crew):
    network, clients = federation
    others = [client._replace(id=client.id) for client in clients]
    for run in ((network, others), (networks.network("ldp-fed-cnn", 0), clients)):
        with pytest.raises(ValueError, match="started with another network or with other clients"):
            two_rounds("ldp-fl", run, crew)


@pytest.mark.filterwarnings("ignore")  # scikit-learn's of a regression that did not converge in its time
def test_parties_at_once_end_as_parties_in_turn(tmp_path):
    """Interrupted among the generators' turns, with workers and without, and resumed the other way."""
    recipe, models = Recipe(steps=3, batch=16), ("tree", "tree", "logistic")
    config = han_xue.Config(parties=3, recipe=recipe, models=models, chunk=2, epochs=1, vote_sigma=0.5)
    world = han_xue.World(data.load("digits"), config)
    rounds = han_xue.rounds(config)

    def run(until, folder, workers=None):
        options = {"folder": tmp_path / folder, "resume": True, "described": {"config": config}, "progress": False}
        return runs.run(lambda s: han_xue.round_(s, world, workers=workers), han_xue.State(), until, **options)

    whole, rows = run(rounds, "whole")
    with Workers(1, world) as workers:
        at_once, others = run(rounds, "at once", workers)
        assert same(at_once, whole)
        assert [(row["part"], row["accuracy"]) for row in others] == [(row["part"], row["accuracy"]) for row in rows]
        for until in (1, 2, 3, 4):  # among the generators' turns, after them, the local models, the vote
            run(until, "then", None if until in (2, 4) else workers)
        assert same(run(rounds, "then", workers)[0], whole)
    with pytest.raises(ValueError, match="started with another world"):
        han_xue.round_(han_xue.State(), han_xue.World(data.load("digits"), config), workers=workers)


def test_results_come_in_the_order_of_the_items(crew):
    items = list(range(1, 200))
    assert list(crew.map(crews.power, 5, items)) == [crews.power(None, 5, item) for item in items]
    assert list(crew.map(crews.power, 6, [7])) == [crews.power(None, 6, 7)]
    assert list(crew.map(crews.power, 6, [])) == []


def test_an_error_is_that_of_the_task(crew):
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        list(crew.map(crews.inverse, None, [1, 0, 2]))
    assert "in inverse" in str(raised.value.__cause__)
    with pytest.raises(RuntimeError, match="Unsendable: noway"):
        list(crew.map(crews.unsendable, None, [1]))
    assert list(crew.map(crews.inverse, None, [2])) == [0.5]


def test_tensors_arrive_as_they_were_sent(crew):
    sent = [
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3).T,
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.tensor(3),
        torch.zeros(0, 4),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.complex64).conj(),
    ]
    for one, found in zip(sent, crew.map(crews.sent_back, None, sent), strict=True):
        assert torch.equal(one, found)
        assert (one.dtype, one.stride(), one.requires_grad) == (found.dtype, found.stride(), found.requires_grad)
        found.detach().zero_()  # it is the receiver's to write


def test_a_call_that_was_given_up_does_not_disturb_the_next(crew):
    results = crew.map(crews.power, 5, list(range(1, 100)))
    next(results)
    assert list(crew.map(crews.power, 6, [7, 11])) == [crews.power(None, 6, 7), crews.power(None, 6, 11)]


def test_a_dead_worker_is_a_clear_error():
    before = set(multiprocessing.active_children())
    with Workers(1, 3) as workers:
        results = workers.map(crews.power, 5, list(range(1, 1000)))
        next(results)
        (victim,) = set(multiprocessing.active_children()) - before
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"a worker process ended in the middle of its work: .* fewer workers"):
            list(results)
        with pytest.raises(WorkerError, match="these workers were closed"):
            list(workers.map(crews.power, 5, [7]))
    assert set(multiprocessing.active_children()) <= before


def test_a_script_without_a_guard_is_told(tmp_path, monkeypatch):
    """What this process began with is such a script, as far as a new worker knows: it would start workers itself."""
    script, begun = tmp_path / "unguarded.py", sys.modules["__main__"]
    script.write_text("from ldpkernels.federated.workers import Workers\nWorkers(1, 3)\n")
    monkeypatch.setattr(begun, "__spec__", None)
    monkeypatch.setattr(begun, "__file__", str(script), raising=False)
    with pytest.raises(WorkerError, match="A script that starts workers needs `if __name__ == '__main__':`"):
        Workers(1, 3)


def test_what_cannot_be_handed_over_is_refused():
    with pytest.raises(ValueError, match="define classes and functions at the top of a module"):
        Workers(1, lambda: None)
    with pytest.raises(ValueError, match="workers=0 of threads=1: use at least 1"):
        Workers(0, None)


def descendants(pid):
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # gone meanwhile
        children = []
    return {*children, *(one for child in children for one in descendants(child))}


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks /proc who lives")
def test_a_killed_run_leaves_no_worker_and_goes_on_to_the_same_bits(tmp_path):
    """By two workers, then by none, as is the run that nobody kills."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = ["fl", "ldp-fl", "--data", "tests.federated.crews:examples", "--model", "tests.federated.crews:network"]
    run += ["--together", "no", "--clients", "20", "--radius", "1", "--rounds", "16", "--quiet", "--out"]
    process = multiprocessing.get_context("forkserver").Process(
        target=main, args=([*run, str(killed), "--workers", "2"],)
    )
    process.start()
    deadline = time.monotonic() + 120
    while not (killed / "checkpoint.pt").exists() and time.monotonic() < deadline and process.is_alive():
        time.sleep(0.002)
    begun = {process.pid, *descendants(process.pid)}
    process.kill()
    process.join()
    assert len(begun) == 4  # the run, two workers, and the server whose forks they are
    while any(map(lives, begun)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(lives, begun))
    assert 1 <= torch.load(killed / "checkpoint.pt", weights_only=True)["state"]["round"] < 16
    assert main([*run, str(killed), "--workers", "1", "--resume"]) == 0
    assert main([*run, str(whole), "--workers", "1"]) == 0
    states = [torch.load(folder / "checkpoint.pt", weights_only=True)["state"] for folder in (killed, whole)]
    assert states[0]["round"] == states[1]["round"] == 16
    assert all(torch.equal(w, states[1]["weights"][name]) for name, w in states[0]["weights"].items())
