# SPDX-License-Identifier: Apache-2.0
"""Seeds and harnesses of what clients and servers of frameworks send each other, and of a node's own file."""

import copy
import functools
import json
import tempfile
from pathlib import Path

import numpy as np

import ldpkernels
from ldpkernels import secure_sums
from ldpkernels.common.keys import key
from ldpkernels.releases.choice import released
from ldpkernels.releases.release import Asked
from ldpkernels.secure_sums import Server, Terms

LIKE = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(1)}
LAWS = (ldpkernels.VectorGaussian(1.0, 5), ldpkernels.PrivUnitG(4.0, 5), ldpkernels.KOfD(4.0, 5, 1.0, 0.5))
CODE = released(law=ldpkernels.ProjectedCode(4.0, 5, bits=5))


def vector_reports() -> list[bytes]:
    update = {"w": np.full((2, 2), 0.1, np.float32), "b": np.zeros(1)}
    return [released(law=law).report(update, Asked(), key(1)) for law in LAWS]


def read_vector(given: bytes, _: Path) -> None:
    """By each of the laws: what is none of its reports is skipped, for a reason."""
    totals = [released(law=law).total(LIKE, Asked()) for law in LAWS]
    for total in totals:
        total.add(given)
        assert total.clients + total.skipped == 1
        if total.clients:
            assert all(np.isfinite(part).all() for part in total.mean().values()), "a mean that is not a number"
    if not any(total.clients for total in totals):
        raise ValueError(next(iter(totals[0].reasons)))


def codes() -> list[bytes]:
    return [CODE.labelled(CODE.report(LIKE, Asked(client=client), key(client)), client) for client in (0, 2**64 - 1)]


def read_code(given: bytes, _: Path) -> None:
    total = CODE.total(LIKE, Asked())
    total.add(given)
    if not total.clients:
        raise ValueError(next(iter(total.reasons)))
    assert all(np.isfinite(part).all() for part in total.mean().values()), "a mean that is not a number"


PAIRS = {number: secure_sums.new_identity() for number in range(4)}
TERMS = Terms(
    round=b"1",
    length=4,
    bits=16,
    threshold=3,
    invited=4,
    roster={number: public for number, (_, public) in PAIRS.items()},
)
STEPS = ("keys", "shares", "masked", "agreed", "disclosed")


@functools.lru_cache(maxsize=1)
def summed() -> tuple[dict[str, Server], dict[str, object], dict[str, dict[int, bytes]], dict[str, bytes]]:
    """A round's server and client 0 before each step, everyone's messages, and the server's to client 0."""
    states, server = {n: None for n in PAIRS}, Server(TERMS)
    before, own, said = {}, {}, {}
    keys, boxes, present, consents = b"", {}, b"", b""
    for step in STEPS:
        before[step], own[step], said[step] = copy.deepcopy(server), states[0], {}
        for n, (private, _) in PAIRS.items():
            if step == "keys":
                states[n], said[step][n] = secure_sums.begin(TERMS, n, private)
            elif step == "shares":
                states[n], said[step][n] = secure_sums.share(states[n], keys)
            elif step == "masked":
                states[n], said[step][n] = secure_sums.mask(states[n], boxes[n], np.arange(4))
            elif step == "agreed":
                states[n], said[step][n] = secure_sums.agree(states[n], present, private)
            else:
                states[n], said[step][n] = secure_sums.disclose(states[n], present, consents)
        if step == "keys":
            keys = server.keys(said[step])
        elif step == "shares":
            boxes = server.shares(said[step])
        elif step == "masked":
            assert all(server.masked(n, message) for n, message in said[step].items())
            present = server.present()
        elif step == "agreed":
            consents = server.consents(said[step])
    given = {"shares": keys, "masked": boxes[0], "agreed": present, "disclosed": consents}
    return before, own, said, given


def _stage(given: bytes, steps: tuple[str, ...]) -> tuple[str, bytes]:
    return steps[given[0] % len(steps) if given else 0], given[1:]


def to_server() -> list[bytes]:
    return [bytes([i]) + summed()[2][step][0] for i, step in enumerate(STEPS)]


def read_at_server(given: bytes, _: Path) -> None:
    """A step's message of client 0 is changed: the sum is right, or the round is lost; all others are as they were."""
    (step, message), (before, _, said, _) = _stage(given, STEPS), summed()
    server, sent = copy.deepcopy(before[step]), {**said[step], 0: message}
    if step == "keys":
        server.keys(sent)
    elif step == "shares":
        server.shares(sent)
    elif step == "masked":
        assert server.masked(0, message) == (len(message) == len(said[step][0]))
    elif step == "agreed":
        server.consents(sent)
    else:
        assert server.total(sent).tolist() == [0, 4, 8, 12], "a wrong share opens another sum"
    if server.refused:
        raise secure_sums.ProtocolError(server.refused[0])


