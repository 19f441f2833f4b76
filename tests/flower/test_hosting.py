# SPDX-License-Identifier: Apache-2.0
"""Apps of strangers beside an owner's file: what they answer is a report by its numbers, whatever they do."""

import hashlib
import http.server
import logging
import os
import re
import resource
import socket
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_files

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.accounting import Ledger
from ldpkernels.flower import LdpMod, records
from ldpkernels.flower.hosting import Bundle, House
from tests.flower.test_attacks import answering, form, message_of
from tests.flower.test_rounds import NODES, START
from tests.test_apart import alive, secrets, walls

__all__ = ["secrets", "walls"]  # fixtures
PAGE = Path(__file__).parents[2] / "docs" / "flower_node.md"
EPS = 30.0  # at which a bit says for sure on which end of the range a weight is

PROJECT = b"""
[project]
name = "uploaded"
version = "1.0.0"
description = "An app of a stranger's"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
"""

APP = """
import os, sys, time, socket
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
{top}
@client.train()
def train(message, context):
    arrays = {{n: Array(np.asarray(a.numpy() + np.float32(0.1))) for n, a in message.content["arrays"].items()}}
    metrics = {{"accuracy": 0.123456, "patients": 4711.0}}
{body}
    content = {{"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}}
    return Message(RecordDict(content), reply_to=message)
"""


def source(body="", top="client = ClientApp()"):
    return APP.format(top=top, body="\n".join(f"    {line}" for line in body.splitlines()))


def bundle(text):
    with warnings.catch_warnings(action="ignore"):
        content, _ = build_fab_from_files({"pyproject.toml": PROJECT, "app.py": text.encode(), "LICENSE": b""})
    return Bundle("stranger/uploaded", "1.0.0", hashlib.sha256(content).hexdigest(), content)


@pytest.fixture
def owner(secrets, request):
    """A file of an owner's, and the node that it is for."""
    sandbox = getattr(request, "param", "namespaces")
    if sandbox == "namespaces":
        request.getfixturevalue("walls")
    (secrets / "ledgers").mkdir()
    file = secrets / "privacy.toml"
    file.write_text(
        f"eps = {EPS}\nledger = '{secrets}/ledgers/{{partition-id}}'\nbudget = 5000\nmetrics = ['accuracy']\n"
        f"answer_after = 0\n[app]\ndeadline = 60.0\nsandbox = '{sandbox}'\n"
    )
    return SimpleNamespace(file=file, house=House(file), ledger=secrets / "ledgers" / "0", folder=secrets)


def answered(owner, text=None, run=None, message=None):
    """The answer to a round; what is sent is what a server sent, and nothing of the app's state comes along."""
    context = Context(1, NODES[0], {"partition-id": 0}, RecordDict(), run or {})
    reply = owner.house.answered(message or message_of(eps=EPS), context, bundle(text or source()))
    assert context.node_config == {"partition-id": 0}
    return reply


def rounds(owner):
    with Ledger(owner.ledger, epsilon=5000.0) as ledger:
        return len(ledger.history)


def changed(reply):
    """Whether a report is of the training, which moved every weight to the end of its range."""
    mean = ldpkernels.aggregate([records.report_in(reply.content)])
    return all(np.all(array > 0.09) for array in mean.values())


HONEST = form(LdpMod(EPS, metrics=["accuracy"])(message_of(eps=EPS), Context(1, 1, {}, RecordDict(), {}), answering()))


def same_form(reply):
    """As a server sees every answer, and the ledger's figure beside it."""
    length, layout, metrics, *rest = HONEST
    return form(reply) == (length, layout, {"metrics": sorted([*metrics["metrics"], "ldp-epsilon"])}, *rest)


@pytest.mark.parametrize("owner", ["namespaces", "none"], indirect=True)
def test_an_app_without_a_mod(owner):
    reply = answered(owner)
    assert same_form(reply)
    assert changed(reply)
    assert reply.content["metrics"]["accuracy"] == 0.123
    assert rounds(owner) == 1


def test_an_app_of_mods_is_perturbed_once(owner, caplog):
    """Its own stand aside, and the log says so."""
    top = "from ldpkernels.flower import LdpMod\nclient = ClientApp(mods=[LdpMod(0.001), LdpMod.from_node()])"
    with caplog.at_level(logging.INFO):
        reply = answered(owner, source(top=top))
    assert same_form(reply)
    assert changed(reply)
    assert "the app's own mod stands aside" in caplog.text


