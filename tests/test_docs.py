# SPDX-License-Identifier: Apache-2.0
"""Every block of code of the README and of docs/ runs, a page from its top to its end in one namespace.

What a block's fence says decides how: ```python is executed, ```pycon is a doctest, ```console is held by the
tests in CONSOLE, and a fence that names a file holds a part of that file. `<!-- needs: X -->` on
the line before runs a block where X can be imported; `<!-- not run: why -->` is for what no test can run.
"""

import ast
import base64
import contextlib
import doctest
import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [p.relative_to(ROOT).as_posix() for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
FENCE = re.compile(r"^(?:<!-- (needs|not run): ([^\n]*) -->\n)?```(\w*) ?(\S*)\n(.*?)^```$", re.M | re.S)
MOST_NOT_RUN = 3
OPTIONAL = {"torch", "sklearn", "scipy", "dp_accounting"}  # what make numpy has not
CONSOLE = {
    "docs/privacy.md": "tests/accounting/test_account_cli.py",
    "docs/planning.md": "tests/planning/test_command.py",
    "docs/deploying.md": "tests/flower/test_deploying.py",
}
INTEGRATIONS = "docs/integrations/"  # tests of the real libraries run these pages' blocks: tests/integrations/pages.py
# What a page takes as given.
GIVEN = {
    "README.md": """
import copy
import numpy as np
import torch
import ldpkernels
def train(model, client):
    return model
model, server, clients = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3), range(3)
C, R, c, r, eps = 0.0, 1.0, 0.0, 1.0, 4.0
weights = np.zeros(5, np.float32)
""",
    **dict.fromkeys(
        (f"docs/mechanisms/{name}.md" for name in ("sign", "piecewise", "hybrid", "vector", "vector_gaussian")),
        "import numpy as np\nimport ldpkernels\n"
        "model, update, C, R, eps = np.zeros(9), {'w': np.full((20, 30), 0.01)}, 0.0, 1.0, 4.0\n",
    ),
    "docs/mechanisms/adaptive_clipping.md": """
import ldpkernels
z, n, norm, length_of_my_update, total = 1.0, 900, 1.0, 0.3, 500
""",
    "docs/mechanisms/distributed.md": """
import numpy as np
import ldpkernels
d, update, round_key, total = 600, np.full(600, 0.01), ldpkernels.key(3), np.zeros(1024, np.uint32)
""",
    "docs/mechanisms/projected_code.md": """
import numpy as np
import ldpkernels
d, update, round_key, client, clients, codes = 600, np.full(600, 0.01), ldpkernels.key(3), 1, (1, 2), (7, 8)
""",
    "docs/privacy.md": "digest = None\n",
    "docs/tutorial.md": "import torch\ntorch.set_num_threads(1)\n",  # models so small are slower with more
}


class Block(NamedTuple):
    line: int
    marker: str | None
    reason: str | None
    kind: str
    file: str
    text: str


def blocks(page):
    text = (ROOT / page).read_text()
    assert len(FENCE.findall(text)) * 2 == len(re.findall(r"^```", text, re.M)), (
        f"{page}: a fence that is not understood"
    )
    return [Block(text[: m.start(5)].count("\n") + 1, *m.groups()) for m in FENCE.finditer(text)]


def run(page, block, namespace):
    where = f"{page}, line {block.line}"
    if block.kind == "python" and not block.text.startswith(">>> "):
        exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), namespace)
        return
    test = doctest.DocTestParser().get_doctest(block.text, namespace, where, page, block.line)
    test.globs = namespace
    assert test.examples, f"{where} has no example"
    runner, words = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS), []
    runner.run(test, out=words.append, clear_globs=False)
    assert runner.failures == 0, "".join(words)


