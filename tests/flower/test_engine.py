# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's driver with its clients on Flower's nodes: the bits of one process, and what ends a run."""

import argparse
import time

import pytest
import torch

import ldpkernels
from ldpkernels.commands.ldp_fl import add_parser, main
from ldpkernels.federated import data, ldp_fl, networks, training
from ldpkernels.flower import engine
from tests.flower.grid import LocalGrid

CLIENTS = 6


def made(name="digits-mlp"):
    digits = data.load("digits", None)
    parts = data.deal(digits.train_y, CLIENTS, seed=0)
    return networks.network(name, 0), training.clients_of(digits.train_x, digits.train_y, parts, ldpkernels.key(0))


def config_of(**options):
    return ldp_fl.Config(**{"eps": 6.0, "C": 0.0, "R": 0.25, "local": training.Local(1, 10, 0.3), **options})


def rounds(config, uploads=None):
    network, clients = made()
    state = ldp_fl.init(network, config)
    rows = []
    for _ in range(2):
        state, row = ldp_fl.round_(state, clients, network, config, uploads=uploads)
        rows.append(row)
    return state, rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mechanism": "piecewise"},
        {"upload": "updates"},
        {"C": None, "R": None, "fraction": 0.5},
        {"adaptive": True, "ranges": {"method": "noise-subtracted", "growth": 1.5}, "C": None, "R": None},
    ],
    ids=["two-point", "piecewise", "updates", "ranges by layer, half of the clients", "adaptive"],
)
def test_the_bits_are_those_of_one_process(options):
    config = config_of(**options)
    threads = torch.get_num_threads()
    grid = LocalGrid(engine.client_app(config, engine.Cast("test", made, threads)), range(1001, 1001 + CLIENTS))
    there, there_rows = rounds(config, engine.uploads(grid, config, CLIENTS))
    here, here_rows = rounds(config)
    assert there_rows == here_rows
    assert (there.C, there.R) == (here.C, here.R)
    assert all(torch.equal(there.weights[name], weights) for name, weights in here.weights.items())


def test_a_node_that_fails_ends_the_run():
    config = config_of()
    cast = engine.Cast("test", made, torch.get_num_threads())

    def third(message):
        return message.metadata.message_type == "train" and message.metadata.dst_node_id == 1003

    def rounds_with(clients=CLIENTS, **options):
        grid = LocalGrid(engine.client_app(config, cast), range(1001, 1007), **options)
        return rounds(config, engine.uploads(grid, config, clients, timeout=0.3))

    with pytest.raises(RuntimeError, match="1 of 6 nodes did not answer"):
        rounds_with(
            dropped=lambda message: message.metadata.message_type == "train" and message.metadata.dst_node_id == 1003
        )
    with pytest.raises(RuntimeError, match="node 1001 answered twice"):
        rounds_with(tampered=lambda reply: [reply, reply] if reply.metadata.message_type == "train" else [reply])
    with pytest.raises(RuntimeError, match="6 nodes are connected"):
        rounds_with(clients=7)
    with pytest.raises(RuntimeError, match="no node is client 2"):
        rounds_with(dropped=lambda message: message.metadata.dst_node_id == 1003)
    with pytest.raises(ValueError, match="without noise"):
        engine.client_app(config_of(eps=None), cast)


def test_nodes_are_found_before_a_ledger_is_asked():
    """Nothing is spent where no node is a client, and a client that comes back under another node is found again."""
    config = config_of()
    network, clients = made()
    app = engine.client_app(config, engine.Cast("test", made, torch.get_num_threads()))
    spent = []
    state = ldp_fl.init(network, config)

    def round_(state, grid, uploads):
        return ldp_fl.round_(
            state, clients, network, config, before_upload=lambda: spent.append(len(grid.sent)), uploads=uploads
        )[0]

    short = LocalGrid(app, range(1001, 1006))
    with pytest.raises(RuntimeError, match="5 nodes are connected"):
        round_(state, short, engine.uploads(short, config, CLIENTS, timeout=0.3))
    silent = LocalGrid(app, range(1001, 1007), dropped=lambda message: message.metadata.dst_node_id == 1003)
    with pytest.raises(RuntimeError, match="no node is client 2"):
        round_(state, silent, engine.uploads(silent, config, CLIENTS, timeout=0.3))
    assert spent == []
    grid = LocalGrid(app, range(1001, 1007))
    uploads = engine.uploads(grid, config, CLIENTS, timeout=1)
    state = round_(state, grid, uploads)
    grid.contexts[2003] = grid.contexts.pop(1003)
    round_(state, grid, uploads)
    trains = [message.metadata.message_type for message in grid.sent].count("train")
    assert (spent, trains) == ([CLIENTS, 3 * CLIENTS], 2 * CLIENTS)  # who is who, and no training before it is spent


@pytest.mark.parametrize(
    ("options", "words"), [(["--no-noise"], "--engine local"), (["--device", "cuda"], "--engine local")]
)
def test_options_that_do_not_go_with_nodes(options, words):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["ldp-fl", "--engine", "flower", *options])
    with pytest.raises(ValueError, match=words):
        main(args)


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore")
def test_a_simulation_that_dies_is_noticed_at_once(monkeypatch):
    """Its workers cannot be made: Flower ends, and tells a waiting server nothing."""
    backend = pytest.importorskip("flwr.server.superlink.fleet.vce.backend.raybackend")

    def breaks(self, app_fn):
        raise OSError("no room for workers")

    monkeypatch.setattr(backend.RayBackend, "build", breaks)
    config = config_of()
    app = engine.client_app(config, engine.Cast("test", made))
    started = time.monotonic()
    with (
        pytest.raises(RuntimeError, match="Flower's simulation has ended before the run"),
        engine.simulated(app, CLIENTS, workers=1) as grid,
    ):
        rounds(config, engine.uploads(grid, config, CLIENTS))
    assert time.monotonic() - started < 300  # Ray starts and stops meanwhile; who waits for nodes waits an hour
