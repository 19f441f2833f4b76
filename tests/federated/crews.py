# SPDX-License-Identifier: Apache-2.0
"""Workers without processes, for tests of what tasks do with what travels, and tasks for tests of the processes. It
imports little, as every worker imports it."""

import pickle

import torch
from torch import nn

from ldpkernels.federated import training


class Here:
    """What `Workers` does, in this process: all that a worker gets and gives is a copy, by way of its bytes."""

    def __init__(self, shared):
        self.shared, self._copy = shared, copied(shared)

    def map(self, task, common, items):
        for item in items:
            yield copied(task(self._copy, *copied((common, item))))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def copied(value):
    return pickle.loads(pickle.dumps(value))


def crew(network, clients, count=1, threads=1, test=None):
    """As `training.crew`."""
    return Here(training.Shared(network, list(clients), test))


def power(_, exponent, base):
    return pow(base, exponent, 1009)


def inverse(_, __, number):
    return 1 / number


def sent_back(_, __, item):
    return item


class Unsendable(Exception):
    """It cannot be made again from what pickle keeps of it."""

    def __init__(self, one, other):
        super().__init__(one + other)


def unsendable(_, __, item):
    raise Unsendable("no", "way")


def examples():
    """Of a run by command: 1,200 to train on, 100 to test on."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(1300, 16, generator=generator), torch.randint(10, (1300,), generator=generator)
    return x[:1200], y[:1200], x[1200:], y[1200:]


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
