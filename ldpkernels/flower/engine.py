# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's driver with its clients on Flower's nodes: the same algorithm, and the same bits as in one process
whose clients train one after another.

A node is the client whose number its configuration has as `partition-id`. It makes the network and its data from the
run's settings, trains, and perturbs by the key that the driver would have used. The server's half is the driver itself
(`ldp_fl.round_`), which gets its uploads from here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import cast

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from ldpkernels.common.keys import Key
from ldpkernels.federated import ldp_fl, training
from ldpkernels.federated.training import Client, Weights
from ldpkernels.flower import records
from ldpkernels.flower.mod import LdpMod
from ldpkernels.flower.replies import replies
from ldpkernels.releases.release import Arrays, EachWeight

CLIENT = "client"  # which one a node is: its number, which is public

_AT_HAND: dict[str, tuple[nn.Module, list[Client]]] = {}  # a process's copies, made once


@dataclass(frozen=True)
class Cast:
    """The network and the clients of a run, wherever they are needed.

    Args:
        name: What tells this run's from another's, in processes that keep them.
        make: Makes them, on the CPU; nodes call it once a process, so it must be picklable.
        threads: Of torch, on which results depend.
    """

    name: str
    make: Callable[[], tuple[nn.Module, list[Client]]] = field(repr=False)
    threads: int = 1

    def at_hand(self) -> tuple[nn.Module, list[Client]]:
        """The network and the clients in this process, made where they are needed first."""
        if self.name not in _AT_HAND:
            _AT_HAND.clear()
            _AT_HAND[self.name] = self.make()
        torch.set_num_threads(self.threads)
        return _AT_HAND[self.name]


