# SPDX-License-Identifier: Apache-2.0
# What a plan says that models reached is what was measured.
import json

import pytest

import ldpkernels
from ldpkernels.planning import measured


def test_the_table_is_of_the_results():
    """One task's table again, of the file that it names."""
    ratios = pytest.importorskip("benchmarks.budget.ratios")
    table = json.loads(ratios.TABLE.read_text())["tasks"]
    assert [one["source"] for one in table] == [str(path.relative_to(ratios.ROOT)) for path in ratios.RESULTS.values()]
    accuracies = {}
    for name, one in zip(ratios.RESULTS, table, strict=True):
        clean, cells = ratios.accuracies(name)
        accuracies[name] = cells
        assert one["clean"] == round(clean, 3)
        assert min(p[2] for p in one["points"]) == round(min(cells.values()), 3)
        assert max(p[3] for p in one["points"]) == round(max(cells.values()), 3)
    one_cell = ("mnist", 1000, 8.0, "local")
    for name, ratio in ratios.planned(*one_cell).items():
        if name[:3] + (name[3],) in accuracies["mnist"]:
            accuracy = accuracies["mnist"][name]
            assert any(low <= accuracy <= high + 1e-3 for r, _, low, high in table[1]["points"] if 0.7 < r / ratio < 1.42)


def test_less_noise_is_no_worse():
    for one in measured.tasks():
        reached = [one.at(ratio) for ratio in (0.01, 0.1, 1.0, 4.0)]
        assert reached == sorted(reached, reverse=True)
        assert one.at(1e9) is None
        assert reached[0] == pytest.approx(one.clean, abs=0.02)


def test_the_readme_is_not_told_that_nothing_is_useful():
    found = ldpkernels.plan(8.0, rounds=5, clients=1000, weights=7850, trust="local", norm=1.0, radius=0.05)
    assert "72% (87% without noise) on MNIST" in found.verdict
    far = ldpkernels.plan(0.1, rounds=1, clients=2, weights=10**6, trust="local", norm=1.0).verdict
    assert "below 1" in far
