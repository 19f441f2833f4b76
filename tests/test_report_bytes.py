# SPDX-License-Identifier: Apache-2.0
# Bytes from anywhere: what `to_bytes` wrote comes back, and everything else is a ValueError with a reason. Never
# another exception, never a wrong answer, never much memory.
import base64
import hashlib
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import ldpkernels
from ldpkernels import Aggregate, Report, _native, report

REPORT = report({"w": np.zeros((3, 5)), "b": np.zeros(2, np.float32)}, 0.5, 1.0, 1.0, generator=ldpkernels.key(3))
BYTES = REPORT.to_bytes()
TOTAL = Aggregate()
TOTAL.add(REPORT, REPORT, REPORT)
TOTAL_BYTES = TOTAL.to_bytes()
PREFIX = struct.Struct("<4sBxxxI")


def signed(header, payload, magic=b"LDPK", version=2, length=None):
    """Bytes with a digest that fits: what a broken or hostile writer could send."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = PREFIX.pack(magic, version, len(text) if length is None else length) + text + payload
    return body + (hashlib.blake2b(body, digest_size=16).digest() if version == 1 else crc32c(body))


def crc32c(body):
    """Bit by bit as RFC 3720 has it, a table of bytes apart."""
    found = 0xFFFFFFFF
    for byte in body:
        found = CRC_TABLE[(found ^ byte) & 0xFF] ^ found >> 8
    return (found ^ 0xFFFFFFFF).to_bytes(4, "little")


def crc_of_a_byte(byte):
    for _ in range(8):
        byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
    return byte


CRC_TABLE = [crc_of_a_byte(byte) for byte in range(256)]


def parts(data=BYTES):
    """A header as a dict, and the bits."""
    length = PREFIX.unpack_from(data)[2]
    return json.loads(data[PREFIX.size : PREFIX.size + length]), data[PREFIX.size + length : -4]


def refused(data, kind=Report):
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+") as error:
        kind.from_bytes(data)
    assert type(error.value) is ValueError, f"{type(error.value).__name__}: {error.value}"
    return str(error.value)


def test_round_trip():
    spread = bytes(byte for pair in zip(BYTES, BYTES, strict=True) for byte in pair)
    for data in (BYTES, bytearray(BYTES), memoryview(BYTES), memoryview(bytearray(BYTES)), memoryview(spread)[::2]):
        back = Report.from_bytes(data)
        assert back.layout == REPORT.layout
        assert np.array_equal(back.bits, REPORT.bits)
        assert back.to_bytes() == BYTES
    assert signed(*parts()) == signed(*parts(BYTES))
    assert Report.from_bytes(signed(*parts())).layout == REPORT.layout, "the tests' own writer is not the library's"
    back = Aggregate.from_bytes(TOTAL_BYTES)
    assert back.clients == 3
    assert back.to_bytes() == TOTAL_BYTES


@pytest.mark.parametrize("way", ["fastest", "instruction", "table"])
def test_the_digest_is_crc_32c(way):
    """RFC 3720's check value, and every length and alignment around the stretches that are summed or folded at once."""
    assert _native.crc32c(b"123456789", way) == 0xE3069283
    data = np.random.default_rng(0).bytes(3 * 4096 + 3 * 256 + 40)
    for length in (
        *range(40),
        *range(760, 780),
        *range(1020, 1030),
        *range(1275, 1285),
        *range(1530, 1550),
        *range(12280, 12300),
        len(data) - 7,
    ):
        for start in (0, 1, 7):
            body = data[start : start + length]
            assert _native.crc32c(memoryview(body), way).to_bytes(4, "little") == crc32c(body)


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise", "hybrid"])
def test_what_version_1_wrote_is_read_and_added(mechanism):
    file = Path(__file__).parent / "vectors" / "reports_version_1.json"
    written = json.loads(file.read_text())[mechanism]
    old = [base64.b64decode(text) for text in written["reports"]]
    total = Aggregate.from_bytes(base64.b64decode(written["aggregate"]))
    assert {data[4] for data in old} == {1}
    for mean in (ldpkernels.aggregate(old), total.mean(), Aggregate.from_bytes(total.to_bytes()).mean()):
        assert {name: values.ravel().tolist() for name, values in mean.items()} == written["mean"]
    new = [Report.from_bytes(data).to_bytes() for data in old]
    assert {data[4] for data in new} == {2}
    total.add(*new)
    assert total.clients == 10
    altered = bytearray(old[0])
    altered[-20] ^= 1
    assert "truncated or altered" in refused(bytes(altered))


