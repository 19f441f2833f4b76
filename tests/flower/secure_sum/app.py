# SPDX-License-Identifier: Apache-2.0
"""Secure sums between real nodes: of reports, and of shares of noise where the nodes' owners say so."""

import os

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import ldpkernels
from ldpkernels.flower import LdpFedAvg, LdpMod

EPS, R, THRESHOLD = 2.0, 0.5, 3
LAW = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=601, clients=2, invited=4, norm=6.0, bits=24)
OWNED = "LDP_OWNED" in os.environ  # what nodes send is said by their owners' files
START = {"w": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30), "s": np.array(0.5, np.float32)}


def key_of(number, round_):
    """A client's key."""
    return ldpkernels.key(number).fold_in(round_)


def trained(arrays, number):
    """What a client makes of the model."""
    return {name: np.asarray(array * np.float32(1 + number / 8), np.float32) for name, array in arrays.items()}


def in_the_clear(clients):
    """The model after one round of so many clients."""
    updates = [{n: np.asarray(a - START[n]) for n, a in trained(START, i).items()} for i in range(clients)]
    reports = [ldpkernels.report(u, 0.0, R, EPS, generator=key_of(i, 1)) for i, u in enumerate(updates)]
    mean = ldpkernels.aggregate(reports)
    return {name: START[name] + mean[name] for name in START}


def mod_key(message, context):
    """For a simulation: never do this with what is private."""
    return key_of(context.node_config["partition-id"], message.content["ldp"]["round"])


mod = LdpMod.from_node() if OWNED else LdpMod(EPS, threshold=THRESHOLD, generator=mod_key)
client = ClientApp(mods=[mod])
server = ServerApp()


@client.train()
def train(message, context):
    """One client."""
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    after = trained(arrays, context.node_config["partition-id"])
    return Message(RecordDict({"arrays": ArrayRecord({n: Array(a) for n, a in after.items()})}), reply_to=message)


@server.main()
def main(grid, context):
    """One round."""
    nodes = int(context.run_config["nodes"])
    what = {"law": LAW} if OWNED else {"eps": EPS, "R": R}
    strategy = LdpFedAvg(**what, threshold=THRESHOLD, min_train_nodes=nodes, min_available_nodes=nodes)
    start = ArrayRecord({name: Array(array) for name, array in START.items()})
    result = strategy.start(grid, start, num_rounds=1, timeout=200)
    print("reports:", result.train_metrics_clientapp[1]["reports"], flush=True)
    np.savez(str(context.run_config["out"]), **{name: array.numpy() for name, array in result.arrays.items()})
