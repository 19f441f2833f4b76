# SPDX-License-Identifier: Apache-2.0
# `ldpkernels plan --app`: every kind of app is whole, and the smallest of each runs in Flower's simulation.
import ast
import importlib
import importlib.util
import re
import sys

import pytest

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.planning.app import rendered, write_app

FLOWER = importlib.util.find_spec("flwr") is not None
WEIGHTS, NODES = 313, 5  # four hidden units, and three weights of no use
KINDS = [  # (trust, mechanism): one of each kind of lines
    ("local", "privunitg"),
    ("local", "two-point"),
    ("local", "projected-code"),
    ("shuffled", "two-point"),
    ("secure-aggregation", "distributed-gaussian"),
    ("secure-aggregation", "adaptive skellam"),
    ("central", "central gaussian"),
    ("central", "adaptive discrete"),
]


def candidate(trust, name):
    found = ldpkernels.plan(
        300.0, rounds=2, clients=NODES - 1, weights=WEIGHTS, trust=trust, norm=1.0, radius=0.2, invited=NODES
    )
    return next(one for one in found if one.name == name)


@pytest.mark.parametrize(("trust", "name"), KINDS)
def test_an_app_is_whole(trust, name):
    one = candidate(trust, name)
    files = rendered(one)
    assert sorted(files) == [
        "README.md",
        "ldp_app/__init__.py",
        "ldp_app/client_app.py",
        "ldp_app/server_app.py",
        "ldp_app/task.py",
        "pyproject.toml",
    ]
    assert not any(re.search(r"\$\w", text) for text in files.values())
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text)
    for page in ("README.md", "ldp_app/__init__.py"):
        kept = one.assumptions[trust == "shuffled" :]  # the first of which is a shuffler's
        assert all(text in files[page] for text in kept if "colludes" not in text)
        assert all(note in files[page] for note in one.deploy.notes)
    if "threshold=" in one.deploy.client:
        assert all("a server that follows the protocol" in files[page] for page in ("README.md", "ldp_app/__init__.py"))
        assert not any("server included" in text for text in files.values())
    assert not any("/var/lib/ldp/" in text for text in files.values())  # an app has its own folder of ledgers
    assert one.deploy.law in files["ldp_app/__init__.py"]
    assert "rounds = 2" in files["pyproject.toml"]
    planned = re.search(r"# What was asked: (.*)", files["ldp_app/__init__.py"])[1]
    assert name in {again.name for again in eval(planned, {"ldpkernels": ldpkernels})}


def test_an_app_states_the_view_that_its_ledger_charges():
    """It stated the total of shuffled reports, and sent each by itself, under five times as much."""
    found = ldpkernels.plan(2.0, rounds=5, clients=300, weights=85, trust="shuffled", norm=1.0)
    named = {one.name: one for one in found}
    for name in ("privunitg", "projected-code"):
        with pytest.raises(ValueError, match=f"'{name}' has no app: No shuffler .* Plan with trust='local', or bring"):
            rendered(named[name])
    files = rendered(named["two-point"])
    for page in ("README.md", "ldp_app/__init__.py"):
        assert "sees the sums" in files[page]
        assert "shuffled view" not in files[page]
        assert "an ideal shuffler" not in files[page]


def test_its_network_has_the_weights(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    write_app(candidate("local", "privunitg"), tmp_path / "app")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    task = importlib.import_module("ldp_app.task")
    try:
        model = task.network()
        assert sum(weight.numel() for weight in model.parameters()) == WEIGHTS
        parts = [task.part(number, NODES) for number in range(NODES)]
        assert sum(len(y) for _, y in parts) == task.TRAINED
        assert len(task.part(3 * task.TRAINED + 1, 10**6)[1]) == 1
        before = task.accuracy(model)
        task.train(model, *parts[0], epochs=20)
        assert task.accuracy(model) > max(before, 0.2)
    finally:
        for module in [name for name in sys.modules if name.startswith("ldp_app")]:
            del sys.modules[module]


def test_the_command_writes_it(tmp_path, capsys):
    small = ["plan", "--epsilon", "8", "--rounds", "2", "--clients", "9", "--weights", "100", "--norm", "1"]
    folder = tmp_path / "app"
    assert main([*small, "--trust", "central", "--app", str(folder)]) == 0
    assert "central=law" in (folder / "ldp_app" / "client_app.py").read_text()
    assert f"app: {folder}, of 'central gaussian'" in capsys.readouterr().out
    for wrong, message in (
        (["--trust", "central", "--app", str(folder)], "is there already"),
        (["--app", str(tmp_path / "other")], "needs one answer to whom is trusted"),
        (
            ["--trust", "local", "--app", str(tmp_path / "other"), "--choose", "hybrid"],
            "--choose hybrid is not a candidate",
        ),
        (
            ["--trust", "central", "--app", str(tmp_path / "other"), "--choose", "none"],
            "--choose none is not a candidate",
        ),
        (["--trust", "central", "--app", str(tmp_path / "other"), "--weights", "9"], "--weights 9 is outside"),
    ):
        with pytest.raises(SystemExit):
            main([*small, *wrong])
        assert message in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """A SuperLink that simulates, for all apps."""
    deployment = importlib.import_module("tests.flower.deployment")
    with deployment.Deployment(tmp_path_factory.mktemp("superlink")) as found:
        yield found


@pytest.mark.flower
@pytest.mark.skipif(not FLOWER, reason="Flower is not installed")
@pytest.mark.parametrize(("trust", "name"), KINDS)
def test_flwr_run(tmp_path, flower, trust, name):
    one, app = candidate(trust, name), tmp_path / f"{trust}-{name.replace(' ', '-')}"
    write_app(one, app)
    for file in (app / "ldp_app").glob("*_app.py"):  # ledgers of its own
        file.write_text(file.read_text().replace("~/.ldp-app", str(tmp_path / "ledgers")))
    output = flower.run(app, "rounds=2", "--federation-config", f"num-supernodes={NODES}")
    said = re.findall(r"^round (\d): reports=5 skipped=0 failures=0 silent=0 ldp-epsilon=([\d,.]+)", output, re.M)
    assert [number for number, _ in said] == ["1", "2"], output + flower.logs()
    assert float(said[-1][1].replace(",", "")) == float(f"{one.epsilon:.6g}")  # the plan's total
    assert re.search(r"accuracy after 2 rounds: [\d.]+%", output)
    ledgers = {path.name for path in (tmp_path / "ledgers").iterdir()}
    assert ledgers == ({"server.ledger"} if trust == "central" else {f"{i}.ledger" for i in range(NODES)})
