# SPDX-License-Identifier: Apache-2.0
"""All of these train small networks, which take one thread (tests/conftest.py)."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def small(one_thread):
    """One thread, in every module here."""
