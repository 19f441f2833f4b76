# SPDX-License-Identifier: Apache-2.0
"""A round of FedAvg on MNIST by pfl-research, for benchmarks/rounds_flower.py's clients, network and steps.

    torchrun --nproc-per-node 4 -m benchmarks.rounds_pfl --data DIR

in an environment with `pip install pfl` beside this package; pfl spreads a round's users over torchrun's processes.
Nothing is randomised. The first round is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import get_framework_module, set_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from ldpkernels.federated import data, networks


class Classifier(nn.Module):
    """A network as pfl wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = networks.network("ldp-fl-cnn", 0)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, aggregate: Metrics, model: object, *, central_iteration: int) -> Any:
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", required=True, help="the folder that torchvision was given as root")
    parser.add_argument("--clients", type=int, default=100, help="default 100")
    parser.add_argument("--rounds", type=int, default=3, help="that count (default 3)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    mnist = data.load("mnist", args.data)
    parts = data.deal(mnist.train_y, args.clients, 0)
    users = {str(i): part for i, part in enumerate(parts)}

    def user(name: str) -> Dataset:
        order = users[name][torch.randperm(len(users[name]))]
        return Dataset(raw_data=[mnist.train_x[order], mnist.train_y[order]], user_id=name)

    np.random.seed(0)  # noqa: NPY002  # pfl's samplers draw from it, alike in every process
    sampled = FederatedDataset(user, get_user_sampler("minimize_reuse", list(users)))
    module = Classifier()
    model = PyTorchModel(
        module,
        torch.optim.SGD,
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(args.rounds + 1, 10**9, args.clients, None),
        SimulatedBackend(sampled, None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.03, local_batch_size=10),
        callbacks=[clock],
    )
    seconds = [end - begin for begin, end in itertools.pairwise(clock.ends)]
    context = get_framework_module().distributed
    if context.global_rank == 0:
        print(
            f"pfl-research, {context.world_size} processes: {statistics.median(seconds):6.2f} s a round "
            f"({min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} rounds)"
        )


if __name__ == "__main__":
    main()
