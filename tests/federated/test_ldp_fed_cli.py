# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fed`, as a user runs it."""

import csv
import math

import pytest
import torch

from ldpkernels.__main__ import main
from ldpkernels.accounting.ledger import recorded

QUICK = ["fl", "ldp-fed", "--clients", "20", "--select", "9", "--rate", "0.4", "--epochs", "3", "--quiet"]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def metrics(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_it_trains_and_tells_the_truth(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*QUICK, "--rounds", "20", "--alpha", "0.5", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rows = metrics(out)
    assert float(rows[-1]["accuracy"]) > 0.6  # ten classes; measured: 0.85
    assert float(rows[-1]["alpha"]) == pytest.approx(0.5)
    assert float(rows[-1]["honest_eps"]) == pytest.approx(1e10)
    assert "told apart with up to eps=10,000,000,000," in printed
    assert "all noise follows from seed 0, and is none to whoever knows it" in printed
    assert (out / "accuracy.png").stat().st_size > 10_000


def test_noise_ends_the_learning_where_alpha_is_small(capsys):
    assert main([*QUICK, "--rounds", "10", "--alpha", "1e-6", "--method", "basic"]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("   10")]
    assert float(last[0].split()[3].rstrip("%")) < 40


@pytest.mark.parametrize("method", ["non-private", "local", "smc", "dpsgd", "hybrid-one"])
def test_the_methods_it_is_compared_with(method, tmp_path, capsys):
    short = ["--rounds", "2", "--epochs", "1", "--select", "4"]
    assert main([*QUICK, *short, "--method", method, "--out", str(tmp_path / "run")]) == 0
    honest = float(metrics(tmp_path / "run")[-1]["honest_eps"])
    expected = {"non-private": honest == math.inf, "smc": honest == math.inf, "local": honest == 0}
    assert expected.get(method, 0.5 < honest < 100)
    assert "eps" in capsys.readouterr().out


def test_own_budgets_of_the_clients(tmp_path, capsys):
    file = tmp_path / "alphas.txt"
    file.write_text("\n".join(str(0.1 * (i + 1)) for i in range(20)))
    assert main([*QUICK, "--rounds", "4", "--alphas", str(file), "--cycles", "2"]) == 0
    assert "eps=40,000,000,000," in capsys.readouterr().out  # of the one with alpha = 2
    file.write_text("1 2 3")
    with pytest.raises(SystemExit, match="has 3 budgets: give one to each of 20 clients"):
        main([*QUICK, "--rounds", "4", "--alphas", str(file), "--cycles", "2"])


def test_a_run_is_not_stretched_beyond_its_budget(tmp_path):
    arguments = [*QUICK, "--cycles", "1", "--out", str(tmp_path)]
    assert main([*arguments, "--rounds", "3"]) == 0
    with pytest.raises(SystemExit, match="belongs to another run"):
        main([*arguments, "--rounds", "4", "--resume"])
    assert main([*arguments, "--rounds", "3", "--resume"]) == 0


def test_a_budget_stops_the_run(tmp_path):
    arguments = [*QUICK, "--rounds", "4", "--cycles", "2", "--ledger", str(tmp_path / "spent.ledger")]
    with pytest.raises(SystemExit, match="past the budget"):
        main([*arguments, "--budget", "1.1e10"])  # a cycle costs 1e10
    assert len(recorded(tmp_path / "spent.ledger")[1]) == 2
    with pytest.raises(SystemExit, match="--ledger accounts for uploads under alpha-CLDP"):
        main([*arguments, "--budget", "1", "--method", "smc"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "7", "--cycles", "5"], "too few for 2 layers"),
        (["--select", "21"], "--select 21 of --clients 20"),
        (["--dataset", "mnist"], r"give the folder that holds it \(--data DIR\)"),
        (["--alpha", "0"], r"alpha=0\.0 must be above 0"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main([*QUICK, *arguments])


def test_without_noise_there_is_no_eps(capsys):
    assert main([*QUICK, "--rounds", "2", "--cycles", "1", "--no-noise"]) == 0
    assert "eps is infinite" in capsys.readouterr().out
