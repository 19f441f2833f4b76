# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl --engine flower` at work."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
from collections.abc import Iterator

from torch import nn

from ldpkernels.commands import federated_run
from ldpkernels.federated import ldp_fl, workers
from ldpkernels.federated.training import Client
from ldpkernels.flower import engine


@contextlib.contextmanager
def uploads(args: argparse.Namespace, config: ldp_fl.Config, network: str) -> Iterator[ldp_fl.Uploads]:
    """The uploads of clients that are nodes of Flower's simulation on this machine."""
    settings = federated_run.settings(args)
    name = json.dumps({"network": network, **vars(settings)})
    cast = engine.Cast(name, functools.partial(_made, settings, network), args.threads)
    count = args.workers or workers.available(args.threads)
    with engine.simulated(engine.client_app(config, cast), args.clients, workers=count, threads=args.threads) as grid:
        yield engine.uploads(grid, config, args.clients)


def _made(settings: argparse.Namespace, network: str) -> tuple[nn.Module, list[Client]]:
    federation = federated_run.prepared(settings, network)
    return federation.network, federation.clients
