# SPDX-License-Identifier: Apache-2.0
"""What a client does with its own data: some epochs of stochastic gradient descent from the server's weights."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ldpkernels.common.keys import Key
from ldpkernels.federated import chains
from ldpkernels.federated.networks import Mirrored
from ldpkernels.federated.workers import Workers

Weights = dict[str, torch.Tensor]

# Sub-keys of a client's round: one use each.
BATCHES, NOISE = 0, 1


class Client(NamedTuple):
    """A client: its name, its examples and labels, and the key that all its randomness comes from."""

    id: int
    data: tuple[torch.Tensor, torch.Tensor]
    key: Key

    def round_key(self, round_: int, use: int) -> Key:
        """The key for one use in one round."""
        return self.key.fold_in(2 * round_ + use)


class Shared(NamedTuple):
    """What workers hold for a run: the network, all clients, and the test examples."""

    network: nn.Module
    clients: list[Client]
    test: tuple[torch.Tensor, torch.Tensor] | None = None


Crew = Workers[Shared]


@dataclass(frozen=True)
class Local:
    """How a client trains: E epochs, batches of B, rate gamma.

    `together` trains all clients of a round at once with `torch.func.vmap` over stacked weights, or one after another.
    None takes what was measured to be faster (benchmarks/test_federated.py). That is together on a GPU and for networks
    without convolutions, whose many small operations cost more to launch than to compute. Otherwise it is one after
    another, in C++ if the network is a chain of convolutions in fp32 (`chains`). False is torch's own steps. Networks
    with dropout train one after another, because each client draws from its own key.

    Only parameters are sent. As in `perturb_`, a network with floating-point buffers is refused, unless they are
    constants: buffers="keep" leaves them as they are, with every client and with the server.
    """

    epochs: int = 1
    batch: int = 10
    rate: float = 0.03
    together: bool | None = None
    buffers: Literal["keep"] | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate={self.rate} must be above 0 and finite")
        if self.together not in (None, True, False):
            raise ValueError(f"together={self.together!r} must be True, False or None")
        if self.buffers not in (None, "keep"):
            raise ValueError(f"buffers={self.buffers!r} must be 'keep' or None: nothing but parameters is ever sent")


def weights_of(network: nn.Module) -> Weights:
    """A copy of what is trained and sent, by name: the parameters except frozen ones, which everybody has.

    >>> network = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 2))
    >>> sorted(weights_of(network))
    ['1.bias', '1.weight']
    """
    return {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """A context in which the network is evaluated; afterwards every module is in its previous mode."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def own_draws(client: Client, round_: int) -> Iterator[None]:
    """A context in which everything drawn from torch's generators follows from the client's key and the round."""
    device = client.data[0].device
    seed = client.round_key(round_, BATCHES).fold_in(0).words[0] % 2**63
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU too, and leave it so
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def clients_of(x: torch.Tensor, y: torch.Tensor, parts: Sequence[torch.Tensor], key: Key) -> list[Client]:
    """One client for each part of the data, each with a key of its own."""
    return [Client(i, (x[part], y[part]), key.fold_in(i)) for i, part in enumerate(parts)]


def train(
    network: nn.Module,
    weights: Weights,
    clients: Sequence[Client],
    local: Local,
    round_: int,
    *,
    only: Collection[str] | None = None,
    workers: Crew | None = None,
) -> Iterator[tuple[Client, Weights]]:
    """Train every client from the same weights; yield each with its new weights, in the order of `clients`.

    `only` names the parameters to train; the others stay as they are. The network gives the architecture alone. Clients
    that do not train all together are spread over `workers`, if given, with the same bits as on one thread. The call
    refuses what can be refused; training begins when the first client is asked for.
    """
    found: Iterable[Weights]
    if trains_together(network, weights, local) and len({len(client.data[1]) for client in clients}) == 1:
        found = _train_together(network, weights, clients, local, round_, only)
    elif workers is None:
        in_cpp = local.together is None and chains.is_plain(network, weights)
        found = (_train_one(network, weights, client, local, round_, only, in_cpp) for client in clients)
    else:
        common = weights, local, round_, None if only is None else tuple(only)
        found = workers.map(_train_in_worker, common, places(workers, network, clients))
    return _told(clients, found)