HOSTILE = """
import ldpkernels.flower.hosting, ldpkernels.flower.mod, ldpkernels.releases.answers, ldpkernels.accounting, flwr
ldpkernels.flower.mod.LdpMod.__init__ = lambda *_, **__: None
ldpkernels.flower.hosting.House.answered = lambda *_: message
ldpkernels.accounting.Ledger.spend = lambda *_, **__: 0.0
for path in [sys.prefix, os.path.dirname(ldpkernels.__file__), os.path.dirname(flwr.__file__)]:
    try: open(path + "/stranger.pth", "w"); print("WROTE", path)
    except OSError: pass
for path in context.run_config["secrets"].split():
    try: print("READ", open(path).read() or "nothing")
    except OSError: pass
try: socket.create_connection(("127.0.0.1", context.run_config["port"]), 2).sendall(b"x"); print("SENT")
except OSError: pass
print("TOKEN" if any("oken" in name for name in os.environ) or "ldp" in context.node_config else "none")
print("STATE", len(context.state))
metrics = {"accuracy": [float(x) for x in range(1000)], "ldp-epsilon": 0.0, "accuracy.more": 1.0}
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
"""


def test_an_app_that_tries_everything(owner, caplog):
    """It patches, writes, reads, connects, forks and stays, and tells in metrics, and what leaves is the same."""
    marker = f"HOSTED_{os.getpid()}"
    owner.file.write_text(owner.file.read_text() + f"environment = {{{marker} = '1'}}\n")
    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.INFO):
        server.settimeout(0.1)
        run = {"port": server.getsockname()[1], "secrets": f"{owner.file} {owner.ledger} {owner.ledger}-journal"}
        reply = answered(owner, source(HOSTILE), run)
        with pytest.raises(TimeoutError):
            server.accept()
    assert same_form(reply)
    assert changed(reply)
    assert reply.content["metrics"]["accuracy"] == 0.0
    assert reply.content["metrics"]["ldp-epsilon"] > 1
    assert rounds(owner) == 1
    said = caplog.text.partition("the app says")[2]
    assert "none" in said
    assert "STATE 0" in said
    assert not re.findall(r"WROTE.*|READ (?!nothing).*|SENT|TOKEN", said)
    time.sleep(0.5)
    assert alive(marker) == []


WRITES = """
import pickle
class Touches:
    def __reduce__(self): return os.system, ("touch /tmp/stranger",)
for number in range(3, 64):
    try: os.write(number, {bytes})
    except OSError: pass
time.sleep({sleep})
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('patient 4711')", "patient 4711"),
        ("os.kill(os.getpid(), 11)", "ended without an answer"),
        ("time.sleep(600)", "killed at its deadline"),
        ("arrays['b'] = Array(np.zeros(9))", "has float64 of shape (9,)"),
        (WRITES.format(bytes="pickle.dumps(Touches()) * 9", sleep=0), "are the most that are read"),
        (WRITES.format(bytes="(3).to_bytes(8, 'little') + b'abc'", sleep=600), "that is not an answer"),
    ],
    ids=["raises", "dies", "hangs", "shapes", "pickles", "malformed"],
)
def test_an_app_that_fails_is_a_report_of_no_change(owner, body, words, caplog):
    """Of the form of all others; the round is spent, and the reason is in the owner's log alone."""
    if words == "killed at its deadline":
        owner.file.write_text(owner.file.read_text().replace("deadline = 60.0", "deadline = 8.0"))
    with caplog.at_level(logging.ERROR):
        reply = answered(owner, source(body))
    assert same_form(reply)
    assert not changed(reply)
    assert reply.content["metrics"]["accuracy"] == 0.0
    assert rounds(owner) == 1
    assert words in caplog.text
    assert "4711" not in repr(reply)
    assert not Path("/tmp/stranger").exists()


def never(*_):
    pytest.fail("the app was started")


