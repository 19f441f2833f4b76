# SPDX-License-Identifier: Apache-2.0
"""Examples in docstrings, and the pages: their code runs, and what they say of the package holds."""

import doctest
import importlib
import math
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import ldpkernels.flower
from ldpkernels.accounting import (
    GaussianEvent,
    RandomizedResponseEvent,
    SampledGaussianEvent,
    local_epsilon,
    shuffle_epsilon,
)
from ldpkernels.accounting.ledger import recorded
from ldpkernels.flower.node import settings_of
from tests.flower.grid import LocalGrid
from tests.test_docs import blocks, run

FOLDER = Path(__file__).parents[2] / "docs/integrations"
PAGE = "\n".join((FOLDER / name).read_text() for name in ("flower.md", "flower_sums.md"))
MODULES = [one.name for one in pkgutil.iter_modules(ldpkernels.flower.__path__, "ldpkernels.flower.")]


@pytest.mark.parametrize("name", [*MODULES, "ldpkernels.flower"])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.fixture
def page(tmp_path, monkeypatch):
    """What the page's code defines, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S):
        exec(block, names)
    return names


def test_the_page_is_an_app(page, tmp_path):
    grid = LocalGrid(page["client"], [11, 12, 13])
    result = page["main"](grid, None)
    assert [metrics["reports"] for metrics in result.train_metrics_clientapp.values()] == [3, 3, 3]
    assert set(result.evaluate_metrics_serverapp) == {0, 1, 2, 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.ledger", "1.ledger", "2.ledger", "state"]
    assert page["main"](grid, None).train_metrics_clientapp == result.train_metrics_clientapp  # it is done: no round


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        ("secret_client", "secret_strategy"),
        ("noised", "noised_strategy"),
        ("trusting", "trusted"),
        ("owned", "client's"),
    ],
)
def test_the_other_apps_of_the_page(page, client, strategy):
    """Reports by a secure sum, a law, a trusted server, and a node's own numbers."""
    grid = LocalGrid(page[client], [11, 12, 13, 14], node_config={"ldp.eps": 4.0})
    server = page[strategy] if strategy in page else page["LdpFedAvg"](4.0, R=0.1)
    start = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32))})
    assert server.start(grid, start, num_rounds=1, timeout=5).train_metrics_clientapp[1]["reports"] == 4


def test_hospitals_protect_their_patients(tmp_path, monkeypatch):
    """By the app of docs/silos.md and Flower's own FedAvg: two rounds, and one that ledgers refuse."""
    monkeypatch.chdir(tmp_path)
    page = {"__name__": "page"}
    for block in blocks("docs/silos.md"):
        if block.kind == "python":
            run("docs/silos.md", block, page)
    grid, start = LocalGrid(page["hospital"], [11, 12, 13]), ArrayRecord(page["model"].state_dict())
    assert set(page["strategy"].start(grid, start, num_rounds=2).train_metrics_clientapp) == {1, 2}
    page["options"]["steps"] = 100
    page["strategy"].start(grid, start, num_rounds=1)
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    told, refused = grid.received[:6], grid.received[6:]
    for one in (reply.content["metrics"] for reply in told):
        assert set(one) == {"accuracy", "num-examples"}
        assert one["num-examples"] == 1
        assert abs(600 * one["accuracy"] - round(600 * one["accuracy"])) > 1e-7  # an exact one is of so many records
    assert ["past the budget of 3" in reply.error.reason for reply in refused] == [True] * 3
    for silo in range(3):
        spent = [type(one.event) for one in recorded(tmp_path / f"{silo}.ledger")[1]]
        assert spent == [SampledGaussianEvent, GaussianEvent] * 2


def test_the_file_of_the_page_is_read(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "site.toml").write_text(block)
    found = settings_of({"ldp": str(tmp_path / "site.toml")}, {"ldp.budget": 4.0})
    assert (found.limit, found.settings["budget"]) == (4.0, 8.1)
    assert found.settings["law"].epsilon(1e-5, 20) <= 8.0
    (tmp_path / "private.key").write_text("ab" * 32)
    more = re.sub("^#", "", block, flags=re.M).replace("64 hexadecimal digits", "cd" * 32)
    (tmp_path / "site.toml").write_text(more.replace("/etc/ldp", str(tmp_path)))
    found = settings_of({"ldp": str(tmp_path / "site.toml")}, {})
    assert found.settings["roster"] == {0: b"\xcd" * 32}
    assert found.settings["identity"] == (0, b"\xab" * 32)


@pytest.mark.parametrize("module", ["ldpkernels.flower", "ldpkernels.flower.engine"])
def test_without_flower_the_error_names_the_extra(module):
    code = f"import sys; sys.modules['flwr'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ldpkernels.flower needs flwr: pip install 'ldpkernels[flower]'" in done.stderr


def test_the_figures_of_the_page():
    behind = [shuffle_epsilon(1.0, n, d=2410).epsilon for n in (100, 90, 50, 20)]
    local = local_epsilon(RandomizedResponseEvent(1.0), d=2410).epsilon
    up = [math.ceil(10 * epsilon) / 10 for epsilon in behind[:3]] + [math.ceil(behind[3]), math.ceil(local)]
    text = "{:g} a round behind the sum of 100 clients, {:g} of 90, {:g} of 50, {:g} of 20, and {:,} for"
    assert text.format(*up) in " ".join(PAGE.split())
