# SPDX-License-Identifier: Apache-2.0
"""The notebook says what running it says, and shows every picture that it draws."""

import ast
import base64
import contextlib
import io
import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
TOUR = Path(__file__).resolve().parent.parent / "examples/tour.ipynb"


def run(source, space):
    """What a cell prints, and the value of its last line, as a notebook has it."""
    tree = ast.parse(source)
    last = tree.body.pop().value if isinstance(tree.body[-1], ast.Expr) else ast.Constant(None)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, TOUR.name, "exec"), space)
        value = eval(compile(ast.fix_missing_locations(ast.Expression(last)), TOUR.name, "eval"), space)
    return said.getvalue(), value


def test_the_tour_says_what_it_is_seen_to_say():
    cells = [cell for cell in json.loads(TOUR.read_text())["cells"] if cell["cell_type"] == "code"]
    space, pictures = {}, 0
    for cell in cells:
        said, value = run("".join(cell["source"]), space)
        texts = ["".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream"]
        shown = [out["data"]["image/png"] for out in cell["outputs"] if "image/png" in out.get("data", {})]
        assert said == "".join(texts)
        assert (len(shown) == 1) is hasattr(value, "savefig")
        assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in shown)
        pictures += len(shown)
    assert pictures == 3
