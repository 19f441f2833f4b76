# SPDX-License-Identifier: Apache-2.0
"""The command line, and that docs/privacy.md prints what its commands print."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from ldpkernels import accounting
from ldpkernels.__main__ import main

DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
PREFIX = "$ ldpkernels "


def run(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def commands_of_the_document() -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        for part in block.split(PREFIX)[1:]:
            command, _, output = part.partition("\n")
            pairs.append((command, output))
    return pairs


@pytest.mark.parametrize(("command", "output"), commands_of_the_document(), ids=lambda text: text.split("\n")[0])
def test_the_document_prints_what_its_commands_print(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    # the words to the letter; the figures to 1e-4, since libraries differ in the last digits
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", output)
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(output), strict=True):
        assert float(ours.replace(",", "")) == pytest.approx(float(theirs.replace(",", "")), rel=1e-4)


def test_the_document_has_its_commands() -> None:
    assert len(commands_of_the_document()) >= 12


@pytest.mark.parametrize("question", ["local", "shuffle", "subsample", "gaussian", "cldp", "claims", "ledger"])
def test_the_example_in_every_help_runs(
    question: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accounting.Ledger("run.ledger", epsilon=8.0).spend(accounting.GaussianEvent(4.0, scope=accounting.LOCAL), times=2)
    assert run(["account", question, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    example = text.partition("Example: ldpkernels ")[2]
    assert example.startswith(f"account {question}")
    assert run(shlex.split(example)) == 0
    full = capsys.readouterr().out
    assert "epsilon = " in full
    assert "Neighbours: " in full
    assert run([*shlex.split(example), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data


def test_json_has_every_part_of_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "shuffle", "--eps", "1", "--clients", "50", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"epsilon", "delta", "scope", "adversary", "neighbouring", "assumptions", "method"}
    assert run(["account", "shuffle", "--eps", "1", "--target", "0.5", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["result"]["epsilon"] <= 0.5
    assert data["clients"] > 50
    assert run(["account", "cldp", "--alpha", "1", "--layers", "3", "5", "--rounds", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["schedule"]) == 4
    assert run(["account", "local", "--mechanism", "gaussian", "--noise-multiplier", "5", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_a_ledger_is_shown_and_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.ledger"
    with accounting.Ledger(path, epsilon=8.0, method="basic") as ledger:
        for eps in (0.5, 1.25):
            ledger.spend(accounting.PureEvent(eps), times=2)
        path.chmod(0o400)
        before = path.read_bytes()
        assert run(["account", "ledger", str(path)]) == 0
        printed = capsys.readouterr().out
        assert f"{path}: 3.5 of 8 in 2 rounds\n" in printed
        assert "    2            2       3.5  PureEvent(eps=1.25)\n" in printed
        assert run(["account", "ledger", str(path), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["result"] == ledger.result.to_dict()
        assert data["digest"] == ledger.digest
        assert path.read_bytes() == before
    assert run(["account", "ledger", __file__]) == 2
    assert "is not a ledger, or corrupt" in capsys.readouterr().err


def test_shuffled_reports_of_many_outcomes_are_asked_for_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for mechanism, question in itertools.product(("randomized-response", "pure"), ("--clients=80", "--target=0.5")):
        assert run(["account", "shuffle", "--eps", "1", "--mechanism", mechanism, question, "--json"]) == 0
        found[mechanism, question] = json.loads(capsys.readouterr().out)
    assert found["pure", "--clients=80"]["epsilon"] == accounting.shuffle_epsilon(accounting.PureEvent(1.0), 80).epsilon
    assert found["pure", "--clients=80"]["epsilon"] > found["randomized-response", "--clients=80"]["epsilon"]
    assert found["pure", "--target=0.5"]["clients"] > found["randomized-response", "--target=0.5"]["clients"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["local"], "--eps is missing"),
        (["local", "--mechanism", "gaussian"], "--noise-multiplier is missing"),
        (["local", "--eps", "-1"], "argument --eps/--epsilon: -1 must be above 0"),
        (["shuffle", "--eps", "1"], "--clients is missing"),
        (["shuffle", "--eps", "1", "--clients", "5", "--target", "1"], "give one of the two"),
        (["shuffle", "--eps", "1", "--target", "1", "--method", "clones"], "leave --method out"),
        (["shuffle", "--eps=1", "--clients=9", "--mechanism=pure", "--method=exact"], "these have more"),
        (["gaussian", "--noise-multiplier", "1", "--q", "2", "--steps", "1"], "--q 2.0 is outside"),
    ],
)
def test_bad_input_is_a_sentence_and_a_status(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
