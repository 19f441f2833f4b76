# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl` and `fl ldp-fed`, as a user runs them."""

import csv
import sys

import pytest

pytest.importorskip("torch")
from ldpkernels.__main__ import main
from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import ldp_fl

FL = ["fl", "ldp-fl", "--clients", "40", "--radius", "0.3", "--rate", "0.5", "--epochs", "3", "--quiet"]
FED = ["fl", "ldp-fed", "--clients", "20", "--select", "9", "--rate", "0.4", "--epochs", "3", "--quiet"]


def metrics(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_ldp_fl_trains_and_tells_the_truth(tmp_path, capsys):
    assert main([*FL, "--rounds", "4", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    rows = metrics(tmp_path / "run")
    assert float(rows[-1]["accuracy"]) > 0.6  # ten classes; measured: 0.81
    honest = float(rows[-1]["honest_eps"])
    assert honest > 1000  # 2,410 weights, four rounds, eps = 4 each
    assert f"loses eps={rounded_up(honest)} at delta=1e-05" in out
    assert "all noise follows from seed 0, and hides nothing from whoever knows it" in out
    assert (tmp_path / "run" / "accuracy.png").stat().st_size > 10_000


def test_ldp_fed_trains_and_tells_the_truth(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*FED, "--rounds", "20", "--alpha", "0.5", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rows = metrics(out)
    assert float(rows[-1]["accuracy"]) > 0.6  # ten classes; measured: 0.85
    assert float(rows[-1]["alpha"]) == pytest.approx(0.5)
    assert float(rows[-1]["honest_eps"]) == pytest.approx(1e10)
    assert "told apart with up to eps=10,000,000,000," in printed
    assert "all noise follows from seed 0, and hides nothing from whoever knows it" in printed
    assert (out / "accuracy.png").stat().st_size > 10_000


def test_noise_ends_the_learning_where_alpha_is_small(capsys):
    assert main([*FED, "--rounds", "10", "--alpha", "1e-6", "--method", "basic"]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("   10")]
    assert float(last[0].split()[3].rstrip("%")) < 40


def test_a_run_is_not_stretched_beyond_its_budget(tmp_path):
    arguments = [*FED, "--cycles", "1", "--out", str(tmp_path)]
    assert main([*arguments, "--rounds", "3"]) == 0
    with pytest.raises(SystemExit, match="belongs to another run"):
        main([*arguments, "--rounds", "4", "--resume"])
    assert main([*arguments, "--rounds", "3", "--resume"]) == 0


@pytest.mark.parametrize(
    ("arguments", "budget", "message"),
    [
        ([*FL, "--rounds", "3"], "20000", r"past the budget of 20,?000"),  # two rounds of about 9,500 fit
        ([*FED, "--rounds", "4", "--cycles", "2"], "1.1e10", "past the budget"),  # a cycle of two rounds costs 1e10
    ],
    ids=["ldp-fl", "ldp-fed"],
)
def test_a_budget_stops_the_run(arguments, budget, message, tmp_path):
    out, ledger = str(tmp_path / "run"), ["--ledger", str(tmp_path / "spent")]
    with pytest.raises(SystemExit, match="needs --budget EPS"):
        main([*arguments, *ledger])
    with pytest.raises(SystemExit, match="--budget needs --ledger FILE"):
        main([*arguments, "--budget", "5"])
    with pytest.raises(SystemExit, match=message):
        main([*arguments, *ledger, "--budget", budget, "--out", out])
    assert [row["round"] for row in metrics(tmp_path / "run")] == ["1", "2"]


@pytest.mark.parametrize("arguments", [[*FL, "--rounds", "1"], [*FED, "--rounds", "2", "--cycles", "1"]])
def test_without_noise_there_is_no_eps(arguments, capsys):
    assert main([*arguments, "--no-noise"]) == 0
    assert "eps=" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [["demo"], ["fl", "ldp-fl"], ["fl", "ldp-fed"], ["fl", "han-xue"]])
def test_a_missing_package_is_named(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(
        SystemExit, match=rf"ldpkernels {' '.join(command)}: .* needs tqdm: pip install 'ldpkernels\[federated\]'"
    ):
        main(command)


def test_flowers_nodes_count_alike_and_say_so_before_anything_starts(monkeypatch):
    monkeypatch.setattr(ldp_fl, "require", lambda *names: None)  # with Flower or without
    with pytest.raises(SystemExit, match="--weigh examples: Flower's nodes send reports that count alike: use --engin"):
        main([*FL, "--engine", "flower", "--weigh", "examples"])


def test_a_network_in_eval_mode_is_told_of(tmp_path, monkeypatch):
    (tmp_path / "evaluated_networks.py").write_text(
        "from torch import nn\ndef f():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).eval()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match=r"clients train without module '1' \(Dropout\)"):
        main([*FL, "--model", "evaluated_networks:f", "--rounds", "1", "--workers", "1"])
