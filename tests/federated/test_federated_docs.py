# SPDX-License-Identifier: Apache-2.0
"""The code of the pages in docs/federated runs as it stands there, and learns."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

PAGES = sorted((Path(__file__).parents[2] / "docs" / "federated").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    told = io.StringIO()
    try:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert blocks
        for block in blocks:
            with contextlib.redirect_stdout(told):
                exec(compile(block, str(page), "exec"), {"__name__": "page"})
    finally:
        torch.set_num_threads(threads)
    accuracies = [float(found) for found in re.findall(r"([\d.]+)%", told.getvalue())]
    assert accuracies[-1] > 60  # three classes