def to_client() -> list[bytes]:
    return [bytes([i]) + summed()[3][step] for i, step in enumerate(STEPS[1:])]


def read_at_client(given: bytes, _: Path) -> None:
    (step, message), (_, own, _, right) = _stage(given, STEPS[1:]), summed()
    if step == "shares":
        secure_sums.share(own[step], message)
    elif step == "masked":
        secure_sums.mask(own[step], message, np.arange(4))
    elif step == "agreed":
        secure_sums.agree(own[step], message, PAIRS[0][0])
    else:
        secure_sums.disclose(own[step], right["agreed"], message)


NODE = b"""\
eps = 4.0
mechanism = "two-point"
budget = 60
ledger = "/tmp/site.ledger"
metrics = ["loss"]
[law]
kind = "VectorGaussian"
sigma = 1.5
dimension = 10
[roster]
0 = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
\0{"ldp.budget": 2.0, "lr": 0.1}"""


def read_node(given: bytes, folder: Path) -> None:
    """A node's file, and after a zero byte a run's configuration."""
    from ldpkernels.flower import node

    text, _, run = given.partition(b"\0")
    (folder / "node.toml").write_bytes(text)
    try:
        asked = json.loads(run or b"{}")
        asked = {name: value for name, value in asked.items() if isinstance(value, bool | int | float | str)}
    except (ValueError, AttributeError, RecursionError):
        asked = {}
    found = node.settings_of({node.FILE: str(folder / "node.toml"), "partition-id": 0}, asked)
    assert found.limit is None or found.limit <= found.settings["budget"]


def server_checkpoint() -> bytes:
    from ldpkernels.flower import checkpoint

    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), checkpoint.Kept(2, LIKE, (0.0, [1.0, 2.0]), {1: {"loss": 0.5}}), {"eps": 1.0})
        return (Path(folder) / checkpoint.NAME).read_bytes()


def encrypted_checkpoint() -> bytes:
    """An archive that says of a file that it is encrypted."""
    data = bytearray(server_checkpoint())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 0x41
    return bytes(data)


def read_server_checkpoint(given: bytes, folder: Path) -> None:
    from ldpkernels.flower import checkpoint

    (folder / checkpoint.NAME).write_bytes(given)
    kept = checkpoint.load(folder, {"eps": 1.0}, LIKE)
    assert kept is not None
    assert kept.arrays.keys() == LIKE.keys()
    assert kept.round >= 0


def flower_messages() -> list[bytes]:
    """The terms of a round as JSON, and after a zero byte each array's bytes, after four bytes of their length."""
    from flwr.app import Array

    from ldpkernels.flower import records

    release = released(4.0, "two-point")
    told = dict(records.terms(release, "updates", 1, LIKE, (0.0, 1.0)))
    arrays = [Array(array).data for array in LIKE.values()]
    return [json.dumps(told).encode() + b"\0" + b"".join(len(one).to_bytes(4, "little") + one for one in arrays)]


def read_flower_message(given: bytes, _: Path) -> None:
    """What a server sends to a client with `LdpMod`: it is refused or trained for, and nothing is raised."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

    import tests.flower.grid  # noqa: F401 - it says who this process is
    from ldpkernels.flower import LdpMod, records

    text, _, rest = given.partition(b"\0")
    arrays = {}
    for name in LIKE:
        size = int.from_bytes(rest[:4], "little")
        arrays[name] = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=rest[4 : 4 + size])
        rest = rest[4 + size :]
    try:
        told = ConfigRecord(json.loads(text))
    except (ValueError, TypeError, RecursionError, KeyError, AttributeError):  # no record of Flower's
        told = ConfigRecord({})
    message = Message(RecordDict({"arrays": ArrayRecord(arrays), records.TERMS: told}), 1, "train")

    def train(message, context):
        return Message(RecordDict({"arrays": ArrayRecord({n: Array(a) for n, a in LIKE.items()})}), reply_to=message)

    reply = LdpMod(4.0)(message, Context(1, 1, {}, RecordDict(), {}), train)
    if reply.has_error():
        raise ValueError(reply.error.reason)
    assert records.report_in(reply.content)
