# SPDX-License-Identifier: Apache-2.0
"""Uploads of LDP-Fed as bytes: exact, as short as their bound allows, and refused where anything is wrong."""

import json
import math
import struct

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels.federated.cldp_upload import Upload, UploadMean, integers_of, terms_of
from ldpkernels.wire.envelope import decode, encode

TERMS = terms_of({"w": (2, 3), "b": (2,)}, c=1.0, rho=10, mechanism="exponential")


def update():
    return {"w": torch.linspace(-0.1, 0.1, 6).reshape(2, 3), "b": torch.tensor([1.0, -1.0]), "other": torch.ones(4)}


def upload(terms=TERMS, alpha=1e-5, key=0):
    return Upload.of(update(), terms, alpha, ldpkernels.key(key))


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
@pytest.mark.parametrize(
    ("c", "rho", "alpha", "width"),
    [(1.0, 10, 1e-5, 5), (1.0, 2, 50.0, 1), (1.0, 4, 50.0, 2), (4.0, 18, 1.5e-17, 8), (0.0, 3, 100.0, 1)],
)
def test_the_server_reads_the_very_integers(mechanism, c, rho, alpha, width):
    terms = terms_of({"w": (2, 3), "b": (2,)}, c, rho, mechanism)
    sent = Upload.of(update(), terms, alpha, ldpkernels.key(3))
    data = sent.to_bytes()
    read = Upload.from_bytes(data, terms)
    assert read.integers.tolist() == sent.integers.tolist()
    assert (read.alpha, read.terms) == (alpha, terms)
    assert len(decode(data, "cldp-upload")[1]) == 8 * width


def test_an_alpha_that_is_an_integer_is_read_back():
    sent = Upload.of(update(), TERMS, 1, ldpkernels.key(3))
    assert Upload.from_bytes(sent.to_bytes(), TERMS).alpha == 1.0


def test_an_upload_at_the_end_of_its_bound():
    for sign in (1, -1):
        edge = Upload(TERMS, 1e-5, np.full(8, sign * 10**10, np.int64))
        assert Upload.from_bytes(edge.to_bytes(), TERMS).integers.tolist() == [sign * 10**10] * 8


def test_laplace_noise_ends_where_it_hardly_ever_goes():
    """The cut is at 64 / alpha beyond the box, and the sampler's output is otherwise sent as it is."""
    terms = terms_of({"w": (4000,)}, 1.0, 3, "laplace")
    sent = Upload.of({"w": torch.zeros(4000)}, terms, 1e-3, ldpkernels.key(1))
    sampled = ldpkernels.cldp_sample(
        np.zeros(4000, np.int64), 1e-3, 1000, mechanism="laplace", generator=ldpkernels.key(1)
    )
    assert sent.integers.tolist() == sampled.tolist()
    assert abs(sent.integers).max() > 1000
    beyond = Upload(terms, 1e-3, np.full(4000, 65_001, np.int64)).to_bytes()  # 1000 + 64 / 1e-3, and one
    with pytest.raises(ValueError, match="beyond 65000"):
        Upload.from_bytes(beyond, terms)


def test_the_length_and_the_header_tell_nothing_of_the_values():
    one, other = upload(), Upload.of({n: 5 * t for n, t in update().items()}, TERMS, 1e-5, ldpkernels.key(1))
    heads = [decode(u.to_bytes(), "cldp-upload") for u in (one, other)]
    assert heads[0][0] == heads[1][0]
    assert len(heads[0][1]) == len(heads[1][1])
    assert "other" not in json.dumps(heads[0][0])


def test_every_damaged_bit_is_noticed():
    data = upload().to_bytes()
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 1 << (i % 8)
        with pytest.raises(ValueError, match="upload"):
            Upload.from_bytes(bytes(damaged), TERMS)


@pytest.mark.parametrize("length", [0, 5, 30, 100, -1])
def test_a_cut_off_upload_is_refused(length):
    with pytest.raises(ValueError, match=r"bytes|truncated"):
        Upload.from_bytes(upload().to_bytes()[:length], TERMS)


