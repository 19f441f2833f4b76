# SPDX-License-Identifier: Apache-2.0
"""Options of the suites."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--elements", type=int, default=1 << 24, help="weights of the large fp32 tensor (2^24)")
    text = "seconds that each benchmark waits, at most, for others to leave the cores (0)"
    parser.addoption("--patience", type=float, default=0, help=text)


@pytest.fixture(scope="session")
def elements(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--elements"))
