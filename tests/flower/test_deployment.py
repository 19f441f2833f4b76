# SPDX-License-Identifier: Apache-2.0
"""Flower's own processes: a SuperLink with SuperNodes over TLS, its simulation on Ray, the command line's engine."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ldpkernels.accounting import Ledger
from tests.flower import test_hosting as hosting
from tests.flower.deployment import SECONDS, Deployment
from tests.test_apart import secrets, walls

__all__ = ["secrets", "walls"]  # fixtures

pytestmark = pytest.mark.flower

ROOT = Path(__file__).parents[2]
APPS = "tests/flower/same_bits", "tests/flower/secure_sum"
EXAMPLE, SAME_BITS, SECURE_SUM = (ROOT / path for path in ("examples/flower", *APPS))
ROUND = re.compile(r"^round (\d): reports=(\d+) skipped=0 failures=0 silent=0 ldp-epsilon=([\d,.]+)$", re.M)


APART = "answer_after = 0\n[app]\ndeadline = 100.0\nenvironment = {LDP_OWNED = 'yes'}\n"


def said(output, logs):
    """Accuracy, and (round, reports, epsilon) for each round, of what the example printed."""
    accuracy = re.search(r"accuracy after \d rounds: ([\d.]+)%", output)
    assert accuracy, output + logs
    rounds = [(int(i), int(n), float(epsilon.replace(",", ""))) for i, n, epsilon in ROUND.findall(output)]
    return float(accuracy[1]), rounds


def added(flower, path, nodes, *options):
    """Whether reports by a secure sum have the bits that they have in the clear."""
    output = flower.run(SECURE_SUM, f"nodes={nodes} out='{path}'", *options)
    assert path.exists(), output + flower.logs()
    assert f"reports: {nodes}" in output
    clear = importlib.import_module("tests.flower.secure_sum.app").in_the_clear(nodes)
    with np.load(path) as found:
        return all(np.array_equal(found[name], array) for name, array in clear.items())


def test_a_superlink_with_supernodes_over_tls(tmp_path):
    """The example learns; LDP-FL's driver has the bits of one process, a secure sum those of reports in the clear."""
    ledgers = tmp_path / "ledgers"
    with Deployment(tmp_path, nodes=3, LDP_LEDGERS=str(ledgers)) as flower:
        accuracy, rounds = said(flower.run(EXAMPLE, "rounds=2 nodes=3"), flower.logs())
        out = flower.run(SAME_BITS, f"rounds=2 out='{tmp_path}/state.pt'")
        assert (tmp_path / "state.pt").exists(), out + flower.logs()
        assert added(flower, tmp_path / "sum.npz", 3)
    assert accuracy > 60
    assert [(i, n) for i, n, _ in rounds] == [(1, 3), (2, 3)]
    assert sorted(path.name for path in ledgers.iterdir()) == ["0.ledger", "1.ledger", "2.ledger"]
    with Ledger(ledgers / "1.ledger", epsilon=100_000.0) as ledger:
        assert [float(f"{epsilon:.6g}") for epsilon in ledger.history] == [epsilon for _, _, epsilon in rounds]
    there = torch.load(tmp_path / "state.pt")
    here = importlib.import_module("tests.flower.same_bits.app").state_after(2)
    assert there["weights"].keys() == here.weights.keys()
    assert all(torch.equal(there["weights"][name], here.weights[name]) for name in here.weights)


@pytest.mark.parametrize("apart", [False, True])
def test_nodes_whose_owners_say_what_they_send(tmp_path, apart, walls):
    """Shares of noise on a real SuperLink, by numbers of the nodes' own files, and their ledgers stop them."""
    app = importlib.import_module("tests.flower.secure_sum.app")
    fields = "".join(f"{name} = {value}\n" for name, value in vars(app.LAW).items())
    spent = f"threshold = 3\nbudget = 8.0\nledger = '{tmp_path}/{{partition-id}}.ledger'\n"
    (tmp_path / "site.toml").write_text(f"{spent}{APART * apart}[law]\nkind = 'DistributedGaussian'\n{fields}")
    how = {"owner": tmp_path / "site.toml"} if apart else {"config": f"ldp='{tmp_path}/site.toml'"}
    with Deployment(tmp_path, nodes=3, LDP_OWNED="yes", **how) as flower:
        first = flower.run(SECURE_SUM, f"nodes=3 out='{tmp_path}/sum.npz'")
        assert "reports: 3" in first, first + flower.logs()
        assert "NoReportsError" in flower.run(SECURE_SUM, f"nodes=3 out='{tmp_path}/again.npz'")
    assert not (tmp_path / "again.npz").exists()
    with np.load(tmp_path / "sum.npz") as found:
        error = np.concatenate([(found[n] - app.START[n] * (1 + 1 / 8)).ravel() for n in app.START])
    assert 0 < np.sqrt((error**2).mean()) < 2 * np.sqrt(app.LAW.mean_error(3) / 601)
    for i in range(3):
        with Ledger(tmp_path / f"{i}.ledger", epsilon=8.0) as ledger:
            assert len(ledger.history) == 1


