# SPDX-License-Identifier: Apache-2.0
"""What a server that does not follow the protocol gets: with a roster nothing, without one what the docs say."""

import dataclasses

import pytest

from ldpkernels.secure_sums import ProtocolError, Server, Terms, agree, begin, disclose, mask, new_identity, share
from ldpkernels.secure_sums.messages import read, written
from tests.secure_sums.rounds import Round, integers, terms


def masked_round(clients, threshold, **others):
    """A round of honest clients that all have sent their integers."""
    made, identities = terms(clients, threshold, signed=True, **others)
    round_ = Round(made, identities)
    round_.run()
    round_.masked_states = {n: dataclasses.replace(s, stage="masked") for n, s in round_.after["masked"].items()}
    return round_


class TestTheListOfWhoIsPresent:
    def agreed(self, rows, victim=0):
        round_ = masked_round(7, 5)
        rows = rows(read(round_.present, 0))
        data = rows if isinstance(rows, bytes) else written(rows)
        return agree(round_.masked_states[victim], data, round_.identities[victim])

    def test_an_honest_one_is_signed(self):
        assert len(self.agreed(lambda rows: rows)[1]) == 64

    @pytest.mark.parametrize(
        ("change", "refusal"),
        [
            (lambda rows: {n: rows[n] for n in (0, 1, 2, 3)}, "4 clients are present, and the threshold is 5"),
            (lambda rows: {n: rows[n] for n in range(1, 7)}, "leaves this client out"),
            (lambda rows: {**rows, 99: b""}, "has one who shared nothing"),
            (lambda rows: written(rows) + written({6: b""}), "twice, or clients out of order"),
            (lambda rows: written(rows)[:-1], "another length"),
        ],
    )
    def test_others_are_refused(self, change, refusal):
        with pytest.raises(ProtocolError, match=refusal):
            self.agreed(change)


def test_a_second_list_is_not_answered():
    """Two lists would open both the seed and the key of who is on one of them alone."""
    round_ = masked_round(7, 5)
    rows = read(round_.present, 0)
    other = written({n: rows[n] for n in range(5)})
    state, _ = agree(round_.masked_states[0], round_.present, round_.identities[0])
    with pytest.raises(ProtocolError, match="step is for one that is 'masked'"):
        agree(state, other, round_.identities[0])
    with pytest.raises(ProtocolError, match="not the one that this client agreed to"):
        disclose(state, other, round_.consents)
    state, _ = disclose(state, round_.present, round_.consents)
    with pytest.raises(ProtocolError, match="'over'"):
        disclose(state, round_.present, round_.consents)


def test_who_is_present_is_signed_by_as_many_as_the_threshold():
    round_ = masked_round(7, 5)
    state, _ = agree(round_.masked_states[0], round_.present, round_.identities[0])
    consents = read(round_.consents, 64)
    few = {n: consents[n] for n in range(4)}
    for rows in (few, {**few, 4: consents[3]}, {**few, 99: consents[3]}, {}):
        with pytest.raises(ProtocolError, match=f"{min(len(rows), 4)} clients signed"):
            disclose(state, round_.present, written(rows))
    disclose(state, round_.present, written({**few, 4: consents[4]}))


def test_a_roster_has_each_key_once():
    one = new_identity()[1]
    with pytest.raises(ValueError, match="a key twice"):
        Terms(round=b"1", length=1, bits=16, threshold=2, invited=2, roster={0: one, 1: one})


def test_lists_of_two_are_never_both_signed():
    """Which the threshold sees to: of any two sets of so many signers, more than the colluders are in both."""
    roster = {n: new_identity()[1] for n in range(10)}
    with pytest.raises(ValueError, match="at least 6"):
        Terms(round=b"1", length=1, bits=16, threshold=5, invited=10, colluders=1, roster=roster)
    made = Terms(round=b"1", length=1, bits=16, threshold=6, invited=10, colluders=1, roster=roster)
    assert 2 * made.threshold - made.invited > made.colluders


