# SPDX-License-Identifier: Apache-2.0
"""The gate of `make cost`: what it refuses, and that the table has every kernel that is counted."""

import copy
import json

import pytest

from benchmarks.cost import count, sections

TABLE = json.loads(count.TABLE.read_text())


@pytest.mark.parametrize("group", count.DEPENDS)
def test_what_costs_more_is_refused_and_what_costs_less_is_not(group):
    assert count.dearer(TABLE, TABLE) == []
    for factor, refused in ((1.019, 0), (0.5, 0), (1.021, 1)):
        found = copy.deepcopy(TABLE)
        name, counts = max(found[group].items(), key=lambda item: item[1]["instructions"])
        counts["instructions"] = factor * counts["instructions"] + (refused and count.SLACK[group])
        assert len(count.dearer(found, TABLE)) == refused, (group, name, factor)


def test_what_is_new_or_lost_is_refused():
    found = copy.deepcopy(TABLE)
    found["kernels"]["new"] = found["kernels"].pop("report, Philox")
    lost, *new = count.dearer(found, TABLE)
    assert "report, Philox" in lost
    assert all(words.startswith("new: not in the table") for words in new)
    assert new


@pytest.mark.parametrize(
    ("fact", "group"), [("compiler", "kernels"), ("python", "calls"), ("nvcc", "sm_90"), ("triton", "executed")]
)
def test_what_another_made_is_not_judged(fact, group):
    found = copy.deepcopy(TABLE)
    found["facts"][fact] = "another"
    for counts in found[group].values():
        counts["instructions"] *= 3
    assert count.dearer(found, TABLE) == []


def test_every_kernel_is_in_the_table():
    assert TABLE["kernels"].keys() == sections.kernels().keys()
    assert TABLE["calls"].keys() == sections.calls().keys()
    for counts in TABLE["kernels"].values():
        assert counts["instructions"] > 0.5


DUMP = """# callgrind format
positions: line
events: Ir D1mr
ob=(1) /usr/lib/libpython3.11.so.1.0
fl=(1) ceval.c
fn=(1) evaluate
1 1000 7
cob=(2) /site-packages/ldpkernels/_native.so
cfn=(2) perturb
calls=1 0
1 50 4
+3 20

ob=(2)
fn=(2)
0 40 4
cob=(1)
cfn=(1)
calls=1 1
0 1020 7
0 10
"""


def test_costs_are_counted_where_they_are_spent_and_of_the_objects_that_are_asked_for(tmp_path):
    path = tmp_path / "counts.2"
    path.write_text(DUMP)
    assert count.totals(path) == {"Ir": 1070, "D1mr": 11}
    assert count.totals(path, count.NOT_PYTHON) == count.totals(path, "_native") == {"Ir": 50, "D1mr": 4}
    assert count.totals(path, "libpython") == {"Ir": 1020, "D1mr": 7}
    path.write_text("nothing of the kind")
    with pytest.raises(ValueError, match="no dump"):
        count.totals(path)
