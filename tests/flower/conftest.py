# SPDX-License-Identifier: Apache-2.0
"""These tests run where Flower is installed: `make flower` sees to it, and `make test` takes the quick ones along."""

import importlib
import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # or Ray's workers get no time where anything else runs

collect_ignore_glob = ["same_bits/*", "secure_sum/*"]  # apps, which `flwr run` takes
try:
    importlib.import_module("flwr.server.workflow")
except ImportError:
    collect_ignore_glob.append("*.py")
