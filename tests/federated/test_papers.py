# SPDX-License-Identifier: Apache-2.0
"""The papers' pages: what they say is what their cells say, and a seed is part of a cell's name."""

import json
import math
import re
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

pytest.importorskip("torch")
from benchmarks.papers import all as all_papers
from benchmarks.papers import (
    han_xue_dssgd,
    han_xue_plan,
    han_xue_runs,
    han_xue_tables,
    han_xue_tries,
    ldp_fed_runs,
    ldp_fed_tables,
    ldp_fl_others,
    ldp_fl_plan,
    ldp_fl_runs,
)
from benchmarks.papers.common import RESULTS, Cells, Job, filled
from ldpkernels.federated import ldp_fl as algorithm

PAGES = all_papers.pages("", RESULTS, 1)
NAMED = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def words_of(page):
    return (RESULTS / f"{page.name}.md").read_text()


def cells_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@NAMED
def test_a_page_says_what_its_cells_say(page, tmp_path):
    (tmp_path / f"{page.name}.json").write_text(json.dumps(page.cells.all()))
    replace(page, cells=Cells(tmp_path / f"{page.name}.json"), draw=lambda *_: None).write()
    assert (tmp_path / f"{page.name}.md").read_text() == words_of(page)


@NAMED
def test_a_page_begins_with_its_first_cell(page, tmp_path):
    """In a folder of one's own a run is shown beside tables and pictures that are empty."""
    first = dict([next(iter(page.cells.all().items()))])
    (tmp_path / f"{page.name}.json").write_text(json.dumps(first))
    replace(page, cells=Cells(tmp_path / f"{page.name}.json")).write()
    assert "in all | 1 runs" in re.sub(" +", " ", (tmp_path / f"{page.name}.md").read_text())


DRAWN = [pytest.param(p, id=p.name, marks=[] if p is PAGES[1] else pytest.mark.exhaustive) for p in PAGES]


@pytest.mark.parametrize("page", DRAWN)
def test_a_page_has_the_pictures_of_its_cells(page, tmp_path):
    page.draw(page.cells.all(), tmp_path / f"{page.name}.png")
    pictures = sorted(path.stem for path in tmp_path.glob("*.svg"))
    assert pictures == sorted(path.stem for path in tmp_path.glob("*.png"))
    assert pictures == sorted(path.stem for path in RESULTS.glob(f"{page.name}*.svg"))


def test_a_page_has_a_mark_for_every_table_and_a_table_for_every_mark():
    page = "Words.\n<!-- table: a -->\n\nold\n\n<!-- end of table -->\nMore words.\n"
    assert filled(page, {"a": "new"}) == page.replace("old", "new")
    for tables in ({}, {"a": "new", "b": "lost"}):
        with pytest.raises(ValueError, match=r"marks for \['a'\]"):
            filled(page, tables)


@NAMED
def test_every_run_is_of_the_plan_and_every_picture_is_there(page):
    """What no table shows any more is not among the figures, nor in a page's count of runs. A name has its seed."""
    planned = [job.name for job in page.jobs]
    assert len(set(planned)) == len(planned)
    assert set(page.cells.all()) <= set(planned)
    assert all("seed=" in name for name in planned)
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", words_of(page))
    assert pictures
    assert not [name for name in pictures if not (RESULTS / name).exists()]


def test_generators_are_equal_whatever_the_sigma():
    """What the page says of the runs of seed 0."""
    cells = cells_of("han-xue")
    kept = [s for s in han_xue_tables.kept_of(cells) if (s.dataset, s.sound, s.parties) == ("adult", False, 5)]
    assert sorted(s.sigma for s in kept) == [1, 1.5, 3, 5]
    ((_, ended),) = {(cells[s.name]["digest"], cells[s.name]["global"]) for s in kept}
    assert f"each ends at {ended:.4f}." in words_of(PAGES[2]).replace("\n", " ")


def test_the_readmes_figures_are_those_of_the_cells():
    """An accuracy with its deviation and seeds is on a page, the paper's too, and the honest epsilon is a cell's."""
    text = (RESULTS.parents[2] / "README.md").read_text()
    lines = text[text.index("## The papers, rerun") :].splitlines()
    rows = [row for row in (line.split("|") for line in lines if line.startswith("| ")) if "%" in row[3]]
    pages = re.sub(" +", " ", " ".join(map(words_of, PAGES)))
    lost = {cell.get("honest_eps") for page in PAGES for cell in page.cells.all().values()} - {None}
    assert 6 <= len(rows) <= 8
    for row in rows:
        mean, deviation, seeds = re.match(r" ([\d.]+) ± ([.\d]+)% \((\d+) seeds\)", row[3]).groups()
        paper, honest = row[2].strip(), row[5].strip()
        if "Han and Xue" in row[1]:  # whose page has fractions
            ours, paper = f"{float(mean) / 100:.4f} ± {float(deviation) / 100:.4f}", f"{float(paper[:-1]) / 100:.4f}"
            assert (row[4].strip(), honest) == ("the same bits", "infinite")
        else:
            ours, clean = f"{mean}% ± {float(deviation):.2f}", re.match(r" ([\d.]+) ± ([.\d]+)% ", row[4]).groups()
            assert f"{clean[0]}% ± {float(clean[1]):.2f} (" in pages
            assert int(honest.replace(",", "")) in {math.ceil(eps) for eps in lost} | {round(eps) for eps in lost}
        assert f"| {ours} ({seeds} seeds)" in pages, row
        assert f"| {paper} |" in pages, row