@pytest.fixture
def torch_threads():
    """As many afterwards as before."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    yield
    if torch:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and not page.startswith(INTEGRATIONS)])
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch, torch_threads):
    monkeypatch.chdir(tmp_path)
    try:
        missing = run_page(page)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        missing = {error.name}
    if missing:
        pytest.skip(f"all but the blocks that need {', '.join(sorted(missing))}")


def run_page(page):
    """What its blocks need and is not here."""
    namespace, missing = {"__name__": "page"}, set()
    exec(GIVEN.get(page, ""), namespace)
    for block in blocks(page):
        if block.file:
            assert f"\n{block.text}" in (ROOT / block.file).read_text(), f"{block.file} has no\n{block.text}"
        elif block.kind == "console":
            assert page in CONSOLE, f"{page}, line {block.line}: who runs this command?"
            assert page.rpartition("/")[2] in (ROOT / CONSOLE[page]).read_text()
        elif block.kind in ("python", "pycon") and block.marker != "not run":
            needed = [name for name in re.split(r"[, ]+", block.reason or "") if name]
            absent = {name for name in needed if importlib.util.find_spec(name) is None}
            missing |= absent
            if not absent:
                run(page, block, namespace)
    return missing


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(INTEGRATIONS)])
def test_a_page_of_an_integration_is_run_beside_the_real_library(page):
    name = page.removeprefix(INTEGRATIONS)
    python = [block for block in blocks(page) if block.kind == "python"]
    tests = (path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    assert not python or any(f'"{name}"' in path.read_text() for path in tests), f"no test runs the blocks of {page}"


def test_few_blocks_are_not_run():
    marked = [(page, block) for page in PAGES for block in blocks(page) if block.marker == "not run"]
    assert len(marked) <= MOST_NOT_RUN, marked
    assert all(block.reason for _, block in marked)


def test_a_wrong_block_is_seen():
    with pytest.raises(AssertionError, match="Got"):
        run("x.md", Block(1, None, None, "pycon", "", ">>> 1 + 1\n3\n"), {})
    with pytest.raises(NameError):
        run("x.md", Block(1, None, None, "python", "", "unknown\n"), {})


def test_the_reference_names_every_public_name():
    import ldpkernels
    from ldpkernels import accounting, audit, distributed, planning, trainers

    modules = {ldpkernels: "index", accounting: "accounting", audit: "audit", planning: "planning"}
    modules |= dict.fromkeys((distributed, trainers), "integrations")
    for module, page in modules.items():
        text = (ROOT / f"docs/reference/{page}.md").read_text()
        named = re.findall(rf"^::: {module.__name__}\.(\w+)$", text, re.M)
        assert sorted(named) == sorted(module.__all__), page


def test_the_page_of_calls_names_all_that_is_called():
    import ldpkernels

    returned = {"ClippedInfo", "Expected", "Key", "Prepared", "Vote"}
    page = (ROOT / "docs/calls.md").read_text()
    assert {name for name in ldpkernels.__all__ if not re.search(rf"\b{name}\b", page)} == returned


@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_the_reference_names_what_other_libraries_are_needed_for(name):
    """From their sources: those libraries may not be here."""
    public = re.search(r"^__all__ = (\[.*\])$", (ROOT / f"ldpkernels/{name}/__init__.py").read_text(), re.M)
    text = (ROOT / "docs/reference/integrations.md").read_text()
    assert sorted(re.findall(rf"^::: ldpkernels\.{name}\.(\w+)$", text, re.M)) == ast.literal_eval(public[1])


PAGE = (ROOT / "docs/adding_a_mechanism.md").read_text()
BLOCKS = re.findall(r"^```\w+ (\S+)\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
OWN = [
    "docs/mechanisms/sign.md",
    "ldpkernels/laws/sign.py",
    "ldpkernels/reference/sign.py",
    "csrc/mechanisms/sign.h",
    "ldpkernels/triton/sign.py",
    "tests/test_sign.py",
]
REGISTRIES = {
    "csrc/mechanisms/registry.h": 2,
    "csrc/tables.h": 1,
    "ldpkernels/laws/registry.py": 3,
    "ldpkernels/reference/registry.py": 2,
    "ldpkernels/triton/registry.py": 2,
}
SUFFIXES = (".py", ".pyi", ".h", ".cpp", ".cu", ".cuh", ".md")
NAMED = re.compile(r'"sign"|\bSign(Law)?\b|\bsign\.(h|py|md|launch)\b|import .*\bsign\b')


def named_in(path):
    return [line for line in (ROOT / path).read_text().splitlines() if NAMED.search(line)]


def files(*folders):
    every = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [path.relative_to(ROOT).as_posix() for path in every]


def test_every_block_is_in_the_tree():
    assert len(BLOCKS) == PAGE.count("```") // 2 > 10, "a block names no file"
    for path, text in BLOCKS:
        assert f"\n{text}\n" in (ROOT / path).read_text(), f"{path} has no\n{text}"


def test_a_mechanism_is_named_in_the_registries_and_nowhere_else():
    assert {path: len(named_in(path)) for path in REGISTRIES} == REGISTRIES
    assert sum(REGISTRIES.values()) == 10
    for path, lines in REGISTRIES.items():
        assert f"{path} ({lines})" in PAGE
    sources = [path for path in files("ldpkernels", "csrc") if path not in (*OWN, *REGISTRIES)]
    sources = [path for path in sources if "/ordinal_cldp" not in path]  # a column of its law is called so
    assert not {path: lines for path in sources if (lines := named_in(path))}


TOUR = Path(__file__).resolve().parent.parent / "examples/tour.ipynb"


def run_cell(source, space):
    """What a cell prints, and the value of its last line, as a notebook has it."""
    tree = ast.parse(source)
    last = tree.body.pop().value if isinstance(tree.body[-1], ast.Expr) else ast.Constant(None)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, TOUR.name, "exec"), space)
        value = eval(compile(ast.fix_missing_locations(ast.Expression(last)), TOUR.name, "eval"), space)
    return said.getvalue(), value


def test_the_tour_says_what_it_is_seen_to_say():
    pytest.importorskip("matplotlib")
    cells = [cell for cell in json.loads(TOUR.read_text())["cells"] if cell["cell_type"] == "code"]
    space, pictures = {}, 0
    for cell in cells:
        said, value = run_cell("".join(cell["source"]), space)
        texts = ["".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream"]
        shown = [out["data"]["image/png"] for out in cell["outputs"] if "image/png" in out.get("data", {})]
        assert said == "".join(texts)
        assert (len(shown) == 1) is hasattr(value, "savefig")
        assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in shown)
        pictures += len(shown)
    assert pictures == 3