UPLOADED = """
import json
import numpy as np
from ldpkernels.flower import LdpFedAvg, records

@server.main()
def main(grid, context):
    seen, pull = [], grid.pull_messages
    def pulled(ids):
        found = list(pull(ids))
        seen.extend(found)
        return found
    grid.pull_messages = pulled
    strategy = LdpFedAvg(30.0, R=0.1, min_train_nodes=2, min_available_nodes=2)
    start = ArrayRecord({"w": Array(np.zeros(40, np.float32))})
    result = strategy.start(grid, start, num_rounds=2, timeout=200)
    replies = [
        {"error": m.error.reason} if m.has_error() else
        {"keys": sorted(m.content), "report": len(records.report_in(m.content)), **dict(m.content["metrics"])}
        for m in seen
    ]
    mean = result.arrays["w"].numpy()
    with open(context.run_config["out"], "w") as file:
        json.dump({"replies": replies, "mean": [float(x) for x in mean]}, file)
"""


def test_apps_that_their_nodes_owners_do_not_trust(tmp_path, secrets, walls):
    """A SuperLink, SuperNodes and flower-node: a hostile app's answers are reports of the owner's, and are counted."""
    (secrets / "privacy.toml").write_text(
        f"eps = 30.0\nbudget = 1000\nledger = '{secrets}/ledgers/{{partition-id}}'\nanswer_after = 0\n"
        "metrics = ['accuracy']\n[like]\nw = ['float32', 40]\n[app]\ndeadline = 60.0\n"
    )
    app = tmp_path / "uploaded"
    app.mkdir()
    (app / "app.py").write_text(hosting.source(hosting.HOSTILE) + UPLOADED)
    (app / "pyproject.toml").write_bytes(hosting.PROJECT + b'out = ""\nport = 9\nsecrets = ""\n')
    with Deployment(tmp_path, nodes=2, owner=secrets / "privacy.toml") as flower:
        output = flower.run(app, f"out='{tmp_path}/seen.json' secrets='{secrets}/privacy.toml {secrets}/secret'")
        assert (tmp_path / "seen.json").exists(), output + flower.logs()
    logs = "".join((tmp_path / f"node{i}.log").read_text() for i in range(2))
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert len(seen["replies"]) == 4
    for reply in seen["replies"][:2]:
        assert reply.pop("ldp-epsilon") > 100
        assert reply == {"keys": ["metrics", "report"], "report": seen["replies"][0]["report"], "accuracy": 0.0}
    assert min(seen["mean"]) > 0.09
    assert all("past the budget" in reply["error"] for reply in seen["replies"][2:]), seen
    assert not re.findall(r"WROTE.*|READ (?!nothing).*|SENT|TOKEN", logs)
    assert logs.count("READ nothing") == 4  # the owner's file and the secret, of each node
    assert "STATE 0" in logs
    for i in range(2):
        with Ledger(secrets / "ledgers" / str(i), epsilon=1000.0) as ledger:
            assert len(ledger.history) == 1


def test_flowers_simulation_on_ray(tmp_path):
    """The example; and a secure sum of reports, which has the bits of reports in the clear."""
    four = "--federation-config", "num-supernodes=4"
    with Deployment(tmp_path, LDP_LEDGERS=str(tmp_path / "ledgers")) as flower:
        accuracy, rounds = said(flower.run(EXAMPLE, "rounds=2 nodes=4", *four), flower.logs())
        assert added(flower, tmp_path / "sum.npz", 4, *four)
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
        command += [*options, "--engine", engine, "--workers", "2", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
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