@pytest.mark.parametrize(("alpha", "M"), [(1.0, 10), (0.3, 6), (2.0, 3), (1e-3, 50)])
def test_an_adversary_is_as_sure_as_the_law_says(alpha, M):
    values = np.arange(-M, M + 1)
    law = np.exp(-alpha / 2 * np.abs(values[:, None] - values))
    law /= law.sum(1, keepdims=True)
    sure = (law / law.sum(0)).max()
    assert ldp_fed_tables.certainty(alpha, M) == pytest.approx(sure, rel=1e-9)
    eps = ldp_fed_tables.equivalent_epsilon(alpha, M)
    assert math.exp(eps) / (math.exp(eps) + 2 * M) == pytest.approx(sure, rel=1e-9)


def as_kept(config):
    return json.loads(json.dumps(asdict(config)))


def said_by(kind, name, cell):
    """The run that a cell says it is, which is that of its name."""
    s = kind(**{field.name: cell[field.name] for field in fields(kind) if field.name in cell})
    assert s.name == name
    return s


LATER = {"weigh": "alike", "dropout": 0.0, "global_model": ""}
WENT = {"weigh": "alike", "dropout": 0.0, "selection": "fixed"}  # options that LDP-Fed's comparisons had


def assert_ran(ran, today, name, later=LATER):
    """What ran is what the plan says today; an option that came later has its default."""
    assert {option: value for option, value in today.items() if option not in ran}.items() <= later.items(), name
    ran = {option: value for option, value in ran.items() if option in today or WENT.get(option) != value}
    assert {**today, **ran} == today, name


REAL_NOISE = re.compile(r"ldpkernels\.clipped_noised_sum\(updates, C=(.*), sigma=(.*)\)")


def test_what_a_cell_of_ldp_fl_says_is_what_ran():
    """The kept configuration is that of the cell's name, today."""
    found = cells_of("ldp-fl")
    for other in ldp_fl_others.plan():
        ran, candidate = found.pop(other.name)["ran"], ldp_fl_others.planned(other, 21_840)
        assert ran["task"] == as_kept(ldp_fl_others.task_of(other))
        assert ran["rounds"] == other.rounds
        if noise := REAL_NOISE.fullmatch(ran["plan"]):  # as it was called before, of the same deviation
            assert float(noise[1]) * float(noise[2]) == pytest.approx(candidate.law.sigma, rel=1e-4)
        else:
            assert ran["plan"] == ("" if candidate is None else candidate.call)
    assert len(found) > 600
    usual = as_kept(algorithm.Config(None))
    for name, cell in found.items():
        s, ran = said_by(ldp_fl_plan.Setting, name, cell), cell["ran"]
        assert s.twin.eps is None
        assert_ran(ran["config"], as_kept(ldp_fl_runs.config_of(s, ldp_fl_runs.network_of(s))), name, usual)
        assert (ran["clients"], ran["rounds"]) == (s.clients, s.rounds)
        copies = 1 if s.eps is None or not s.trained else round(s.fraction * s.clients) // s.trained
        assert ran.get("reports of a model", copies) == copies  # runs of before this was kept have it in fields alone
        assert ran["network"] == (s.network or ldp_fl_plan.NETWORK[s.dataset])
        assert ran["examples of a client"] == ldp_fl_plan.EXAMPLES[s.dataset] // s.clients


def test_the_cells_of_the_other_pages_say_what_ran_too():
    found = cells_of("ldp-fed-fashion-mnist")
    assert len(found) >= 140
    for name, cell in found.items():
        s = said_by(ldp_fed_runs.Run, name, cell)
        config = ldp_fed_runs.config_of if s.method in ldp_fed_runs.ldp_fed.METHODS else ldp_fed_runs.other_config
        assert_ran(cell["ran"]["config"], as_kept(config(s)), name)
    found = cells_of("han-xue")
    assert len(found) >= 100
    for name, cell in found.items():
        if name.startswith(han_xue_runs.BASELINE):
            s = replace(han_xue_runs.run_of(cell["dataset"], cell["seed"]), baseline=True)
            assert name == han_xue_runs.BASELINE + s.name
        elif name.startswith((han_xue_tries.SWAPPED, han_xue_tries.WIDE, han_xue_tries.LOG)):
            assert_ran(cell["ran"]["config"], as_kept(han_xue_tries.config_by(name, cell["seed"])), name)
            continue
        elif name.startswith(han_xue_dssgd.PREFIX):
            run = said_by(han_xue_dssgd.Run, name, cell)
            assert_ran(cell["ran"]["config"], as_kept(han_xue_dssgd.config_of(run)), name)
            continue
        else:
            s = said_by(han_xue_plan.Setting, name, cell)
        assert_ran(cell["ran"]["config"], as_kept(han_xue_plan.config_of(s)), name)


def job(name, minutes, done, cell=None):
    def compute(folder):
        done.append(name)
        return cell or {"seed": 0}

    return Job(name, minutes, compute)


def test_cells_are_kept_as_they_finish_and_never_run_twice(tmp_path):
    done, path = [], tmp_path / "cells.json"
    a, b, c = (job(name, 1.0, done) for name in "abc")
    Cells(path).compute(a)
    other = Cells(path)  # another process, which has read the file before b was there
    for one in (a, b):
        Cells(path).compute(one)
    assert done == ["a", "b"]
    other.compute(b)
    assert done == ["a", "b"]
    other.compute(c)
    assert sorted(json.loads(path.read_text())) == ["a", "b", "c"]
