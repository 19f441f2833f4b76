# SPDX-License-Identifier: Apache-2.0
"""The blocks of Python in the pages of docs/integrations, which tests run as they stand."""

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "integrations"


def blocks(page):
    found = re.findall(r"^```python\n(.*?)^```$", (FOLDER / page).read_text(), re.M | re.S)
    assert found, f"{page} has no block of Python"
    return found