class TestTheListOfKeys:
    def test_clients_that_were_invented_are_refused_under_a_roster(self):
        made, identities = terms(5, 4, signed=True)
        stranger = new_identity()
        forged, _ = Terms(round=made.round, length=50, bits=16, threshold=4, invited=5), None
        invented = begin(dataclasses.replace(forged, roster={**made.roster, 9: stranger[1]}), 9, stranger[0])[1]
        server, announced = Server(made), {}
        for number in range(5):
            state, announced[number] = begin(made, number, identities[number])
        keys = server.keys({**{n: announced[n] for n in (0, 1, 2, 4)}, 9: made.digest + invented[32:]})
        assert list(server.refused) == [9]
        rows = {**{n: announced[n] for n in (1, 2, 4)}, 9: made.digest + invented[32:]}
        with pytest.raises(ProtocolError, match="client 9: its announcement is not signed"):
            share(state, written(rows))
        with pytest.raises(ProtocolError, match="not on the list as it announced itself"):
            share(begin(made, 4, identities[4])[0], keys)  # another client's state, or an earlier one of its own

    def test_a_client_of_other_terms_is_named(self):
        """Of another threshold, law or version: its masks would not cancel, and the sum would be noise."""
        made, _ = terms(5, 4)
        server, other = Server(made), dataclasses.replace(made, threshold=3)
        announced = {number: begin(other if number == 2 else made, number)[1] for number in range(5)}
        server.keys(announced)
        assert server.refused == {2: "it announced other terms: another law, threshold, round or version"}

    def test_lists_of_too_few_or_too_many_are_refused(self):
        made, _ = terms(5, 4)
        begun = {number: begin(made, number) for number in range(6)}
        for numbers, said in ((range(3), "3 clients"), (range(6), "6 clients")):
            with pytest.raises(ProtocolError, match=said):
                share(begun[0][0], written({n: begun[n][1] for n in numbers}))

    def test_two_lists_have_nothing_in_common(self):
        """A client shown another list can't open the others' boxes, and its shares are none of theirs."""
        made, _ = terms(5, 3)
        begun = {number: begin(made, number) for number in range(5)}
        lists = {n: written({m: begun[m][1] for m in ((0, 1, 2, 3) if n == 3 else range(5))}) for n in range(5)}
        shared = {n: share(begun[n][0], lists[n]) for n in range(4)}
        boxes = {n: read(shared[n][1], 82) for n in shared}
        state, _ = mask(shared[3][0], written({n: boxes[n][3] for n in range(3)}), integers(3, made))
        state, _ = agree(state, written(dict.fromkeys(range(4), b"")))
        _, opened = disclose(state, state.present)
        assert list(read(opened, 33)) == [3]

    def test_a_client_with_a_key_of_small_order_loses_itself_alone(self):
        made, _ = terms(4, 3)
        announced = {number: begin(made, number)[1] for number in range(4)}
        for at in (32, 64):
            bad = announced[1][:at] + bytes(32) + announced[1][at + 32 :]
            server = Server(made)
            server.keys({**announced, 1: bad})
            assert list(server.refused) == [1]

    def test_keys_of_small_order_are_refused(self):
        made, _ = terms(3, 2)
        begun = {number: begin(made, number) for number in range(3)}
        rows = {n: message for n, (_, message) in begun.items()}
        rows[1] = rows[1][:32] + bytes(32) + rows[1][64:]
        with pytest.raises(ProtocolError, match="not one that can keep a secret"):
            share(begun[0][0], written(rows))


@pytest.mark.parametrize("group", [1, 2])
def test_masks_of_victims_who_were_shown_few_others_are_not_opened(group):
    """A server shows victims a few clients, calls those lost, and would have the others open all of the victims' masks.

    Victims refuse a list of who is present that has others than they know, and the threshold, which is the least that
    is allowed here (2 * 6 = 10 + 1 + 1), leaves one too few of the others.
    """
    made, ids = terms(10, 6, signed=True)
    victims, colluder = set(range(group)), 9
    shown = victims | {colluder} | set(range(group, 6))
    lost = set(range(group, 5))  # of whom the victims alone know, but for the colluder
    present = set(range(10)) - lost
    begun = {n: begin(made, n, ids[n]) for n in range(10)}
    keys = written({n: message for n, (_, message) in begun.items()})
    shared = {n: share(begun[n][0], keys) for n in range(10)}
    boxes = {n: read(message, 82) for n, (_, message) in shared.items()}
    listed, agreed = written(dict.fromkeys(present, b"")), []
    for n in present:
        known = shown if n in victims else set(range(10))
        state, _ = mask(shared[n][0], written({m: boxes[m][n] for m in known - {n}}), integers(n, made))
        try:
            agreed.append(agree(state, listed, ids[n])[0])
        except ProtocolError:
            assert n in victims
    assert len(agreed) == len(present) - group < made.threshold