def _told(clients: Sequence[Client], found: Iterable[Weights]) -> Iterator[tuple[Client, Weights]]:
    """Each client with its weights, and a warning where they are not finite."""
    for client, trained in zip(clients, found, strict=True):
        if not all([bool(torch.isfinite(w).all()) for w in trained.values()]):
            warnings.warn(  # a report has a value for NaN too, so that nothing else would tell
                f"the weights of client {client.id} are not finite after its training: take a lower rate",
                UserWarning,
                stacklevel=2,
            )
        yield client, trained


def crew(
    network: nn.Module,
    clients: Sequence[Client],
    count: int,
    threads: int = 1,
    test: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Crew:
    """Start so many workers for a run with this network, these clients, and test examples for `accuracy`."""
    devices = {tensor.device.type for client in clients for tensor in client.data}
    if devices - {"cpu"}:
        raise ValueError(
            f"workers train on the CPU, and the clients' data is on {sorted(devices)[0]!r}: leave workers out"
        )
    return Workers(count, Shared(network, list(clients), test), threads=threads)


def places(workers: Crew, network: nn.Module, clients: Sequence[Client]) -> list[int]:
    """The places of these clients among those that the workers hold."""
    where = {id(client): i for i, client in enumerate(workers.shared.clients)}
    if workers.shared.network is not network or any(id(client) not in where for client in clients):
        raise ValueError("the workers were started with another network or with other clients: start them with these")
    return [where[id(client)] for client in clients]


def batches(client: Client, local: Local, round_: int) -> list[torch.Tensor]:
    """The examples of each step, as indices; a client without examples takes no step."""
    if not len(client.data[1]):  # of nothing, torch makes a batch of nothing, which not every network takes
        return []
    return [batch for order in orders(client, local, round_) for batch in order.split(local.batch)]


def orders(client: Client, local: Local, round_: int) -> torch.Tensor:
    """The order in which each epoch goes through the examples [epochs, examples]."""
    seed = client.round_key(round_, BATCHES).words[0] % 2**63
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(len(client.data[1]), generator=generator) for _ in range(local.epochs)])


def accuracy(
    network: nn.Module,
    weights: Weights,
    x: torch.Tensor,
    y: torch.Tensor,
    batch: int = 500,
    workers: Crew | None = None,
) -> float:
    """The fraction of examples that the network classifies correctly; `workers` that have the examples count."""
    alone = len(y) > batch and len(y) % batch == 1 and normalises(network)  # which it refuses: it joins the others
    ends = [*range(batch, len(y) - alone, batch), len(y)]
    parts = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    if workers is not None and workers.shared.network is network and workers.shared.test is not None:
        if workers.shared.test[0] is not x or workers.shared.test[1] is not y:
            raise ValueError("the workers were started with other examples: start them with these")
        return sum(workers.map(_count_in_worker, weights, parts)) / len(y)
    return sum(_count_right(network, weights, x[part], y[part]) for part in parts) / len(y)


def normalises(network: nn.Module) -> bool:
    """Whether the network has a layer that may refuse a batch of one: of one pixel, groups of one channel do too."""
    kinds = nn.modules.batchnorm._NormBase, nn.GroupNorm
    return any(isinstance(module, kinds) for module in network.modules())


