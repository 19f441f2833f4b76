# SPDX-License-Identifier: Apache-2.0
"""The sum that is opened is the plain sum of those who are in it, whoever is lost and whatever is changed."""

import dataclasses
import itertools

import numpy as np
import pytest

import ldpkernels
from ldpkernels.secure_sums import ProtocolError, RoundLost, Server, Terms, begin, mask, shamir
from ldpkernels.secure_sums.client import mask_pairs
from ldpkernels.secure_sums.messages import written
from ldpkernels.secure_sums.primitives import derived
from tests.secure_sums.rounds import STAGES, Round, integers, plain_sum, terms

SIGNED = pytest.mark.parametrize("signed", [False, True], ids=["no roster", "roster"])


def summed(round_):
    """The clients whose integers are in the sum: those who were not lost before they sent them."""
    return [n for n in range(round_.terms.invited) if round_.lost.get(n) not in STAGES[:3]]


@SIGNED
@pytest.mark.parametrize("bits", [5, 16, 20, 32])
@pytest.mark.parametrize("lost", [{}, *({2: stage} for stage in STAGES)], ids=["nobody", *STAGES])
def test_the_sum_is_the_plain_sum(signed, bits, lost):
    """Modulo 2^bits, which is narrower than what is sent: how often it wraps would tell how many are negative."""
    made, identities = terms(bits=bits, signed=signed)
    round_ = Round(made, identities, lost)
    total = round_.run()
    np.testing.assert_array_equal(total, plain_sum(made, summed(round_)))
    assert round_.server.clients == summed(round_)
    assert round_.server.refused == {}


def test_clients_are_lost_at_every_stage_at_once():
    made, identities = terms(12, 7, signed=True)
    round_ = Round(made, identities, dict(zip((3, 0, 11, 5, 7), STAGES, strict=True)))
    np.testing.assert_array_equal(round_.run(), plain_sum(made, summed(round_)))


@SIGNED
@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_nothing_opens(signed, stage):
    made, identities = terms(signed=signed)
    round_ = Round(made, identities, {0: stage, 1: stage})
    if stage == "agreed" and not signed:
        stage = "disclosed"
    with pytest.raises(RoundLost, match=r"3 .*the threshold is 4"):
        round_.run()


def test_a_client_that_is_restarted_between_all_steps_ends_with_the_same_sum():
    made, identities = terms(signed=True)
    np.testing.assert_array_equal(Round(made, identities, restart=True).run(), plain_sum(made, range(5)))


def test_a_state_of_other_terms_is_not_taken_up():
    made, _ = terms()
    round_ = Round(made)
    round_.run()
    with pytest.raises(RuntimeError, match="no round with these terms"):
        type(round_.states[0]).from_bytes(round_.states[0].to_bytes(), dataclasses.replace(made, round=b"another"))


def test_a_state_says_no_secrets():
    made, _ = terms()
    round_ = Round(made)
    round_.run()
    assert "root" not in repr(round_.states[0])
    assert round_.states[0].root == bytes(32)  # forgotten


def wrong(stage, victim, message):
    """A change of one client's message at one stage."""
    return lambda at, number, sent: message(sent) if (at, number) == (stage, victim) else sent


@SIGNED
@pytest.mark.parametrize(
    ("stage", "message"),
    [
        *itertools.product(STAGES, [lambda _: b"", lambda _: b"nonsense", lambda sent: sent + b"\0"]),
        ("shares", lambda sent: sent[90:]),
        ("masked", lambda sent: sent[2:]),
    ],
)
def test_a_client_that_sends_nonsense_is_lost_alone(signed, stage, message):
    if stage == "agreed" and not signed:
        message = bytes
    made, identities = terms(signed=signed)
    round_ = Round(made, identities, change=wrong(stage, 1, message))
    total = round_.run()
    np.testing.assert_array_equal(total, plain_sum(made, round_.server.clients))
    assert len(round_.server.clients) == (5 if stage in ("agreed", "disclosed") else 4)
    if signed or stage != "agreed":
        assert list(round_.server.refused) == [1]


