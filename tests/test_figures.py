# SPDX-License-Identifier: Apache-2.0
"""Figures that pages quote from benchmarks are those of the files that they name."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEPLOYED = "benchmarks/results/2026-11-24-deploy-mnist.json"
RESULTS = "benchmarks/results/2026-11-24-zen4-2-cores{}.json"


def ratios(suite):
    return {one["text"]: one["ratio"] for one in json.loads((ROOT / RESULTS.format(suite)).read_text())["targets"]}


def against(ours, *others):
    return [f"{ours} : {other}" for other in others]


PEERS = ("torch eager, bernoulli", "torch.compile", "mul_ in place")
OURS = {
    kind: [f"{kind} {call}, {isa} : two-point" for isa in ("avx2", "avx512") for call in ("perturb_", "report")]
    for kind in ("piecewise", "hybrid")
}
CLDP, OPENDP, DIFFPRIVLIB = "cldp_sample, {} : {}", "OpenDP, discrete Laplace", "diffprivlib, truncated geometric"
SUMS = against("clipped sum, [256, 1M] fp32", "eager", "eager einsum", "Opacus", "torch.compile of eager")
QUOTED = [
    (
        "README.md",
        "is {:.0f} times as fast as eager torch and {:.0f} times as fast as torch.compile, and it reaches {:.2f} of",
        "",
        against("perturb_, avx512", *PEERS),
    ),
    (
        "README.md",
        "with AVX2 alone it is {:.0f} and {:.0f} times as fast, and reaches {:.2f}.",
        "",
        against("perturb_, avx2", *PEERS),
    ),
    *(
        (
            "docs/mechanisms/piecewise.md",
            f"| {kind}, `perturb_` and `report` | {{:.2f}}, {{:.2f}} | {{:.2f}}, {{:.2f}} |",
            "-family",
            texts,
        )
        for kind, texts in OURS.items()
    ),
    (
        "docs/mechanisms/ordinal_cldp.md",
        "{:.1f} times eager torch with AVX-512 and {:.1f} with AVX2, {:,.0f} and {:,.0f} times OpenDP's exact discrete "
        "Laplace, {:,.0f} and {:,.0f} times diffprivlib",
        "-family",
        [CLDP.format(isa, one) for one in ("torch eager, inverse", OPENDP, DIFFPRIVLIB) for isa in ("avx512", "avx2")],
    ),
    (
        "docs/mechanisms/clipped_noise.md",
        "{:.1f} times eager torch (the sum as one writes it), {:.1f} times its best form, {:.1f} times Opacus, "
        "{:.1f} times torch.compile",
        "-clipped",
        SUMS,
    ),
]


@pytest.mark.parametrize(("page", "words", "suite", "texts"), QUOTED, ids=lambda one: str(one)[:40])
def test_ratios_are_those_of_the_results(page, words, suite, texts):
    found = ratios(suite)
    said = words.format(*(found[text] if found[text] < 1000 else float(f"{found[text]:.3g}") for text in texts))
    assert said in " ".join((ROOT / page).read_text().split())


NAMES = {
    "`mul_` in place, at its best: from the last-level cache": "mul_ in place",
    "`copy_`, memory alone": "copy_",
    "`perturb_`, a Philox key of yours": "perturb_, avx512 Philox",
    "`report`, one bit a weight": "report",
    "**`perturb_`**, default key": "perturb_",
    "torch.compile, the same mechanism": "torch.compile, bernoulli",
    "NumPy": "NumPy, compare",
    "torch eager (`bernoulli`)": "torch eager, bernoulli",
}


def test_the_readmes_table_is_that_of_the_results():
    rows = json.loads((ROOT / RESULTS.format("")).read_text())["rows"]
    fastest = {row["name"]: row["elements"] / min(row["sweeps"]) for row in rows if row["group"].endswith("16 M fp32")}
    text = (ROOT / "README.md").read_text()
    for ours, theirs in NAMES.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {ours} |"))
        number, unit = line.split("|")[2].replace("*", "").split()
        assert float(number) * {"G": 1e9, "M": 1e6}[unit] == pytest.approx(fastest[theirs], rel=0.01), line


ON_GPU = {
    "`mul_` in place, at its best: from the last-level cache": "mul_ in place",
    "`report`, one bit a weight": "report two-point, cuda, ChaCha20",
    "**`perturb_`**, default key": "perturb_ two-point, cuda, fresh keys",
    "`perturb_`, a Philox key of yours": "perturb_ two-point, cuda, Philox",
    "`perturb_`, piecewise": "perturb_ piecewise, cuda, Philox",
    "torch.compile, the same mechanism": "torch.compile, compare",
    "torch eager (`bernoulli`)": "torch eager, bernoulli",
}


def test_the_readmes_column_of_a_gpu_is_that_of_the_results():
    rows = map(json.loads, (ROOT / "benchmarks/results/2026-11-26-h200.jsonl").read_text().splitlines())
    rates = {row["name"]: row["elements"] / row["seconds"] for row in rows if row["group"].endswith("of fp32 weights")}
    text = (ROOT / "README.md").read_text()
    for ours, theirs in ON_GPU.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {ours} |"))
        number = float(line.split("|")[4].replace("*", "").split()[0])
        assert number * 1e9 == pytest.approx(rates[theirs], rel=0.01), line


def test_counts_of_instructions_are_those_of_the_table():
    table = json.loads((ROOT / "benchmarks/cost/table.json").read_text())["kernels"]
    of = {name: counts["instructions"] for name, counts in table.items()}
    philox, chacha = of["perturb_, fp32, Philox"], of["perturb_, fp32, ChaCha20"]
    assert f"| AVX2, instructions | {philox:.2f} | {chacha:.2f} | |" in (ROOT / "docs/rng.md").read_text()
    said = (ROOT / "docs/mechanisms/clipped_noise.md").read_text()
    single, twos = of["clipped_noised_sum, 8 rows of one"] / 8, of["clipped_noised_sum, rows of two"]
    assert f"`make cost`: {single:.2f} a number with AVX2, 10.4 before; rows of two {twos:.1f}, 9.2 before" in said


def test_the_tables_of_apps_are_those_of_the_runs():
    for name in ("torch", "scipy"):
        pytest.importorskip(name)
    from benchmarks.deploy.page import tables
    from benchmarks.results import filled

    found = json.loads((ROOT / DEPLOYED).read_text())
    text = (ROOT / "docs/deploying.md").read_text()
    assert filled(text, tables(found)) == text
    apps = {name: run for name, run in found.items() if name.startswith("app ")}
    assert all(0.99 * run["planned"] < run["spent"] <= run["planned"] for run in apps.values())
    (said,) = re.findall(r"reached \*\*([\d.]+)% on MNIST at\s+ε = 8\*\*", (ROOT / "README.md").read_text())
    reached = [run["accuracy"] for name, run in apps.items() if "trust=secure-aggregation epsilon=8 " in name]
    assert float(said) == round(100 * sum(reached) / len(reached), 1)
