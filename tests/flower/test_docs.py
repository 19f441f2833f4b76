# SPDX-License-Identifier: Apache-2.0
"""Examples in docstrings, and the page: its code runs, and what it says of the package holds."""

import doctest
import importlib
import math
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ldpkernels.flower
from ldpkernels.accounting import RandomizedResponseEvent, local_epsilon, shuffle_epsilon
from tests.flower.grid import LocalGrid

PAGE = (Path(__file__).parents[2] / "docs/integrations" / "flower.md").read_text()
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


def test_the_page_is_an_app_behind_secure_aggregation(page):
    grid = LocalGrid(page["secret_client"], [11, 12, 13, 14])
    (start,) = (message.content["arrays"] for message in _first_round(page)[:1])
    result = page["secret_strategy"].start(grid, start, num_rounds=1, timeout=5)
    assert result.train_metrics_clientapp[1]["reports"] == 4


def _first_round(page):
    grid = LocalGrid(page["client"], [11, 12, 13])
    page["main"](grid, None)
    return grid.sent


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
