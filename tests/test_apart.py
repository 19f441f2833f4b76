# SPDX-License-Identifier: Apache-2.0
"""Programs of strangers in processes of their own: what they reach, what they leave behind, and what they answer."""

import logging
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from ldpkernels.releases import answers
from ldpkernels.releases.apart import Apart

ECHO = "import sys; sys.stdout.buffer.write((2).to_bytes(8, 'little') + sys.stdin.buffer.read(2))"
TELL = "import sys; tell = lambda b: sys.stdout.buffer.write(len(b).to_bytes(8, 'little') + b)\n"


def python(code):
    return [sys.executable, "-I", "-S", "-c", code]


def told(code, most=1 << 20, given=b"", **how):
    return Apart(**{"deadline": 20.0, **how}).asked(python(TELL + code), given, most)


@pytest.fixture(scope="module")
def walls():
    """Where processes can be kept apart. Elsewhere a node refuses to begin, and says so."""
    try:
        Apart(20.0).check(python(ECHO))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def secrets():
    """A folder with a key in it, and not among the temporary ones, which no program sees."""
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=build))
    folder.chmod(0o755)
    (folder / "key").write_text("4711")
    (folder / "key").chmod(0o644)
    yield folder
    shutil.rmtree(folder)


def alive(marker):
    """The processes that have this in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += [entry.name] if marker.encode() in (entry / "environ").read_bytes() else []
        except OSError:
            continue
    return found


def test_bytes_go_in_and_come_out():
    big = os.urandom(1 << 22)
    assert told("tell(sys.stdin.buffer.read())", most=len(big), given=big, sandbox="none") == big


REACHED = """
import os, socket
seen = []
try:
    socket.create_connection({address!r}, 2).sendall(b"data")
    seen.append("network")
except OSError: pass
for path in ({new!r}, "/etc/passwd"):
    try: seen += [path] if open(path, "a") else []
    except OSError: pass
for path in ({key!r}, {file!r}):
    try: seen += ["key"] if open(path).read() else []
    except OSError: pass
seen += ["processes"] if os.path.exists("/proc/{me}/environ") else []
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
seen += [name for name in ("CapPrm", "CapEff", "CapBnd") if int(status[name], 16)]
seen += ["privileges"] if status["NoNewPrivs"] != "1" else []
open(os.environ["TMPDIR"] + "/room-{me}", "w").write("a place to work")
tell(",".join(seen).encode())
"""


def test_walls(walls, secrets):
    """No network, no other process, nothing to write to, no capabilities, and no secrets."""
    (secrets / "file").write_text("4711")
    (secrets / "folder").mkdir()
    (secrets / "folder" / "key").write_text("4711")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        paths = {"new": f"{secrets}/new", "key": f"{secrets}/folder/key", "file": f"{secrets}/file"}
        code = REACHED.format(address=server.getsockname(), me=os.getpid(), **paths)
        assert told(code, hidden=[f"{secrets}/folder", f"{secrets}/file"]) == b""
        with pytest.raises(TimeoutError):
            server.accept()
        assert not Path(f"/tmp/room-{os.getpid()}").exists()
        seen = told(code, sandbox="none").decode().split(",")
    assert {"network", f"{secrets}/new", "key", "processes", "privileges"} <= set(seen)  # what would be seen


def test_walls_within_walls_open_none(walls, secrets):
    """New namespaces of the program's own give back neither the hidden folder nor a file system to write to."""
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
new = libc.unshare(0x10000000 | 0x20000)  # a user namespace, in which it has all capabilities, and one of mounts
results = [libc.umount2({str(secrets)!r}.encode(), flag) for flag in (0, 2)]
results += [libc.mount(None, b"/", None, 32 | 4096, None)]
seen = [os.path.exists({str(secrets / "key")!r}), os.access("/etc", os.W_OK)]
tell(repr((new, results, seen)).encode())
"""
    assert told(code, hidden=[str(secrets)]).decode() in [f"({n}, [-1, -1, -1], [False, False])" for n in (0, -1)]


def test_what_it_forked_ends_with_it(walls):
    marker = f"APART_{os.getpid()}"
    code = """
