# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks of torch.distributed hand in the same, asked before anything else leaves a rank.

A rank that cannot go on says so instead of staying away, so that all refuse together and none waits for another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

Prepared = TypeVar("Prepared")
Statement = Mapping[str, object]  # by argument: what every rank has to say of it

_LONGEST = 4096  # bytes of a message, of one length so that they are gathered at once
_SHOWN = 60  # characters of a value in a message: of some ten arguments, and of one error, less than that
_LONGEST_ERROR = 600
SECRET = "generator"  # whose values no error shows


def agreed(
    groups: Sequence[ProcessGroup], prepare: Callable[[], tuple[Prepared, Statement]], offer: str = ""
) -> tuple[Prepared, str]:
    """What `prepare` made on this rank, once every rank's did and their statements are equal; and the lowest's `offer`.

    Raises on every rank where one of them raises or differs. Several groups are the dimensions of a mesh: what one
    dimension agreed on is compared along the next.
    """
    import torch.distributed as dist

    failed: Exception | None = None
    prepared: list[Prepared] = []
    message: dict[str, object] = {"rank": dist.get_rank(), "offer": offer}
    try:
        done, statement = prepare()
        prepared.append(done)
        message["says"] = {name: _brief(value) for name, value in statement.items()}
    except Exception as error:
        failed = error
        message["error"] = ascii(f"rank {dist.get_rank()} refused: {error}")[1:-1][:_LONGEST_ERROR]
    for group in groups:
        message = _combined(_gathered(message, group))
    if failed is not None:
        raise failed
    if "error" in message:
        raise ValueError(str(message["error"]))
    return prepared[0], str(message["offer"])


def _combined(messages: list[dict[str, object]]) -> dict[str, object]:
    """The message of the lowest rank, where all are alike; else one with an error."""
    first = min(messages, key=lambda one: int(str(one["rank"])))
    for one in messages:
        if "error" in one:
            return one
        if one["says"] != first["says"]:
            return {**first, "error": _difference(first, one)}
    return first


def _difference(first: Mapping[str, object], other: Mapping[str, object]) -> str:
    ours, theirs = first["says"], other["says"]
    assert isinstance(ours, dict) and isinstance(theirs, dict)  # noqa: PT018 - as `agreed` wrote them
    for name in ours:
        if ours[name] != theirs.get(name):
            if name == SECRET:
                return f"rank {other['rank']} has another {name} than rank {first['rank']}: pass every rank the same"
            values = f"{name} is {ours[name]} on rank {first['rank']} and {theirs.get(name)} on rank {other['rank']}"
            return f"the ranks disagree: {values}: pass every rank the same"
    return f"rank {other['rank']} makes another call than rank {first['rank']}: have every rank make the same"


def _brief(value: object) -> str:
    """A value as it is shown, with a digest where it is longer than that."""
    text = ascii(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - 20]}... (digest {blake2b(text.encode(), digest_size=16).hexdigest()})"


def _gathered(message: Mapping[str, object], group: ProcessGroup) -> list[dict[str, object]]:
    """The messages of a group's ranks, in order, as bytes of one length: nothing is unpickled."""
    import torch

    text = json.dumps(message).encode()
    assert len(text) <= _LONGEST, len(text)
    mine = torch.frombuffer(bytearray(text.ljust(_LONGEST)), dtype=torch.uint8)
    return [json.loads(bytes(one.tolist())) for one in gathered(mine, group)]


def gathered(mine: torch.Tensor, group: ProcessGroup, about: str | None = None) -> list[torch.Tensor]:
    """A small tensor of each of a group's ranks, in order, all of one shape and dtype, in host memory."""
    import torch
    import torch.distributed as dist

    mine = mine.to("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with exchange(group, "compared what they pass" if about is None else about):
        dist.all_gather(every, mine, group=group)
    return [one.cpu() for one in every]


@contextmanager
def exchange(group: ProcessGroup, about: str) -> Iterator[None]:
    """Say of an exchange that a backend gave up what the ranks were at. It gives up when the group's time-out ends."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"the call was lost on rank {dist.get_rank()} of {dist.get_world_size(group)} ranks while they {about}: a "
            f"rank is gone, or did not come within the group's time-out. {error}"
        ) from error
