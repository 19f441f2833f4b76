# SPDX-License-Identifier: Apache-2.0
"""What a server keeps between rounds: the model, the ranges and the rounds so far, in one file without pickles."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ldpkernels.common.arrays import Array
from ldpkernels.releases.release import Arrays

Plain: TypeAlias = "float | list[float] | dict[str, float]"

FORMAT = 1
NAME = "round.npz"


class CheckpointError(RuntimeError):
    """The folder has no checkpoint of this run, or one that cannot be read."""


@dataclass(frozen=True)
class Kept:
    """A state after so many rounds."""

    round: int
    arrays: Arrays
    ranges: tuple[Plain, Plain]
    metrics: dict[int, dict[str, float]]  # by round
    optimizer: bytes = b""  # the server's, where it has one


def plain(numbers: object) -> Plain:
    """C or R as a user gives them, in the types that JSON has."""
    if isinstance(numbers, Mapping):
        return {str(name): float(value) for name, value in numbers.items()}
    if isinstance(numbers, Sequence) and not isinstance(numbers, str):
        return [float(value) for value in numbers]
    return float(numbers)  # type: ignore[arg-type]


def save(folder: Path, kept: Kept, described: Mapping[str, object]) -> None:
    """Write a checkpoint that is durable before it replaces the last: a kill at any moment leaves one of them whole."""
    about = {
        "format": FORMAT, "described": dict(described), "round": kept.round, "ranges": list(kept.ranges),
        "metrics": {str(round_): values for round_, values in kept.metrics.items()}, "names": list(kept.arrays),
    }  # fmt: skip
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays: dict[str, Array] = {f"array{i}": array for i, array in enumerate(kept.arrays.values())}
    buffer = io.BytesIO()
    np.savez(buffer, about=text, optimizer=np.frombuffer(kept.optimizer, np.uint8), **arrays)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{NAME}.new"
    with scratch.open("wb") as file:
        file.write(buffer.getvalue())
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, folder / NAME)


def load(folder: Path, described: Mapping[str, object], like: Arrays) -> Kept | None:
    """Read what `save` wrote for these settings and such a model; None where there is nothing."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as saved:
            about = json.loads(saved["about"].tobytes())
            arrays = {str(name): saved[f"array{i}"] for i, name in enumerate(about["names"])}
            optimizer = saved["optimizer"].tobytes() if "optimizer" in saved else b""
        if about["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {about['format']}, this version reads {FORMAT}")
        theirs: dict[str, object] = about["described"]
        c, r = map(plain, about["ranges"])
        kept = Kept(
            int(about["round"]), arrays, (c, r), {int(k): dict(v) for k, v in about["metrics"].items()}, optimizer
        )
    except CheckpointError:
        raise
    except Exception as error:  # whatever bytes make an archive's reader raise: it says of encryption that it has none
        raise CheckpointError(f"{path} is not a checkpoint, or is damaged ({error}): give another folder") from error
    for name in sorted({*theirs, *described}):
        if theirs.get(name) != described.get(name):
            raise CheckpointError(
                f"{path} belongs to another run ({name}: {theirs.get(name)!r} then, {described.get(name)!r} now): give "
                "that run's settings, or another folder"
            )
    if [(n, a.shape, a.dtype) for n, a in arrays.items()] != [(n, a.shape, a.dtype) for n, a in like.items()]:
        raise CheckpointError(f"{path} has another model: give its initial arrays, or another folder")
    return kept