def test_a_wrong_share_is_told_from_the_others():
    def change(stage, number, sent):
        if (stage, number) != ("disclosed", 1):
            return sent
        return b"".join(sent[at : at + 8] + bytes(32) + b"\1" for at in range(0, len(sent), 41))

    made, _ = terms()
    np.testing.assert_array_equal(Round(made, change=change).run(), plain_sum(made, range(5)))


@pytest.mark.parametrize("liar", [0, 63, 64, 66, 80, 99])
def test_one_wrong_share_of_a_hundred_is_told_from_the_others(liar):
    made, _ = terms(100, 70, length=1)
    server = Server(made)
    shares = dict(enumerate(shamir.split(bytes(range(32)), 70, 100, b"randomness"), 1))
    shares[liar + 1] = bytes(33)
    assert server._joined(shares, 5, lambda secret: secret == bytes(range(32))) == bytes(range(32))


def test_too_many_wrong_shares_lose_the_round():
    def change(stage, number, sent):
        if stage != "disclosed" or number > 1:
            return sent
        return b"".join(sent[at : at + 8] + bytes(32) + b"\1" for at in range(0, len(sent), 41))

    with pytest.raises(RoundLost, match="wrong"):
        Round(terms()[0], change=change).run()


def test_a_box_that_was_changed_gives_no_share_and_the_others_open_the_sum():
    def change(stage, number, sent):
        return sent[:8] + bytes(82) + sent[90:] if (stage, number) == ("shares", 3) else sent

    for lost in ({}, {3: "masked"}):
        round_ = Round(terms(threshold=3)[0], lost=lost, change=change)
        np.testing.assert_array_equal(round_.run(), plain_sum(round_.terms, summed(round_)))


def test_integers_that_come_twice_count_once():
    made, _ = terms()
    round_ = Round(made)

    def change(stage, number, sent):
        if (stage, number) == ("masked", 4):
            round_.server.masked(4, sent)
        return sent

    round_.change = change
    np.testing.assert_array_equal(round_.run(), plain_sum(made, range(5)))
    assert round_.server.refused == {4: "its integers came twice"}
    assert not round_.server.masked(0, bytes(100))


