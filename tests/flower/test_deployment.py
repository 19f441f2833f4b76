# SPDX-License-Identifier: Apache-2.0
"""Flower's own processes: a SuperLink with SuperNodes over TLS, its simulation on Ray, the command line's engine."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ldpkernels.accounting import Ledger
from tests.flower.deployment import Deployment

pytestmark = pytest.mark.flower

ROOT = Path(__file__).parents[2]
EXAMPLE, SAME_BITS = ROOT / "examples/flower", ROOT / "tests/flower/same_bits"
ROUND = re.compile(r"^round (\d): reports=(\d+) skipped=0 failures=0 silent=0 ldp-epsilon=([\d,.]+)$", re.M)


def said(output, logs):
    """Accuracy, and (round, reports, epsilon) for each round, of what the example printed."""
    accuracy = re.search(r"accuracy after \d rounds: ([\d.]+)%", output)
    assert accuracy, output + logs
    rounds = [(int(i), int(n), float(epsilon.replace(",", ""))) for i, n, epsilon in ROUND.findall(output)]
    return float(accuracy[1]), rounds


def test_a_superlink_with_supernodes_over_tls(tmp_path):
    """The example learns; then LDP-FL's driver gets the bits that it has in one process, from the same nodes."""
    ledgers = tmp_path / "ledgers"
    with Deployment(tmp_path, nodes=3, LDP_LEDGERS=str(ledgers)) as flower:
        accuracy, rounds = said(flower.run(EXAMPLE, "rounds=2 nodes=3"), flower.logs())
        out = flower.run(SAME_BITS, f"rounds=2 out='{tmp_path}/state.pt'")
        assert (tmp_path / "state.pt").exists(), out + flower.logs()
    assert accuracy > 60
    assert [(i, n) for i, n, _ in rounds] == [(1, 3), (2, 3)]
    assert sorted(path.name for path in ledgers.iterdir()) == ["0.jsonl", "1.jsonl", "2.jsonl"]
    with Ledger(ledgers / "1.jsonl", epsilon=100_000.0) as ledger:
        assert [float(f"{epsilon:.6g}") for epsilon in ledger.history] == [epsilon for _, _, epsilon in rounds]
    there = torch.load(tmp_path / "state.pt")
    here = importlib.import_module("tests.flower.same_bits.app").state_after(2)
    assert there["weights"].keys() == here.weights.keys()
    assert all(torch.equal(there["weights"][name], here.weights[name]) for name in here.weights)


def test_the_example_in_flowers_simulation(tmp_path):
    with Deployment(tmp_path, LDP_LEDGERS=str(tmp_path / "ledgers")) as flower:
        output = flower.run(EXAMPLE, "rounds=2 nodes=4", "--federation-config", "num-supernodes=4")
        accuracy, rounds = said(output, flower.logs())
    assert accuracy > 60
    assert [(i, n) for i, n, _ in rounds] == [(1, 4), (2, 4)]
    assert len(list((tmp_path / "ledgers").iterdir())) == 4


@pytest.mark.parametrize(
    "options", [["--clients", "6"], ["--clients", "8", "--fraction", "0.5", "--mechanism", "piecewise"]]
)
def test_the_engine_has_the_bits_of_one_process(tmp_path, options):
    states = []
    for engine in ("local", "flower"):
        out = tmp_path / engine
        command = [sys.executable, "-m", "ldpkernels", "fl", "ldp-fl", "--rounds", "2", "--eps", "6", "--quiet"]
        options = [*options, "--engine", engine, "--workers", "2", "--out", str(out)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        states.append(torch.load(out / "checkpoint.pt"))
    local, flower = states
    assert flower["described"] == local["described"]
    assert flower["state"].keys() == local["state"].keys()
    for name, weights in local["state"]["weights"].items():
        assert torch.equal(weights, flower["state"]["weights"][name])
    for rows in (local["rows"], flower["rows"]):
        for row in rows:
            del row["seconds"]
    assert local["rows"] == flower["rows"]