@pytest.mark.parametrize("kind", [Report, Aggregate])
def test_every_truncation_and_every_extension(kind):
    data = BYTES if kind is Report else TOTAL_BYTES
    for length in range(len(data)):
        refused(data[:length], kind)
        refused(data[len(data) - length :] if length else b"", kind)
    for extra in (b"\0", b"x", data):
        refused(data + extra, kind)
        refused(extra + data, kind)


@pytest.mark.parametrize("kind", [Report, Aggregate])
def test_every_altered_byte(kind):
    data = BYTES if kind is Report else TOTAL_BYTES
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF, 0x20):
            altered = bytearray(data)
            altered[at] ^= change
            refused(bytes(altered), kind)


def test_the_reason_is_named():
    assert "too few" in refused(b"")
    assert "begin with b'PK" in refused(b"PK\3\4" + BYTES[4:])
    assert "format version 3: this library reads versions 1 and 2" in refused(BYTES[:4] + b"\3" + BYTES[5:])
    assert "truncated or altered" in refused(BYTES[:-1])
    assert "something else" in refused(TOTAL_BYTES)
    assert "something else" in refused(BYTES, Aggregate)
    assert "longer than the data" in refused(signed(*parts(), length=10**6))
    assert "is not JSON" in refused(signed(b"\x80{", b""))


@pytest.mark.parametrize("wrong", ["text", 10**12, None, [1, 2], np.zeros(3)])
def test_what_are_no_bytes(wrong):
    for kind in (Report, Aggregate):
        with pytest.raises(TypeError, match="are bytes, not a"):
            kind.from_bytes(wrong)


HEADERS = {
    "names": [[], ["w"], ["w", "w"], ["w", 1], "wb", {"w": 1}, None, ["w", ["b"]]],
    "shapes": [
        *([], [[3, 5]], [[3, 5], [-2]], [[3, 5], 2], [[3, 5], ["2"]], [[3, 5], [2.0]], [[3, 5], [True]], "x", None),
        *([[3, 5], [2**70]], [[3, 5], [2**40]], [[3, 5], [2**62, 0]], [[3, 5], [0] * 65], [[3, 5], [1] * 1000]),
        *([[3, 5], [10**4000] * 50], [[3, 5], [0, 2**63]], [[3, 5], [9]], [[-3, -5], [2]], [[15, 10**9], [2]]),
    ],
    "c": [[0.5], [0.5, "0.5"], [0.5, None], [0.5, 1], [0.5, 1e39], [0.5, 0.1], 0.5, [0.5, [0.5]]],
    "r": [[1.0], [1.0, -1.0], [1.0, 1e308], [1.0, 1e-40], [1.0, "r"], [1.0, 1e38], [1e308, 1.0], [1.0, True]],
    "dtypes": [["float64"], ["float64", "int8"], ["float64", "float16"], ["float64", None], ["float64", "x" * 10**5]],
    "eps": [0.0, -1.0, 1e-12, 1, "1", None, 2.0, 1e300, True],
    "threshold": [0, 1, 2**31, 1155094611, 1155094610.0, "1155094610", None, 10**4000, -1],
    "container": ["set", 3, None, "tensor", ["mapping"], "x" * 10**5],
    "library": ["jax", 0, None, "os"],
    "mechanism": ["laplace", None, 1, "x" * 10**5],
    "stream": [0, 2, "1", None, 1.0, True, 10**4000],
    "kind": ["aggregate", None, 1, ["report"]],
}


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, vs in HEADERS.items() for v in vs], ids=lambda v: str(v)[:30]
)
def test_headers_with_a_good_digest_and_one_bad_field(field, value):
    header, payload = parts()
    header[field] = value
    message = refused(signed(header, payload))
    assert len(message) < 1000, "the message repeats what it was sent"
    refused(signed(header, b""))
    refused(signed(header, payload[:2]))
    total, planes = parts(TOTAL_BYTES)
    total[field] = value if field != "kind" else "report"
    refused(signed(total, planes), Aggregate)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1e-400"])