def test_what_is_sent_is_uniform():
    """The integers of one client are all zero; what leaves is spread over all of 2^16 by chi-square, z below 6."""
    made, _ = terms(3, 2, length=2**16)
    sent = {}
    round_ = Round(made, change=lambda stage, number, message: sent.setdefault((stage, number), message))
    round_.run()
    seen = np.frombuffer(sent["masked", 1], "<u2")
    apart = (seen - integers(1, made).astype(np.uint16)).astype(np.int64)
    for values in (seen.astype(np.int64), apart):
        counts = np.bincount(values // 256, minlength=256)
        statistic = float(((counts - 256) ** 2 / 256).sum())
        assert abs(statistic - 255) / np.sqrt(2 * 255) < 6


def test_an_update_comes_back_from_the_sum():
    law = ldpkernels.DistributedGaussian.calibrated(8.0, 1e-5, dimension=100, clients=4, invited=6, bits=20)
    rotation = ldpkernels.key(3)
    made = Terms.of(law, rotation, round=b"1", threshold=5)
    assert (made.length, made.bits, made.width, made.honest) == (128, 20, 32, 4)
    sent = [ldpkernels.updates.encode(np.full(100, 0.1), law, rotation, generator=ldpkernels.key(n)) for n in range(6)]
    total = Round(made, integers=lambda number, _: sent[number]).run()
    mean = ldpkernels.updates.decode(total, law, rotation, clients=6)
    expected = ldpkernels.updates.decode(sum(x.astype(np.uint64) for x in sent), law, rotation, clients=6)
    np.testing.assert_array_equal(mean, expected)


@pytest.mark.parametrize("bits", [12, 32])
def test_where_nobody_may_be_lost_the_masks_of_pairs_alone_cancel(bits):
    made, _ = terms(5, 5, bits=bits)
    begun = {number: begin(made, number) for number in range(5)}
    keys = written({number: message for number, (_, message) in begun.items()})
    ends = {number: mask_pairs(begun[number][0], keys, integers(number, made)) for number in range(5)}
    masked = {number: sent for number, (_, sent) in ends.items()}
    shift, plain = made.width - bits, plain_sum(made, range(5))
    np.testing.assert_array_equal(sum(masked.values()) >> shift, plain)
    assert not np.array_equal(sum(list(masked.values())[1:]) >> shift, plain_sum(made, range(1, 5)))
    assert ends[0][0].root == bytes(32)  # forgotten
    with pytest.raises(ProtocolError, match="'over'"):
        mask_pairs(ends[0][0], keys, integers(0, made))
    other = begin(dataclasses.replace(made, purpose=b"another law"), 3)[1]
    rows = {number: message for number, (_, message) in begun.items()}
    with pytest.raises(ProtocolError, match="client 3: it announced other terms"):
        mask_pairs(begun[0][0], written({**rows, 3: other}), integers(0, made))
    with pytest.raises(ProtocolError, match="4 clients"):
        mask_pairs(begun[0][0], written({n: rows[n] for n in range(4)}), integers(0, made))


def test_hkdf_has_the_published_output():
    """RFC 5869, test case 1: the first 32 of its 42 bytes."""
    made = derived(b"\x0b" * 22, bytes(range(0xF0, 0xFA)), bytes(range(13)))
    assert made.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


class TestShamir:
    def test_the_modulus_is_prime(self):
        """Miller and Rabin's test with 40 bases; and it is the least prime above 2^256, so that nothing was chosen."""

        def is_prime(n):
            odd, twos = n - 1, 0
            while odd % 2 == 0:
                odd, twos = odd // 2, twos + 1
            for base in range(2, 42):
                x = pow(base, odd, n)
                if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
                    return False
            return True

        assert is_prime(shamir.PRIME)
        assert not any(is_prime(n) for n in range(2**256 + 1, shamir.PRIME, 2))

    @pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
    def test_any_so_many_shares_give_the_secret(self, secret):
        shares = dict(enumerate(shamir.split(secret, 3, 5, b"randomness"), 1))
        for places in itertools.combinations(shares, 3):
            assert shamir.joined(shares, places) == secret

    def test_fewer_shares_fit_every_secret(self):
        """Two of three shares and any secret lie on a polynomial of degree 2: they say nothing."""
        shares = dict(enumerate(shamir.split(bytes(range(32)), 3, 3, b"randomness"), 1))
        for other in (bytes(32), b"\xff" * 32):
            weights = shamir.weights([1, 2, 3])
            known = sum(int.from_bytes(shares[p], "little") * w for p, w in zip((1, 2), weights, strict=False))
            third = (int.from_bytes(other, "little") - known) * pow(weights[2], -1, shamir.PRIME) % shamir.PRIME
            assert shamir.joined({**shares, 3: third.to_bytes(33, "little")}, [1, 2, 3]) == other

    def test_shares_follow_from_the_randomness_alone(self):
        assert shamir.split(bytes(32), 3, 4, b"a") == shamir.split(bytes(32), 3, 4, b"a")
        assert not set(shamir.split(bytes(32), 3, 4, b"a")) & set(shamir.split(bytes(32), 3, 4, b"b"))


def test_a_mask_is_made_of_integers_of_the_right_number():
    made, _ = terms(3, 2, length=8)
    round_ = Round(made)
    round_.run()
    state = dataclasses.replace(round_.states[0], stage="shared")
    for bad in (np.zeros(7, np.uint16), np.zeros(8)):
        with pytest.raises(ValueError, match="pass 8 integers"):
            mask(state, round_.boxes[0], bad)
