# SPDX-License-Identifier: Apache-2.0
"""The commands `verify` and `demo`, as a user runs them."""

import json

import pytest
import torch

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.commands import verify


def test_verify_prints_measures_and_draws(capsys, tmp_path):
    picture, figures = tmp_path / "deep" / "verify.png", tmp_path / "verify.json"
    backends = [b for b in ldpkernels.backends() if b != "triton"]
    arguments = ["--n", "32768", "--backend", *backends, "--out", str(picture), "--json", str(figures)]
    assert main(["verify", *arguments]) == 0
    out = capsys.readouterr().out
    rows = json.loads(figures.read_text())
    # For each format: two settings of two-point values and reports, of piecewise and of hybrid, at four weights.
    assert len(rows) == len(backends) * (4 * 2 * 4 * 4 + 2 * 6)  # and ordinal CLDP in two formats
    assert {r["backend"] for r in rows} == set(backends)
    assert "all as the theory says" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_verify_notices_a_wrong_mechanism(capsys, monkeypatch):
    right = ldpkernels.perturb_
    monkeypatch.setattr(ldpkernels, "perturb_", lambda x, c, r, eps, **k: right(x, c, r * 1.02, eps, **k))
    arguments = ["--n", "262144", "--backend", ldpkernels.backends()[-2], "--dtype", "float32"]
    assert main(["verify", *arguments]) == 1
    out = capsys.readouterr().out
    assert "<-- not by chance" in out
    assert "cases are NOT as the theory says" in out


def test_verify_refuses_too_few_samples(capsys):
    assert main(["verify", "--n", "1"]) == 2
    assert "--n 1 is too small" in capsys.readouterr().out


def test_theory_is_that_of_the_executed_integers():
    """The moments that verify compares with, from thresholds alone."""
    for case in verify.two_point_cases("bfloat16"):
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
    with pytest.raises(SystemExit, match="clients=5000 must be from 1 to"):
        main(["demo", "--clients", "5000"])