@pytest.mark.parametrize("field", ["c", "r", "eps"])
def test_numbers_that_json_lets_through(number, field):
    header, payload = parts()
    header[field] = "X" if field == "eps" else ["X", "X"]
    text = json.dumps(header).replace('"X"', number).encode()
    if (field, number) in {("c", "-0.0"), ("c", "1e-400"), ("r", "-0.0"), ("r", "1e-400")}:
        assert Report.from_bytes(signed(text, payload)).nbytes == 3  # zero, in other words
    else:
        refused(signed(text, payload))


def test_missing_and_unknown_fields():
    for kind, data in ((Report, BYTES), (Aggregate, TOTAL_BYTES)):
        header, payload = parts(data)
        for field in header:
            refused(signed({k: v for k, v in header.items() if k != field}, payload), kind)
        assert "'zeal'" in refused(signed({**header, "zeal": 1}, payload), kind)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"null", b"[]", b"3", b'"report"', b"{", b"\xff\xfe{\0}\0", b'{"kind":"report"}'),
        *(b"[" * 10**5, b'{"a":' * 10**5, b'{"kind":"report","names":' + b"[" * 10**5, b"9" * 10**5),
    ],
    ids=lambda t: str(t[:30]),
)
def test_json_that_is_no_header(text):
    refused(signed(text, b""))
    refused(signed(text, parts()[1]), Aggregate)


def test_bits_past_the_last_weight():
    header, payload = parts()
    for at, bit in [(1, 0x80), (2, 0x04), (2, 0x80)]:
        altered = bytearray(payload)
        altered[at] |= bit
        assert "past the last weight" in refused(signed(header, bytes(altered)))
    for wrong in (payload[:-1], payload + b"\0", b"", payload * 2):
        assert "promises 3" in refused(signed(header, wrong))


@pytest.mark.parametrize("clients", [0, -1, 4, 7.0, "3", None, True, 2**62, 10**30, 1])
def test_client_counts(clients):
    header, payload = parts(TOTAL_BYTES)
    header["clients"] = clients
    refused(signed(header, payload), Aggregate)


def test_more_ones_than_clients():
    """Three clients cannot have sent a bit five times: the mean would leave the range of what can be decoded."""
    header, _ = parts(TOTAL_BYTES)
    full, one, none = bytes([0xFF, 0x7F, 0x03]), bytes([0, 0x40, 0]), bytes(3)
    for clients, planes, right in [
        (2, none + full, True),
        (2, full + none, True),
        (2, one + full, False),
        (3, full + full, True),
        (4, none + none + full, True),
        (4, one + none + full, False),
        (5, one + one + one, False),
        (6, full + none + full, True),
        (6, none + full + full, True),
        (6, one + full + full, False),
    ]:
        data = signed({**header, "clients": clients}, planes)
        if right:
            assert Aggregate.from_bytes(data).clients == clients
        else:
            assert f"more ones than the {clients} clients" in refused(data, Aggregate)


def test_sizes_in_a_header_allocate_nothing():
    header, payload = parts()
    tracemalloc.start()
    try:
        for shape in ([2**40], [2**62], [2**31, 2**31], [2**20] * 3, [2**62, 2**62, 0]):
            refused(signed({**header, "shapes": [[3, 5], shape]}, payload))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