def test_foreign_bytes_are_refused():
    report = ldpkernels.report(np.zeros(8, np.float32), 0.0, 1.0, 1.0).to_bytes()
    with pytest.raises(ValueError, match="something else of this library"):
        Upload.from_bytes(report, TERMS)
    with pytest.raises(ValueError, match="begin with"):
        Upload.from_bytes(b"\x89PNG" + bytes(100), TERMS)
    with pytest.raises(TypeError, match="not a str"):
        Upload.from_bytes("upload", TERMS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ["w", "x"]}, "upload's names"),
        ({"shapes": [[3, 2], [2]]}, "upload's shapes"),
        ({"c": 2.0}, "upload's c "),
        ({"rho": 9}, "upload's rho"),
        ({"mechanism": "laplace"}, "upload's mechanism"),
        ({"more": 1}, "upload's more"),
        ({"alpha": None}, "does not say its alpha"),
        ({"alpha": 1}, "does not say its alpha"),
        ({"alpha": -1.0}, "alpha"),
    ],
)
def test_an_upload_of_other_terms_is_refused(changes, message):
    header, payload = decode(upload().to_bytes(), "cldp-upload")
    total = UploadMean(TERMS)
    with pytest.raises(ValueError, match=message):
        total.add(encode({"kind": "cldp-upload", **header, **changes}, payload))
    assert (total.clients, total.mean()) == (0, {})


def test_a_payload_that_no_client_makes_is_refused():
    header, payload = decode(upload().to_bytes(), "cldp-upload")
    for wrong in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(ValueError, match="not 8 integers of 5 bytes"):
            Upload.from_bytes(encode({"kind": "cldp-upload", **header}, wrong), TERMS)
    beyond = struct.pack("<Q", 2 * 10**10 + 1)[:5] + payload[5:]
    with pytest.raises(ValueError, match="an integer beyond 10000000000"):
        Upload.from_bytes(encode({"kind": "cldp-upload", **header}, beyond), TERMS)
    with pytest.raises(ValueError, match=r"the update has shapes .*: send"):
        Upload.of({"w": torch.zeros(3, 2), "b": torch.zeros(2)}, TERMS, 1.0, ldpkernels.key(0))


def test_the_mean_is_that_of_the_integers():
    total = UploadMean(TERMS)
    uploads = [upload(alpha=1e-5 * (i + 1), key=i) for i in range(7)]
    for one in uploads:
        total.add(one.to_bytes())
    mean = total.mean()
    expected = [sum(int(u.integers[i]) for u in uploads) / (7 * 10**10) for i in range(8)]
    assert torch.cat([mean["w"].ravel(), mean["b"]]).tolist() == expected
    assert (total.clients, mean["w"].shape, mean["w"].dtype) == (7, (2, 3), torch.float64)


def test_a_sum_that_may_overflow_is_refused():
    terms = terms_of({"w": (1,)}, c=4.0, rho=18, mechanism="exponential")
    total = UploadMean(terms)
    data = Upload(terms, 1e-18, np.array([4 * 10**18])).to_bytes()
    total.add(data)
    total.add(data)
    with pytest.raises(ValueError, match="may not fit 64 bits"):
        total.add(data)
    assert total.mean()["w"].tolist() == [4.0]


def test_integers_of_values():
    x = torch.tensor([0.25, -0.05, 0.15, math.nan, math.inf, -math.inf, 3.0], dtype=torch.float64)
    assert integers_of(x, 10, 1).tolist() == [2, 0, 2, 0, 10, -10, 10]  # 2.5 and -0.5 go to the even number
    assert integers_of(torch.tensor([2.0]), 2**62 - 1, 22).tolist() == [2**62 - 1]


def test_stronger_noise_for_a_smaller_alpha():
    spread = {}
    terms = terms_of({"w": (4000,)}, 1.0, 10, "laplace")
    for alpha in (1e-6, 1e-5):
        spread[alpha] = Upload.of({"w": torch.zeros(4000)}, terms, alpha, ldpkernels.key(0)).integers.std() * alpha
    assert spread[1e-6] == pytest.approx(math.sqrt(2), rel=0.2)  # six deviations of a sample of 4000
    assert spread[1e-5] == pytest.approx(math.sqrt(2), rel=0.2)
