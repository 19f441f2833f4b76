# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's driver over SuperNodes: all that it takes beside the settings of the run."""

import torch
from flwr.serverapp import ServerApp

import ldpkernels
from ldpkernels.federated import data, ldp_fl, networks, training
from ldpkernels.flower import engine

CONFIG = ldp_fl.Config(eps=6.0, C=0.0, R=0.25, upload="updates", local=training.Local(2, 10, 0.3))
CLIENTS = 3


def made():
    """The network and the clients, the same wherever they are made."""
    digits = data.load("digits", None)
    parts = data.deal(digits.train_y, CLIENTS, seed=0)
    clients = training.clients_of(digits.train_x, digits.train_y, parts, ldpkernels.key(0))
    return networks.network("digits-mlp", 0), clients


def state_after(rounds, uploads=None):
    """So many rounds, here or wherever uploads come from."""
    torch.set_num_threads(1)
    network, clients = made()
    state = ldp_fl.init(network, CONFIG)
    for _ in range(rounds):
        state, _ = ldp_fl.round_(state, clients, network, CONFIG, uploads=uploads)
    return state


client = engine.client_app(CONFIG, engine.Cast("same-bits", made))
server = ServerApp()


@server.main()
def main(grid, context):
    """The server's half."""
    uploads = engine.uploads(grid, CONFIG, CLIENTS, timeout=120)
    state = state_after(int(context.run_config["rounds"]), uploads)
    torch.save({"weights": state.weights, "C": state.C, "R": state.R}, str(context.run_config["out"]))