def _count_right(network: nn.Module, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> int:
    """The number of examples that the network puts into their class."""
    if x.dim() == 4 and x.device.type == "cpu" and _takes_any_layout(network):
        x = x.contiguous(memory_format=torch.channels_last)  # wide convolutions: 1.7 times faster
    scores = scores_of(network, weights, x)
    if int(y.max()) >= scores.shape[1]:
        raise ValueError(f"test label {int(y.max())} has no output: the network has {scores.shape[1]}")
    return int((scores.argmax(1) == y).sum())


def scores_of(network: nn.Module, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """What the network gives for examples when it is evaluated. A user's network may give anything."""
    try:
        with torch.no_grad(), evaluating(network):
            scores: torch.Tensor = torch.func.functional_call(network, weights, (x,))
            return scores
    except Exception as error:  # whatever a network of the user's raises
        raise ValueError(f"the network does not take examples of shape {tuple(x.shape[1:])}: {error}") from error


def _takes_any_layout(network: nn.Module) -> bool:
    """Whether images may be channels_last inside: torch's own layers in a row. Others may call `view`, which fails."""
    own = (m is network or type(m).__module__.startswith("torch.nn.") or type(m) is Mirrored for m in network.modules())
    return type(network) is nn.Sequential and all(own)


def _count_in_worker(shared: Shared, weights: Weights, part: slice) -> int:
    """A worker's task: count what is right among some of the test examples."""
    assert shared.test is not None
    x, y = shared.test
    return _count_right(shared.network, weights, x[part], y[part])


def gradients_together(
    network: nn.Module, weights: Weights
) -> Callable[[Weights, torch.Tensor, torch.Tensor], Weights]:
    """A function of stacked weights, examples and labels that gives stacked gradients; other weights stay."""

    def loss(moving: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(network, {**weights, **moving}, (x,)), y)

    gradients: Callable[[Weights, torch.Tensor, torch.Tensor], Weights] = torch.func.vmap(torch.func.grad(loss))
    return gradients


def draws(module: nn.Module) -> bool:
    """Whether the module is dropout, has some (recurrent networks, attention), or says that it `draws`."""
    rate = getattr(module, "dropout", None)
    dropout = isinstance(module, nn.modules.dropout._DropoutNd) or (isinstance(rate, float) and rate > 0)
    return dropout or getattr(module, "draws", False) is True


def trains_together(network: nn.Module, weights: Weights, local: Local) -> bool:
    """Whether all clients of a round train at once; a ValueError if that was asked for and is impossible."""
    random = next((name for name, module in network.named_modules() if draws(module)), None)
    if local.together is None:
        on_gpu = any(w.is_cuda for w in weights.values())
        return random is None and (on_gpu or not any(isinstance(m, nn.Conv2d) for m in network.modules()))
    if local.together and random is not None:
        raise ValueError(
            f"together=True cannot give module {random!r} the draws of each client's key: pass Local(together=False), "
            "or --together no"
        )
    return local.together


def _train_in_worker(shared: Shared, common: tuple[Weights, Local, int, tuple[str, ...] | None], place: int) -> Weights:
    """A worker's task: train one client."""
    weights, local, round_, only = common
    in_cpp = local.together is None and chains.is_plain(shared.network, weights)
    return _train_one(shared.network, weights, shared.clients[place], local, round_, only, in_cpp)


def _train_one(
    network: nn.Module,
    weights: Weights,
    client: Client,
    local: Local,
    round_: int,
    only: Collection[str] | None,
    in_cpp: bool,
) -> Weights:
    if in_cpp and chains.takes(network, *client.data):
        # Shapes that C++ refuses, as of a normalisation over images of one pixel, it refuses before its first step.
        with contextlib.suppress(ValueError), own_draws(client, round_):
            order = orders(client, local, round_)
            return chains.train(network, weights, client.data, order, local.batch, local.rate, only)
    model = copy.deepcopy(network)
    model.load_state_dict(weights, strict=False)
    named = {name: p for name, p in model.named_parameters() if name in weights}  # the others are frozen
    trained = [p.requires_grad_(only is None or name in only) for name, p in named.items()]
    trained = [p for p in trained if p.requires_grad]
    # Small convolutions: 1.3 times faster. torch 2.13 crashes in a GroupNorm of this layout that no gradient passes.
    if _takes_any_layout(network) and not any(isinstance(m, nn.GroupNorm) for m in network.modules()):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = client.data
    with own_draws(client, round_):
        for batch in batches(client, local, round_):
            batch = batch.to(y.device)
            loss = F.cross_entropy(model(x[batch]), y[batch])
            if not loss.requires_grad:  # nothing of what is trained was used: as if its gradients were zeros
                continue
            gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
            with torch.no_grad():
                torch._foreach_add_(trained, gradients, alpha=-local.rate)
    return {name: p.detach().clone(memory_format=torch.contiguous_format) for name, p in named.items()}


def _train_together(
    network: nn.Module,
    weights: Weights,
    clients: Sequence[Client],
    local: Local,
    round_: int,
    only: Collection[str] | None,
) -> Iterator[Weights]:
    gradient = gradients_together(copy.deepcopy(network), weights)  # what was run with gradients may not be copied
    names = [name for name in weights if only is None or name in only]
    stacked = {name: weights[name].expand(len(clients), *weights[name].shape).clone() for name in names}
    x = torch.stack([client.data[0] for client in clients])
    y = torch.stack([client.data[1] for client in clients])
    everyone = torch.arange(len(clients), device=y.device).unsqueeze(1)
    for step in zip(*[batches(client, local, round_) for client in clients], strict=True):
        chosen = torch.stack(step).to(y.device)
        gradients = gradient(stacked, x[everyone, chosen], y[everyone, chosen])
        for name in names:
            stacked[name].sub_(gradients[name], alpha=local.rate)
    rows = {name: w.unbind() for name, w in stacked.items()}
    for i in range(len(clients)):
        yield {name: rows[name][i].clone() if name in rows else w for name, w in weights.items()}
