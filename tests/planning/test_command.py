# SPDX-License-Identifier: Apache-2.0
# `ldpkernels plan`, and the commands of docs/planning.md.
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from ldpkernels.__main__ import main
from ldpkernels.planning import plan

DOCUMENT = Path(__file__).parents[2] / "docs" / "planning.md"
SMALL = ["plan", "--epsilon", "8", "--rounds", "2", "--clients", "8", "--weights", "20", "--radius", "0.1"]


def test_the_commands_of_the_document_run(capsys):
    commands = re.findall(r"^\$ ldpkernels (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert main(shlex.split(command)) == 0
        assert "trust = central: Use 'central gaussian'" in capsys.readouterr().out


def test_the_example_of_the_help_runs(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    example = text.partition("example: ldpkernels ")[2]
    assert main([*shlex.split(example), "--trust", "local"]) == 0
    assert "trust = local: Use 'privunitg': the noise of a round's mean is" in capsys.readouterr().out


def test_json_is_the_plan(capsys):
    assert main([*SMALL, "--trust", "shuffled", "central", "--better", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data["trust"]) == ["shuffled", "central"]
    for trust, found in data["trust"].items():
        ours = plan(8.0, rounds=2, clients=8, weights=20, radius=0.1, trust=trust)
        assert found["verdict"] == ours.verdict
        assert found["candidates"] == [json.loads(json.dumps(one.to_dict())) for one in ours]
        assert found["left_out"] == ours.left_out
        assert all(value < ours[0].noise_to_signal for value in found["better"].values())


def test_full_prints_every_assumption(capsys):
    assert main([*SMALL, "--trust", "local", "--full"]) == 0
    out = capsys.readouterr().out
    for one in plan(8.0, rounds=2, clients=8, weights=20, radius=0.1, trust="local"):
        assert one.call in out
        assert all(assumption in out for assumption in one.assumptions)


def test_the_picture_is_drawn(capsys, tmp_path):
    picture = tmp_path / "deep" / "plan.png"
    assert main([*SMALL, "--trust", "local", "central", "--out", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    assert "epsilon = 128" in capsys.readouterr().err  # progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "ldpkernels plan: argument --eps/--epsilon: 0 must be above 0 and finite"),
        (["--clients", "many"], "argument --clients: 'many' is not a whole number"),
        (["--trust", "nobody"], "argument --trust: invalid choice: 'nobody'"),
        (["--at-least", "9"], "--at-least 9 is more than the --clients 8"),
        (["--participation", "2"], "--participation 2.0 is outside (0, 1]"),
        (["--out", "plan.xyz"], "'plan.xyz' is not a picture"),
        (["--json", "plan"], "'plan' is not a file for JSON"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_are_checked_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, *arguments])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in " ".join(said.err.split())
    assert "Traceback" not in said.err


def test_without_scipy_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(SystemExit) as stop:
        main(SMALL)
    assert stop.value.code == 2
    assert "pip install 'ldpkernels[accounting]'" in capsys.readouterr().err
