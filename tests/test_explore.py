# SPDX-License-Identifier: Apache-2.0
"""docs/explore.md in headless Chromium, where there is one: its sliders show what `plan` answers."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ldpkernels
from release import explore

pytest.importorskip("dp_accounting")
DOCS = Path(__file__).resolve().parent.parent / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")  # without a network
AXES = {"epsilon": (1.0, 8.0), "clients": (100,), "weights": (1000, 2000), "rounds": (2,)}
# What a reader does: to the left end of two sliders, and another trust.
MOVED = """<script>
for (const name of ["epsilon", "weights"]) document.querySelector(`[name=${name}]`).value = 0;
document.querySelector("[value=local]").click();
document.querySelector("form").dispatchEvent(new Event("input"));
</script>"""


@pytest.fixture(scope="module")
def data():
    places = [(e, 100, w, 2) for e in AXES["epsilon"] for w in AXES["weights"]]
    found = [explore.answer(*place) for place in places]
    return {"axes": AXES, "trusts": explore.TRUSTS, "norm": explore.NORM, "answers": found}


def test_answers_are_those_of_plan(data):
    plan = ldpkernels.plan(8.0, rounds=2, clients=100, weights=2000, trust="local", norm=1.0)
    told = data["answers"][-1][0]
    assert (told["call"], told["verdict"], told["bytes"]) == (plan[0].call, plan.verdict, plan[0].bytes)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("moved", ["", MOVED])
def test_the_page_shows_the_answer_at_its_sliders(data, moved, tmp_path):
    page = (DOCS / "explore.md").read_text().partition("\n<div")[2].partition("\n\nThe curves")[0]
    page = "<!doctype html><meta charset=utf-8><div" + page.replace("{answers}", json.dumps(data))
    (tmp_path / "page.html").write_text(page.replace("assets/explore.js", str(DOCS / "assets/explore.js")) + moved)
    flags = ["--headless", "--no-sandbox", "--no-first-run", f"--user-data-dir={tmp_path}/profile"]
    flags += [f"--disable-{name}" for name in QUIET]
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", f"file://{tmp_path}/page.html"], capture_output=True, text=True, timeout=120
    )
    seen = {name: html.unescape(text) for name, text in re.findall(r'class="(\w+)">([^<]+)</(?:p|code)>', done.stdout)}
    trust, epsilon, weights = ("local", 1, 1000) if moved else ("secure-aggregation", 8, 2000)
    told = data["answers"][0 if moved else -1][explore.TRUSTS.index(trust)]
    assert seen["call"] == told["call"]
    assert seen["verdict"].startswith(told["verdict"])
    assert f"--eps {epsilon} --rounds 2 --clients 100 --weights {weights} --norm 1 --trust {trust}" in seen["command"]
    lines = re.findall(r'class="line" d="M([^"]+)"', done.stdout)
    assert len(lines) == 4
    assert all(len(line.split("L")) == 2 and "NaN" not in line for line in lines)
