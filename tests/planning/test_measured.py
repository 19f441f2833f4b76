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
    for name, one in zip(ratios.RESULTS, table, strict=True):
        clean, cells = ratios.accuracies(name)
        assert one["clean"] == round(clean, 3)
        for cell, ratio in ratios.planned(name, 1000, 8.0, "local").items():
            near = [(low, high) for r, _, low, high in one["points"] if 0.7 < r / ratio < 1.42]
            if cell in cells and near:
                assert any(low - 1e-3 <= cells[cell] <= high + 1e-3 for low, high in near), cell
                assert (
                    min(abs(cells[cell] - reached) for r, reached, *_ in one["points"] if 0.7 < r / ratio < 1.42) < 0.1
                )


def test_less_noise_is_no_worse():
    for one in measured.tasks():
        reached = [one.at(ratio) for ratio in (0.01, 0.3, 1.0, 4.0)]
        assert reached == sorted(reached, reverse=True)
        assert one.at(1e9) is None
        assert reached[0] == pytest.approx(one.clean, abs=0.02)


def test_the_readme_is_not_told_that_nothing_is_useful():
    found = ldpkernels.plan(8.0, rounds=5, clients=1000, weights=7850, trust="local", norm=1.0, radius=0.05)
    assert "70% (87% without noise) on MNIST" in found.verdict
    far = ldpkernels.plan(0.1, rounds=1, clients=2, weights=10**6, trust="local", norm=1.0).verdict
    assert "no more than 1" in far
