# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels fl ldp-fl`, as a user runs it."""

import csv
import signal
import subprocess
import sys
import time

import pytest
import torch

from ldpkernels.__main__ import main
from ldpkernels.accounting.ledger import recorded
from ldpkernels.accounting.records import rounded_up
from ldpkernels.commands import ldp_fl

QUICK = ["fl", "ldp-fl", "--clients", "40", "--radius", "0.3", "--rate", "0.5", "--epochs", "3", "--quiet"]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def metrics(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_it_trains_and_tells_the_truth(tmp_path, capsys):
    assert main([*QUICK, "--rounds", "4", "--out", str(tmp_path / "run"), "--latency", "60"]) == 0
    out = capsys.readouterr().out
    rows = metrics(tmp_path / "run")
    assert float(rows[-1]["accuracy"]) > 0.6  # ten classes; measured: 0.81
    honest = float(rows[-1]["honest_eps"])
    assert honest > 1000  # 2,410 weights, four rounds, eps = 4 each
    assert f"loses eps={rounded_up(honest)} at delta=1e-05" in out
    assert "all noise follows from seed 0, and is none to whoever knows it" in out
    assert "whole models, no delay" in out
    assert (tmp_path / "run" / "accuracy.png").stat().st_size > 10_000


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path, capsys):
    assert main([*QUICK, "--rounds", "4", "--out", str(tmp_path / "whole")]) == 0
    assert main([*QUICK, "--rounds", "2", "--out", str(tmp_path / "parts")]) == 0
    with pytest.raises(SystemExit, match="exists: resume that run"):
        main([*QUICK, "--rounds", "4", "--out", str(tmp_path / "parts")])
    assert main([*QUICK, "--rounds", "4", "--out", str(tmp_path / "parts"), "--resume"]) == 0
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    with pytest.raises(SystemExit, match="belongs to another run"):
        main([*QUICK, "--rounds", "4", "--out", str(tmp_path / "parts"), "--resume", "--eps", "2"])


def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = [*QUICK, "--rounds", "25"]
    command = [sys.executable, "-m", "ldpkernels", *arguments, "--out", str(killed)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not (killed / "checkpoint.pt").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = torch.load(killed / "checkpoint.pt", weights_only=True)
    assert 1 <= done["state"]["round"] < 25
    assert main([*arguments, "--out", str(killed), "--resume"]) == 0
    assert main([*arguments, "--out", str(whole)]) == 0
    assert metrics(killed) == metrics(whole)
    states = [torch.load(folder / "checkpoint.pt", weights_only=True)["state"] for folder in (killed, whole)]
    assert all(torch.equal(w, states[1]["weights"][name]) for name, w in states[0]["weights"].items())


def test_a_budget_stops_the_run(tmp_path):
    arguments = [*QUICK, "--rounds", "3", "--ledger", str(tmp_path / "spent.ledger")]
    with pytest.raises(SystemExit, match="needs --budget EPS"):
        main(arguments)
    with pytest.raises(SystemExit, match=r"past the budget of 20,?000"):
        main([*arguments, "--budget", "20000"])  # two rounds of about 9,500 fit
    assert len(recorded(tmp_path / "spent.ledger")[1]) == 2
    with pytest.raises(SystemExit, match="--budget needs --ledger FILE"):
        main([*QUICK, "--budget", "5"])


def test_without_noise_there_is_no_eps(capsys):
    assert main([*QUICK, "--rounds", "1", "--no-noise"]) == 0
    assert "eps=" not in capsys.readouterr().out


def test_a_missing_dataset_is_explained():
    with pytest.raises(SystemExit, match=r"give the folder that holds it \(--data DIR\)"):
        main([*QUICK, "--dataset", "mnist"])


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
        main([*QUICK, "--engine", "flower", "--weigh", "examples"])


@pytest.mark.parametrize(
    "options", [["--data", "my-package:f", "--network", "digits-mlp"], ["--model", "my-package:f"]]
)
def test_a_name_that_is_none_is_told_so(options):
    with pytest.raises(SystemExit, match=r"'my-package:f' is not the name of a function, package.module:function"):
        main([*QUICK, *options])


def test_a_network_in_eval_mode_is_told_of(tmp_path, monkeypatch):
    (tmp_path / "evaluated_networks.py").write_text(
        "from torch import nn\ndef f():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).eval()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match=r"clients train without module '1' \(Dropout\)"):
        main([*QUICK, "--model", "evaluated_networks:f", "--rounds", "1", "--workers", "1"])