@pytest.mark.parametrize(
    ("change", "run", "words", "logged"),
    [
        ({}, {"ldp.budget": 0.5}, "past the budget of 0.5", ""),
        ({}, {"ldp.budget": 6000.0}, "this node cannot answer; its log says why", "more than the node's 5000.0"),
        ({}, {"ldp.eps": 1.0}, "its log says why", "cannot be set by a run"),
        ({}, {"ldp.app": "x"}, "its log says why", "cannot be set by a run"),
        ({"eps = 30.0": "eps = 2.0"}, {}, "eps=30.0, and this client was set up with 2.0", ""),
        ({"eps = 30.0": "eps = "}, {}, "its log says why", "can't be read"),
        ({"budget = 5000": ""}, {}, "its log says why", "has no budget"),
        ({"[app]": "[app]\nnetwork = true"}, {}, "its log says why", "unexpected keyword argument 'network'"),
        ({"deadline = 60.0": ""}, {}, "its log says why", "missing 1 required positional argument: 'deadline'"),
        ({"eps": "unit = 'patient'\neps"}, {}, "its log says why", "unit = 'patient' must be one of"),
        ({"[app]": "[like]\nw = ['float32', 3]\n[app]"}, {}, "other arrays than this client was set up for", ""),
        ({"[app]": "[like]\nw = 3\n[app]"}, {}, "its log says why", "3 is not the dtype and shape of an array"),
        ({"[app]": "upload = 'weights'\n[app]"}, {}, "upload='updates', and this client was set up with 'weights'", ""),
    ],
)
@pytest.mark.parametrize("owner", ["none"], indirect=True)
def test_refused_before_an_app_is_started(owner, change, run, words, logged, monkeypatch, caplog):
    """What a file says that is wrong, and what a run or a server asks for that the file does not allow."""
    monkeypatch.setattr("ldpkernels.releases.apart.Apart.asked", never)
    for old, new in change.items():
        owner.file.write_text(owner.file.read_text().replace(old, new, 1))
    reply = answered(owner, run=run)
    assert words in reply.error.reason
    assert logged in caplog.text
    assert not logged or str(owner.file) in caplog.text or "the run's configuration" in caplog.text
    assert not owner.ledger.exists() or rounds(owner) == 0


@pytest.mark.parametrize("owner", ["none"], indirect=True)
def test_only_train_messages_start_an_app(owner, monkeypatch):
    monkeypatch.setattr("ldpkernels.releases.apart.Apart.asked", never)
    assert "train messages only" in answered(owner, message=message_of("evaluate", eps=EPS)).error.reason


@pytest.mark.parametrize("owner", ["none"], indirect=True)
def test_a_full_disk_and_a_form_that_the_owner_pinned(owner, monkeypatch, caplog):
    form_ = "".join(f"'{n}' = {[str(a.dtype), *a.shape]}\n" for n, a in START.items())
    owner.file.write_text(owner.file.read_text() + f"[like]\n{form_}")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # no file grows past it
    try:
        reply = answered(owner)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert reply.error.reason == "this client's ledger cannot be used; its log says why"
    assert "ledger cannot be used" in caplog.text
    owner.ledger.unlink()
    reply = answered(owner)
    assert changed(reply)


@pytest.mark.parametrize("body", ["", "time.sleep(600)"], ids=["trains", "hangs"])
@pytest.mark.parametrize("owner", ["none"], indirect=True)
def test_answers_leave_later_than_any_training(owner, body):
    """By default all of them at one time after the message: a quick training is not told from a killed one."""
    text = owner.file.read_text().replace("answer_after = 0\n", "").replace("deadline = 60.0", "deadline = 4.0")
    owner.file.write_text(text)
    started = time.monotonic()
    assert same_form(answered(owner, source(body)))
    assert 5.0 <= time.monotonic() - started < 6.5


class _Other(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(self.server.code)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("code", "words"),
    [(404, "is it a flower-supernode --isolation process, of Flower"), (401, "give the --superexec-auth-secret-file")],
)
def test_the_command_refuses(owner, capsys, code, words):
    """A SuperNode that does not speak this protocol, or knows another secret, and mistakes after --."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.code = code
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(SystemExit) as caught:
            main(["flower-node", str(owner.file), "--", "--runtime-api-address", address, "--insecure"])
        server.shutdown()
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["flower-node", str(owner.file), "--", "--token", "abc"])
    assert "flower-node FILE --: error: unrecognized arguments: --token abc" in capsys.readouterr().err


def test_the_page_has_a_file_that_is_right(owner, caplog):
    """As `--check` reads it, which tries the walls too."""
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    owner.file.write_text(text.replace("/var/lib/ldp", str(owner.folder / "ledgers")))
    with caplog.at_level(logging.INFO):
        assert main(["flower-node", "--check", str(owner.file)]) == 0
    assert "unit = 'person': the whole update is clipped and randomised here" in caplog.text