import os, signal, time, ctypes
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0)
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
tell(b"ok")
sys.stdout.flush()
time.sleep(600)
"""
    started = time.monotonic()
    assert told(code, environment={marker: "1"}) == b"ok"
    assert time.monotonic() - started < 15
    time.sleep(0.5)
    assert alive(marker) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(600)", "killed at its deadline"),
        ("import os, time; os.close(1); os.close(2); time.sleep(600)", "ended without an answer"),
        ("while True: sys.stderr.write('x' * 4096)", "killed at its deadline"),
        ("while True: sys.stdout.buffer.write((1 << 62).to_bytes(8, 'little'))", "are the most that are read"),
        ("sys.stdout.buffer.write(b'123')", "ended without an answer"),
        ("raise ValueError('patient 4711 \\x1b[2J')", "ended without an answer; it said last: Traceback"),
        ("import os; os.kill(os.getpid(), 9)", "ended without an answer"),
        ("sys.exit(0)", "ended without an answer"),
    ],
)
def test_no_answer(code, words):
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=words) as caught:
        told(code, sandbox="none", deadline=2.0)
    assert time.monotonic() - started < 6
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 9000


def test_no_answer_within_walls(walls):
    with pytest.raises(RuntimeError, match="killed at its deadline"):
        told("import time; time.sleep(600)", deadline=2.0)
    with pytest.raises(RuntimeError, match=r"(?s)ended without an answer; it said last: .*4711"):
        told("raise ValueError(4711)")


def test_an_app_that_ends_with_its_node(walls):
    """A node's process that is killed takes the app along."""
    marker = f"APART_{os.getpid()}_PARENT"
    code = (
        f"import sys; from ldpkernels.releases.apart import Apart; how = Apart(600.0, environment={{{marker!r}: '1'}})"
    )
    code += "; how.asked([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'], b'', 9)"
    with subprocess.Popen([sys.executable, "-c", code]) as node:
        while not alive(marker):
            time.sleep(0.1)
        node.kill()
    time.sleep(0.5)
    assert alive(marker) == []


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"deadline": 0.0}, "deadline = 0.0"),
        ({"deadline": "60"}, "deadline = '60'"),
        ({"sandbox": "docker"}, "sandbox = 'docker' is unknown"),
        ({"user": "nobody", "sandbox": "none"}, "leave it out"),
        ({"hidden": ["secrets"]}, "not an absolute path"),
        ({"environment": {"A": 1}}, "put it in quotes"),
        ({"hidden": ["/"]}, "keep them apart"),
    ],
)
def test_refusals(how, words):
    with pytest.raises((ValueError, TypeError), match=words):
        Apart(**{"deadline": 60.0, **how})


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone chooses who runs an app")
def test_users_that_are_refused():
    with pytest.raises(ValueError, match="is not a user of this machine"):
        Apart(60.0, user="no such user").command(["true"])
    with pytest.raises(ValueError, match="is root"):
        Apart(60.0, user="root").command(["true"])


def test_a_machine_without_walls_is_refused(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(sys, "prefix", "/tmp/environment")
    with pytest.raises(RuntimeError, match="/tmp/environment is in /tmp, which apps do not see"):
        Apart(5.0).check(python(ECHO))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"can't be kept apart here \(.*setpriv.*allow user namespaces"):
        Apart(5.0).check(python(ECHO))
    with caplog.at_level(logging.WARNING):
        Apart(5.0, sandbox="none").check(python(ECHO))
    assert "Nothing here keeps it from sending data" in caplog.text


# What the bytes of an answer may be.

RECEIVED = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.float64(2.5) * np.ones(())}


def test_an_answer_is_read_in_the_layout_of_what_was_received():
    trained = {name: array + 1 for name, array in RECEIVED.items()}
    data = answers.packed(trained, RECEIVED, {"loss": 0.123456, "rows": 60123, "more": 5})
    arrays, metrics = answers.unpacked(data, RECEIVED, ["loss", "rows", "absent"])
    assert metrics == {"loss": 0.123, "rows": 60100.0}
    for name, array in trained.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert len(data) <= answers.most_bytes(RECEIVED)


@pytest.mark.parametrize(
    "value", ["text", None, True, [1.0] * 1000, {"a": 1}, float("nan"), float("inf"), -1e300, 10**300, 1e-9]
)
def test_a_metric_is_a_number_of_three_digits(value):
    data = answers.packed(RECEIVED, RECEIVED, {"loss": value})
    assert answers.unpacked(data, RECEIVED, ["loss"])[1] == {"loss": 0.0}


class _Touches:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data, path: pickle.dumps(_Touches(path)),
        lambda data, path: data[:-1],
        lambda data, path: data + b"\0",
        lambda data, path: b"",
        lambda data, path: b"\xff" * len(data),
        lambda data, path: (2).to_bytes(4, "little") + b"[]" + data[6:],
        lambda data, path: (2).to_bytes(4, "little") + b"{]" + data[6:],
        lambda data, path: (2).to_bytes(4, "little") + b"\xff\xff" + data[6:],
        lambda data, path: (1 << 16).to_bytes(4, "little") + b"[" * (1 << 16) + data[6:],
    ],
)
def test_spoilt_answers_are_refused(spoil, tmp_path):
    data = answers.packed(RECEIVED, RECEIVED, {})
    with pytest.raises(ValueError, match="the app"):
        answers.unpacked(spoil(data, tmp_path / "run"), RECEIVED, ["loss"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "trained",
    [
        {"w": RECEIVED["w"]},
        dict(reversed(RECEIVED.items())),
        {**RECEIVED, "w": RECEIVED["w"].T},
        {**RECEIVED, "w": RECEIVED["w"].astype(np.int32)},
    ],
)
def test_a_training_of_another_form_is_no_answer(trained):
    with pytest.raises(ValueError, match=r"other arrays than it received|came as float32 of shape"):
        answers.packed(trained, RECEIVED, {})