def client_app(config: ldp_fl.Config, cast: Cast) -> ClientApp:
    """What a node runs: one client's local training, and its report."""
    if config.eps is None:
        raise ValueError("on Flower's nodes clients send reports: run without noise in one process, to compare")

    def key_of(message: Message, context: Context) -> Key:
        round_, client = _round_of(message), _client_of(context, cast)
        return client.round_key(round_, training.NOISE)

    app = ClientApp()
    mod = LdpMod(config.eps, config.mechanism, upload=config.upload, generator=key_of)

    @app.train(mods=[mod])
    def train(message: Message, context: Context) -> Message:
        network, _ = cast.at_hand()
        weights = _tensors(records.arrays_of(message.content, "the message"))
        client, round_ = _client_of(context, cast), _round_of(message)
        ((_, trained),) = training.train(network, weights, [client], config.local, round_)
        return Message(RecordDict({"arrays": records.record_of(_arrays(trained))}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        found = MetricRecord({CLIENT: int(context.node_config["partition-id"])})
        return Message(RecordDict({CLIENT: found}), reply_to=message)

    return app


def uploads(grid: Grid, config: ldp_fl.Config, clients: int, timeout: float = 3600) -> ldp_fl.Uploads:
    """What the nodes of so many clients send to `ldp_fl.round_`, as it arrives. A node that fails ends the run.

    Nodes are found, and their messages made, before the round is spent: nothing is asked of them before that.
    """
    assert config.eps is not None
    release = EachWeight(config.eps, config.mechanism)
    nodes: dict[int, int] = {}  # by client

    def prepare(state: ldp_fl.State, chosen: Sequence[Client]) -> Iterator[bytes]:
        connected = set(grid.get_node_ids())
        if not all(nodes.get(client.id) in connected for client in chosen):
            nodes.clear()
            nodes.update(_nodes_of(grid, clients, timeout))
        arrays = _arrays(state.weights)
        terms = records.terms(release, config.upload, state.round, arrays, (state.C, state.R))
        content = {"arrays": records.record_of(arrays), records.TERMS: terms}
        return collect([Message(RecordDict(dict(content)), nodes[client.id], "train") for client in chosen])

    def collect(messages: list[Message]) -> Iterator[bytes]:
        waiting = {message.metadata.dst_node_id for message in messages}
        for reply in replies(grid, messages, timeout):
            node = int(reply.metadata.src_node_id)
            if reply.has_error():
                raise RuntimeError(f"node {node} answers: {reply.error.reason}")
            if node not in waiting:
                raise RuntimeError(f"node {node} answered twice, or was not asked")
            waiting.discard(node)
            yield records.report_in(reply.content)
        if waiting:
            raise RuntimeError(f"{len(waiting)} of {len(messages)} nodes did not answer within {timeout:g} seconds")

    return prepare


class _Watched:
    """A grid of a simulation. Flower that ends stops Ray, and tells a waiting server nothing: every call asks Ray."""

    def __init__(self, grid: Grid, alive: Callable[[], bool]) -> None:
        self._grid, self._alive = grid, alive

    def __getattr__(self, name: str) -> object:
        if not self._alive():
            raise RuntimeError("Flower's simulation has ended before the run: its log says why")
        found: object = getattr(self._grid, name)
        return found


@contextlib.contextmanager
def simulated(app: ClientApp, nodes: int, *, workers: int, threads: int = 1) -> Iterator[Grid]:
    """Flower's simulation on Ray, for as long as the `with` statement: so many nodes on so many processes."""
    import ray  # which nodes on other machines do without

    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # as Flower has it
    try:  # here, where a failure is seen; Flower takes what is there
        ray.init(num_cpus=workers * threads, include_dashboard=False, runtime_env=environment)
    except Exception as why:
        raise RuntimeError(f"Ray does not start: {why}") from why
    found: Queue[Grid | BaseException] = Queue()
    done = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        found.put(grid)
        done.wait()

    backend = {"client_resources": {"num_cpus": threads, "num_gpus": 0.0}}

    def run() -> None:
        try:
            run_simulation(server, app, nodes, backend_config=backend)
        except BaseException as error:
            found.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        grid = found.get()
        if isinstance(grid, BaseException):
            raise RuntimeError(f"Flower's simulation does not start: {grid}") from grid
        yield cast(Grid, _Watched(grid, ray.is_initialized))
    finally:
        done.set()
        thread.join()
        ray.shutdown()
    with contextlib.suppress(Empty):
        error = found.get_nowait()
        if isinstance(error, BaseException):
            raise RuntimeError(f"Flower's simulation failed: {error}") from error


def _nodes_of(grid: Grid, clients: int, timeout: float) -> dict[int, int]:
    """The node of each client, for which all nodes are asked."""
    end = time.monotonic() + timeout
    while len(ids := list(grid.get_node_ids())) < clients:
        if time.monotonic() > end:
            raise RuntimeError(f"{len(ids)} nodes are connected after {timeout:g} seconds, for {clients} clients")
        time.sleep(0.1)
    messages = [Message(RecordDict({CLIENT: ConfigRecord({})}), node, "query") for node in ids]
    found: dict[int, int] = {}
    for reply in replies(grid, messages, timeout):
        if reply.has_error():
            raise RuntimeError(f"node {reply.metadata.src_node_id} answers: {reply.error.reason}")
        found[int(reply.content[CLIENT][CLIENT])] = int(reply.metadata.src_node_id)
    missing = sorted(set(range(clients)) - found.keys())
    if missing:
        raise RuntimeError(f"no node is client {missing[0]} (of {clients}): start it with partition-id={missing[0]}")
    return found


def _round_of(message: Message) -> int:
    return int(message.content[records.TERMS]["round"])


def _client_of(context: Context, cast: Cast) -> Client:
    _, clients = cast.at_hand()
    return clients[int(context.node_config["partition-id"])]


def _arrays(weights: Weights) -> Arrays:
    return {name: weight.detach().cpu().numpy() for name, weight in weights.items()}


def _tensors(arrays: Arrays) -> Weights:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
