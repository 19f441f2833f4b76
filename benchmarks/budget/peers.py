# SPDX-License-Identifier: Apache-2.0
"""The model and the totals of the budget by pfl-research and Opacus, where they are installed.

pfl-research trains every client of the task in every round, with central Gaussian noise from its own accountant:
neighbours are runs with and without a client, as for "central gaussian" here. Opacus trains on all data in one place:
its neighbours differ by one example, which is a much weaker guarantee than a client's.

    python -m benchmarks.budget.peers --dataset mnist --data DIR
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.budget.task import TASKS, Federation, Task
from ldpkernels.accounting import GaussianEvent, composed_epsilon
from ldpkernels.federated import data
from ldpkernels.federated.data import Dataset

DELTA = 1e-5
EXAMPLES_AT_ONCE = 256  # of Opacus: a batch, on average


class Model(nn.Module):
    """A network with its own loss and metrics, as pfl-research wants it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.eval() if eval else self.train()
        return F.cross_entropy(self.network(torch.as_tensor(x)), torch.as_tensor(y))

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, object]:
        return {}


def pfl(task: Task, dataset: Dataset, epsilon: float, seed: int) -> tuple[float, float]:
    """Test accuracy after all rounds, and the noise multiplier that its accountant chose."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset as UserData
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the generator that it draws its cohorts and noise from
    world = Federation(task, dataset, seed)
    users = {str(c.id): UserData(raw_data=[c.data[0], c.data[1]]) for c in world.clients}
    sampler = get_user_sampler("minimize_reuse", list(users))
    federated = FederatedDataset(lambda user: users[user], sampler)
    accountant = PLDPrivacyAccountant(
        num_compositions=task.rounds, sampling_probability=1.0, mechanism="gaussian", epsilon=epsilon, delta=DELTA
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant=accountant, clipping_bound=task.norm)

    model = Model(world.network)
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0))
    algorithm = FederatedAveraging()
    backend = SimulatedBackend(federated, federated, [CentrallyAppliedPrivacyMechanism(mechanism)])
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=10 * task.rounds,
            train_cohort_size=task.clients,
            val_cohort_size=0,
        ),
        backend,
        wrapped,
        NNTrainHyperParams(
            local_num_epochs=task.local.epochs,
            local_learning_rate=task.local.rate,
            local_batch_size=task.local.batch,
        ),
        NNEvalHyperParams(local_batch_size=1000),
        [],
    )
    with torch.no_grad():
        right = (world.network(dataset.test_x).argmax(1) == dataset.test_y).float().mean()
    return float(right), float(accountant.cohort_noise_parameter)


def opacus(task: Task, dataset: Dataset, epsilon: float, seed: int) -> tuple[float, float]:
    """Test accuracy after 5 epochs of DP-SGD on all examples, and the noise multiplier that its accountant chose."""
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    network = Federation(task, dataset, seed).network
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(dataset.train_x, dataset.train_y), batch_size=EXAMPLES_AT_ONCE, shuffle=True
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=network,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=5,
        max_grad_norm=1.0,
    )
    for _ in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(private(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        right = (private(dataset.test_x).argmax(1) == dataset.test_y).float().mean()
    return float(right), float(optimizer.noise_multiplier)


PEERS = {"pfl": pfl, "opacus": opacus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=TASKS, default="digits")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--peer", choices=PEERS, nargs="+", default=list(PEERS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 2.0, 8.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/budget/peers.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS[options.dataset]
    dataset = data.load(task.dataset, options.data)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.peer:
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: left out")
            continue
        for epsilon in options.epsilon:
            for seed in range(options.seeds):
                started = time.perf_counter()
                accuracy, sigma = PEERS[name](task, dataset, epsilon, seed)
                row = {
                    "peer": name,
                    "dataset": task.dataset,
                    "epsilon": epsilon,
                    "seed": seed,
                    "accuracy": accuracy,
                    "noise_multiplier": sigma,
                    "seconds": round(time.perf_counter() - started, 1),
                }
                if name == "pfl":  # what its noise is worth by the accountant here
                    row["our_epsilon"] = composed_epsilon([(GaussianEvent(sigma), task.rounds)], DELTA)
                print(json.dumps(row), flush=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
