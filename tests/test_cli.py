# SPDX-License-Identifier: Apache-2.0
"""The commands `verify` and `demo`, as a user runs them, and what all commands have in common."""

import argparse
import json
import subprocess
import sys

import pytest
import torch

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.commands import options, program, verify
from ldpkernels.launch.proved import Answer, Subject
from ldpkernels.laws.registry import MECHANISMS

SCALAR = ["--backend", "scalar", "--dtype", "float32"]
PLAN = ["plan", "--rounds", "2", "--clients", "50", "--weights", "1e2", "--norm", "1"]
PARTIES = ["--parties", "2", "--steps", "2", "--models", "tree", "--local-epochs", "1", "--workers", "1"]


def refused(arguments, message, capsys):
    """Status 2, a sentence on stderr, and nothing done."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert "round/s" not in said.err  # no round was begun


def test_verify_prints_measures_and_draws(capsys, tmp_path):
    picture, figures = tmp_path / "deep" / "verify.png", tmp_path / "verify.json"
    backends = [b for b in ldpkernels.backends() if b != "triton"]
    arguments = ["--n", "1024", "--backend", *backends, "--out", str(picture), "--json", str(figures)]
    assert main(["verify", *arguments]) == 0
    out = capsys.readouterr().out
    rows = json.loads(figures.read_text())
    # For each format: two settings of every mechanism's values and of two-point reports, at four weights.
    assert len(rows) == len(backends) * (4 * 2 * (len(MECHANISMS) + 1) * 4 + 2 * 6)  # and ordinal CLDP in two formats
    assert {r["backend"] for r in rows} == set(backends)
    assert "all as the theory says" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_verify_notices_a_wrong_mechanism(capsys, monkeypatch):
    right = ldpkernels.perturb_
    monkeypatch.setattr(verify, "perturb_", lambda x, c, r, eps, **k: right(x, c, r * 1.02, eps, **k))
    arguments = ["--n", "262144", "--backend", ldpkernels.backends()[-2], "--dtype", "float32"]
    assert main(["verify", *arguments]) == 1
    out = capsys.readouterr().out
    assert "<-- not by chance" in out
    assert "cases are NOT as the theory says" in out


def test_verify_prints_a_devices_answers(capsys, monkeypatch):
    """Every kernel with what came of its questions; 1 where one is wrong."""
    subjects = [Subject("two_point", "values", name, "philox") for name in ("float32", "bfloat16")]
    answers = [Answer(subjects[0], "cuda", None), Answer(subjects[1], "triton", "gives 3 of 90 known bytes wrong")]
    monkeypatch.setattr(verify, "ask_all", lambda device: iter(answers))
    assert main(["verify", "--device", "cpu"]) == 1
    printed = [line.split(maxsplit=5) for line in capsys.readouterr().out.splitlines()]
    assert printed[1] == ["two_point", "values", "float32", "philox", "cuda", "the host's bits"]
    assert printed[2] == ["two_point", "values", "bfloat16", "philox", "triton", answers[1].error]
    assert " ".join(printed[-1]) == "2 kernels, 1 of them WRONG"
    del answers[1]
    assert main(["verify", "--device", "cpu"]) == 0
    assert "1 kernels, all with the host's bits" in capsys.readouterr().out


def test_verify_refuses_too_few_samples(capsys):
    refused(["verify", "--n", "1"], "argument --n: 1 is too small: use at least 1000", capsys)


def test_theory_is_that_of_the_executed_integers():
    """The moments that verify compares with, from thresholds alone."""
    for case in verify.weight_cases("two-point", "bfloat16"):
        eps, c, r = (float(part.split("=")[1]) for part in case.setting.split())
        x = torch.tensor([case.weight], dtype=torch.bfloat16)
        output, dtype = ("values", "bfloat16") if case.mechanism == "perturb_" else ("report", None)
        p = int(ldpkernels.two_point_threshold(x, c, r, eps, output=output)) / 2**32
        lower, upper = ldpkernels.TwoPoint(eps).outputs(c, r, dtype)
        assert case.mean == pytest.approx(lower + (upper - lower) * p, abs=2e-6 * r)
        assert case.variance == pytest.approx(p * (1 - p) * (upper - lower) ** 2, rel=2e-6)


def test_demo_learns_under_noise(capsys, tmp_path):
    threads = torch.get_num_threads()
    picture = tmp_path / "demo.png"
    try:
        assert main(["demo", "--rounds", "6", "--out", str(picture)]) == 0
    finally:
        torch.set_num_threads(threads)
    captured = capsys.readouterr()
    last = captured.out.split("\n    6")[1].split("\n")[0].replace("%", "").split()
    bits, cells, plain = (float(v) for v in last)
    assert plain > 80
    assert bits > 70  # measured: 82.2; ten classes
    assert cells > 75  # measured: 84.4
    assert "eps=4" in captured.err  # progress
    assert picture.stat().st_size > 10_000


def test_demo_refuses_more_clients_than_images():
    with pytest.raises(SystemExit, match="--clients 5000 must be from 1 to"):
        main(["demo", "--clients", "5000"])


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["verify", "--n", "1024", *SCALAR], {"mechanism", "backend", "z_mean"}),
        (["audit", "--n", "512", *SCALAR], {"name", "measured", "claimed", "ok"}),
        (["account", "local", "--eps", "1"], {"epsilon", "delta", "adversary"}),
        (["fl", "ldp-fl", "--rounds", "1"], {"algorithm", "config", "weights", "rounds"}),
        (["fl", "ldp-fed", "--rounds", "2", "--cycles", "1"], {"algorithm", "config", "weights", "rounds"}),
        (["fl", "han-xue", *PARTIES], {"algorithm", "config", "global", "standalone", "protected", "rounds"}),
        (["demo", "--rounds", "1"], {"clients", "weights", "rounds"}),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_every_command_gives_json(command, names, capsys, tmp_path):
    """On stdout, and one of them beside the text: what writes both is of all commands."""
    file = tmp_path / "deep" / "found.json"
    if command[0] == "account":
        assert main([*command, "--json", str(file)]) == 0
        assert capsys.readouterr().out != ""
        data = json.loads(file.read_text())
        assert names <= set(data[0] if isinstance(data, list) else data)
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)  # nothing else on stdout
    assert names <= set(data[0] if isinstance(data, list) else data)


def test_json_has_no_infinity():
    assert program.plain({"eps": float("inf"), "rows": ({"a": -float("inf")},)}) == {
        "eps": "infinity",
        "rows": [{"a": "-infinity"}],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--out", "verify.xyz"], "'verify.xyz' is not a picture: end its name in one of"),
        (["verify", "--out", f"{__file__}/verify.png"], f"cannot be written: {__file__!r} is not a folder"),
        (["verify", "--json", "verify"], "'verify' is not a file for JSON: end its name in .json"),
        (["verify", "--backend", "abacus"], "ldpkernels verify: --backend abacus is not available here: use one of"),
        (["verify", "--device", "abacus"], "--device abacus is unknown to torch: use cpu or cuda"),
        (["verify", "--device", "cuda:99"], "--device cuda:99: torch finds"),
        (["verify", "--device", "cpu"], "--device cpu: no GPU backend has a kernel that runs there"),
        (["verify", "--seed", "-1"], "argument --seed: -1 is too small"),
        (["audit", "--eps", "nan"], "argument --eps/--epsilon: nan must be above 0 and finite"),
        (["audit", "--delta", "1"], "argument --delta: 1 must be at least 0 and below 1"),
        (["audit", "--function", "math:nothing"], "--function math:nothing: module 'math' has no attribute 'nothing'"),
        (["audit", "--function", "math:pi"], "--function math:pi: that is a float, give a function f(input, n)"),
        (["audit", "--function", "math:sin"], "math:sin: f(-1, 262144) raised TypeError"),
        (["account", "claims", "--json", "han-xue"], "'han-xue' is not a file for JSON"),
        (["demo", "--clients", "0"], "argument --clients: 0 is too small: use at least 1"),
        (["fl", "ldp-fl", "--eps", "-1"], "ldpkernels fl ldp-fl: argument --eps/--epsilon: -1 must be above 0"),
        (["fl", "ldp-fl", "--device", "cuda:99"], "--device cuda:99: torch finds"),
        (["fl", "ldp-fl", "--device", "abacus"], "--device abacus is unknown to torch: use cpu or cuda"),
        (["fl", "ldp-fl", "--device", "meta"], "--device meta: the kernels reach cpu and cuda only"),
        (["fl", "ldp-fl", "--threads", "0"], "argument --threads: 0 is too small"),
        (["fl", "ldp-fl", "--delta", "0"], "argument --delta: 0 must be above 0 and below 1"),
        (["fl", "ldp-fl", "--resume"], "--resume goes on from the checkpoint in --out: give --out DIR"),
        (["fl", "ldp-fl", "--out", __file__], "is a file: give a folder"),
        (["fl", "ldp-fl", "--ledger", f"{__file__}/l.jsonl", "--budget", "9"], "argument --ledger: "),
        (["demo", "--out", f"{'a' * 300}.png"], "cannot be written: File name too long"),
        (["fl", "ldp-fl", "--growth", "2"], "--growth 2.0 is for adaptive ranges: give --adaptive"),
        (["fl", "ldp-fl", "--radius", "1e39"], "exceeds float32: use a smaller range"),
        (["fl", "ldp-fl", "--rate", "1e99"], "argument --rate: 1e99 must be above 0 and below 1e+30"),
        (["fl", "ldp-fed", "--select", "99"], "--select 99 of --clients 50: select at most as many"),
        (["fl", "ldp-fed", "--rho", "23"], "argument --rho: 23 is too large: use at most 22"),
        (["fl", "ldp-fl", "--dataset", "mnist", "--data", "/nowhere"], "the data folder '/nowhere' does not exist"),
        (["fl", "han-xue", "--dataset", "adult"], "give the folder that holds adult/ (--data DIR)"),
        (["fl", "han-xue", "--parties", "1"], "--parties 1: a single vote leads by 1 only"),
        (["fl", "han-xue", "--models", "oracle"], "model='oracle' must be one of"),
        (["fl", "ldp-fl", "--dataset", "mnist"], "give the folder that holds it (--data DIR)"),
        (["fl", "ldp-fed", "--ledger", "x", "--budget", "1", "--no-noise"], "--ledger accounts for uploads"),
        (["fl", "ldp-fl", "--network", "resnet"], "--network 'resnet' must be one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_are_checked_before_any_work(arguments, message, capsys):
    refused(arguments, message, capsys)


def test_a_file_system_that_takes_no_files_is_found_out_before_the_work(capsys):
    """Its permissions say that it does."""
    for arguments in (["demo", "--out", "/proc/demo.png"], ["verify", "--json", "/proc/found.json"]):
        refused(arguments, "cannot be written: ", capsys)


def test_an_audit_without_scipy_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    refused(["audit", *SCALAR], "an audit needs scipy: pip install 'ldpkernels[audit]'", capsys)


def test_a_picture_without_matplotlib_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(["demo", "--out", "demo.png"], "a picture needs matplotlib: pip install 'ldpkernels[plot]'", capsys)


def test_a_reader_that_leaves_ends_the_command_without_a_word():
    command = [sys.executable, "-m", "ldpkernels", "verify", "--n", "1024", *SCALAR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("mechanism")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + 13


def test_an_interrupted_command_ends_without_a_traceback(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "measure_all", interrupt)
    with pytest.raises(SystemExit) as stop:
        main(["verify", *SCALAR])
    assert stop.value.code == 130
    assert "ldpkernels verify: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1000000", "1,000,000", "1_000_000", "1e6", "1E+6"])
def test_counts_are_read_as_people_write_them(text):
    assert options.count(text) == 10**6


@pytest.mark.parametrize("text", ["1,00", "1e-1", "1.5", "many", "", "nan", "inf", "1e30"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number"):
        options.count(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fl", "ldp-fl", "--radius", "-1"], "ldpkernels fl ldp-fl: --radius -1.0 must be"),
        (["fl", "ldp-fl", "--upload", "updates"], "ldp-fl: --upload updates needs --radius: the initial weights"),
        (["fl", "ldp-fed", "--alpha", "0"], "argument --alpha: 0 must be above 0 and finite"),
        (["account", "cldp", "--alpha", "0"], "argument --alpha: 0 must be above 0 and finite"),
        (PLAN[:-2], "plan: --radius and --norm are both missing"),
        ([*PLAN, "--trust", "local", "--choose", "gaussian"], "--choose gaussian names the mechanism of an app"),
        ([*PLAN, "--app", "app"], "--app app needs one answer to whom is trusted: name it with --trust"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_refusals_name_options_as_they_are_written(arguments, message, capsys):
    refused([*arguments, "--eps", "1"] if arguments[0] == "plan" else arguments, message, capsys)


@pytest.mark.parametrize("option", ["--eps", "--epsilon"])
@pytest.mark.parametrize(
    "command",
    [PLAN, *(["account", name] for name in ("local", "shuffle", "subsample")), ["audit"], ["fl", "ldp-fl"], ["demo"]],
)
def test_no_command_takes_an_eps_of_0(command, option, capsys):
    """In one line, the same everywhere."""
    with pytest.raises(SystemExit) as stop:
        main([*command, option, "0"])
    name = "ldpkernels " + " ".join(word for word in command[:2] if word.isidentifier() or word == "ldp-fl")
    assert stop.value.code == 2
    said = f"{name}: argument --eps/--epsilon: 0 must be above 0 and finite ({name} --help)\n"
    assert capsys.readouterr().err == said


def test_an_option_that_a_command_does_not_know_is_refused_by_its_name(capsys):
    with pytest.raises(SystemExit):
        main(["account", "local", "--eps", "1", "--lenght", "3"])
    named = "ldpkernels account local: unrecognized arguments: --lenght 3 (ldpkernels account local --help)\n"
    assert capsys.readouterr().err == named


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise", "hybrid", "sign", "k-of-d", "privunitg"])
def test_account_names_mechanisms_as_plan_does(mechanism, capsys):
    assert main(["account", "local", "--mechanism", mechanism, "--eps", "1", "--weights", "1e2", "--short"]) == 0
    assert capsys.readouterr().out.startswith("epsilon = ")


def test_a_radius_that_is_taken_for_the_norm_is_said(capsys):
    question = [*PLAN, "--eps", "8", "--trust", "local"]
    for more, said in (([], True), (["--radius", "0.1"], False)):
        assert main([*question, *more]) == 0
        assert ("without --radius, calls with R use the norm" in capsys.readouterr().out) is said


def test_a_folder_that_is_made_is_said(capsys, tmp_path):
    for said in (True, False):
        assert main(["account", "local", "--eps", "1", "--json", str(tmp_path / "new" / "found.json")]) == 0
        assert ("made the folder" in capsys.readouterr().err) is said
