# SPDX-License-Identifier: Apache-2.0
# Two, four and eight ranks of torch.distributed, each a process: tests/distributed/cases.py says what they do.
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", exc_type=ImportError)
import torch

from tests.distributed import cases, ranks
from tests.once import made_once

if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)


@pytest.mark.parametrize(
    ("count", "name"), [pytest.param(n, name, id=f"{name} ({n})") for n in (2, 4, 8) for name in cases.names(n)]
)
def test_ranks(tmp_path_factory, count, name):
    path = made_once(tmp_path_factory, f"ranks-{count}", lambda path: ranks.outcomes(path, count))
    found = json.loads(path.read_text())
    said = found["said"].get(name, {})
    wrong = [f"rank {rank}: {outcome}" for rank, outcome in said.items() if outcome != "passed"]
    gone = [] if sorted(said) == [str(rank) for rank in range(count)] else ["a rank is gone", *found["ends"]]
    assert not wrong + gone, "\n".join(wrong + gone)
