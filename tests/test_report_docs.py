# SPDX-License-Identifier: Apache-2.0
# What docs/security.md says of a server is what it does.
import doctest
from pathlib import Path


def test_the_figures_of_the_security_page():
    page = Path(__file__).resolve().parent.parent / "docs" / "security.md"
    done = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted > 15
    assert done.failed == 0
