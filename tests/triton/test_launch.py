# SPDX-License-Identifier: Apache-2.0
# The host's side of launches: where they are refused, their tables, streams, Triton's cache; and a device's keys.
import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
from ldpkernels import _native  # noqa: E402
from ldpkernels.triton import cache, launch, registry, two_point  # noqa: E402
from ldpkernels.triton.table import WEIGHTS, Columns, Part  # noqa: E402
from tests.conftest import EXECUTED  # noqa: E402

pytest.importorskip("triton")

CUDA = torch.device("cuda")


def test_columns_are_the_same_for_the_host_and_the_kernels():
    columns = Columns("data", "numel").and_("last", digits=3)
    table = columns.table(2, {"data": [1, 2], "numel": 7, "last": np.array([5, 6]), "digits": np.arange(6)})
    assert table.tolist() == [[1, 7, 5, 0, 1, 2], [2, 7, 6, 3, 4, 5]]
    assert (columns.digits, columns.width) == (columns.value.digits, columns.value.width) == (3, 6)
    assert two_point.COLUMNS.ceiling == WEIGHTS.ceiling
    with pytest.raises(ValueError, match="was given data"):
        columns.table(2, {"data": 0})


def test_every_mechanism_has_a_launcher():
    assert set(_native.LAWS) == registry.MECHANISMS


def test_no_kernel_ranges_over_a_tensor():
    """Triton 3.6's interpreter makes an integer of range's argument, which NumPy refuses from 2.4 on: while goes on."""
    found = []
    for path in sorted(Path(launch.__file__).parent.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in function.decorator_list):
                calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func) == "range"]
                constant = [all(ast.unparse(a).isupper() or isinstance(a, ast.Constant) for a in n.args) for n in calls]
                found += [(path.name, function.name, fine) for fine in constant]
    assert len(found) >= 3
    assert all(fine for *_, fine in found), found


@pytest.mark.skipif(EXECUTED > 0, reason="tests/ptx executes on the host what is compiled for a device")
def test_a_device_is_refused_where_kernels_run_on_the_host(device):
    if device == "cpu":
        with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1 runs Triton's kernels on the host"):
            launch.check_reach(CUDA)
    launch.check_reach(torch.device(device))


def test_the_host_is_refused_where_kernels_run_on_a_device(monkeypatch):
    monkeypatch.setattr(launch, "keystream_kernel", triton.JITFunction.__new__(triton.JITFunction))
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1 was set before triton was first imported"):
        launch.check_reach(torch.device("cpu"))
    launch.check_reach(CUDA)


CACHE_SCRIPT = """
import os, warnings
import triton
from ldpkernels.triton import cache
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    cache.make_writable()
    cache.make_writable()
print(len(caught), triton.knobs.cache.dir)
if pid := os.fork():
    os.waitpid(pid, 0)
    assert os.path.isdir(triton.knobs.cache.dir)
"""


def test_a_home_that_cannot_be_written_gets_a_temporary_cache_with_a_word(tmp_path):
    home = tmp_path / "home"
    home.write_text("no folder")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")} | {"HOME": str(home)}
    command = [sys.executable, "-c", CACHE_SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    warned, folder = done.stdout.split()[:2]
    assert warned == "1"
    assert not folder.startswith(str(home))
    assert not os.path.exists(folder)  # it goes with its process


def test_a_home_that_can_be_written_is_kept_without_a_word(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    cache.make_writable.__wrapped__()
    assert triton.knobs.cache.dir == str(tmp_path / "cache")
    assert not recwarn.list


class Stream:
    """What the tables ask of a stream."""

    def __init__(self, number):
        self.cuda_stream, self.waited = number, 0

    def record_event(self):
        return "copied"

    def wait_event(self, event):
        assert event == "copied"
        self.waited += 1


class Table:
    """What they ask of a tensor."""

    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream.cuda_stream)


@pytest.fixture
def current(monkeypatch):
    """The current stream and whether it is capturing, which a test sets."""
    state = {"stream": Stream(1), "capturing": False}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: state["stream"])
    monkeypatch.setattr(launch, "capturing", lambda _: state["capturing"])
    monkeypatch.setattr(launch, "to_device", lambda array, device: Table())
    return state


def test_another_stream_waits_for_the_copy_and_keeps_the_table_alive(current):
    tables, made = launch.Tables(), []

    def make():
        made.append(1)
        return [Part(1, np.zeros((1, 1), np.int64), ())]

    first = tables.get("a", CUDA, make)
    assert tables.get("a", CUDA, make) is first
    assert current["stream"].waited == 0
    other = current["stream"] = Stream(2)
    current["capturing"] = True
    tables.get("a", CUDA, make)
    assert other.waited == 0  # in a capture, an event from outside is an error
    current["capturing"] = False
    tables.get("a", CUDA, make)
    assert (other.waited, first[0].table.streams, len(made)) == (1, [2], 1)


def test_tables_are_made_once_by_many_threads(current):
    tables, made = launch.Tables(), []

    def make():
        made.append(1)
        return [Part(1, np.zeros((1, 1), np.int64), ())]

    threads = [threading.Thread(target=lambda: [tables.get(i % 70, CUDA, make) for i in range(700)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables.recent) == launch.CACHED
    assert 70 <= len(made) <= 2800


def test_a_failed_plan_leaves_nothing(current):
    tables = launch.Tables()
    with pytest.raises(ZeroDivisionError):
        tables.get("a", CUDA, lambda: 1 / 0)
    assert not tables.recent


def test_keys_are_the_blocks_of_the_state_one_after_the_other(device):
    from ldpkernels.ops.keys import new_state
    from ldpkernels.triton.next_key import next_key

    state = new_state(torch.device(device))
    words = state[:4].cpu().numpy().view("<u4")
    keys = [next_key(state).cpu().numpy().view("<u4").tolist() for _ in range(2)]
    assert keys == [_native.keystream(words, 0, n, 1, "scalar")[:8].tolist() for n in range(2)]
    assert int(state[4]) == 2
    state[4] = 2**32 + 7
    wanted = _native.keystream(words, 0, 2**32 + 7, 1, "scalar")[:8].tolist()
    assert next_key(state).cpu().numpy().view("<u4").tolist() == wanted


def test_states_differ():
    from ldpkernels.ops.keys import new_state

    states = [new_state(torch.device("cpu")) for _ in range(20)]
    assert len({tuple(s.tolist()) for s in states}) == 20
    assert all(int(s[4]) == 0 for s in states)
