# SPDX-License-Identifier: Apache-2.0
"""The client: three lines for privacy, the rest is what any Flower app has."""

import os

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ldp_digits import EPS, task
from ldpkernels.flower import LdpMod

# Where this machine keeps what its clients have spent: it must outlive runs and restarts.
LEDGERS = os.environ.get("LDP_LEDGERS", os.path.expanduser("~/.ldp-digits"))

app = ClientApp(mods=[LdpMod(EPS, ledger=LEDGERS + "/{partition-id}.ledger", budget=100_000.0)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's pictures; LdpMod makes the reply a report."""
    torch.set_num_threads(1)  # many nodes share a machine here
    model = task.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    task.train(model, *task.part(context.node_config["partition-id"], context.node_config["num-partitions"]))
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
