# SPDX-License-Identifier: Apache-2.0
"""Running a driver round by round: progress, a row of figures for each round, checkpoints, resuming."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from ldpkernels.accounting.records import rounded_up
from ldpkernels.common.plot import make_folder


class HasRound(Protocol):
    """A state is a dataclass that knows how many rounds led to it."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def round(self) -> int:
        """The number of rounds so far."""


State = TypeVar("State", bound=HasRound)
Figure = float | str | None
Row = dict[str, Figure]
FORMAT = 1


class CheckpointError(RuntimeError):
    """The checkpoint does not belong to this run, or cannot be read."""


def run(
    step: Callable[[State], tuple[State, Row]],
    state: State,
    rounds: int,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    described: Mapping[str, object] | None = None,
    label: str = "",
    progress: bool = True,
) -> tuple[State, list[Row]]:
    """Call `step` until `state.round` is `rounds`; the last state, and a row for each round.

    Args:
        step: From a state to the next one, and the figures of the round. It depends on nothing but the state, so a run
            that was killed and resumed ends with the same bits as one that was not.
        state: A frozen dataclass of plain data and tensors, with a field `round`.
        rounds: How many rounds in all.
        folder: Where checkpoint.pt and metrics.csv are kept up to date; None keeps nothing.
        resume: Go on from the folder's checkpoint. Without it, a folder that has one is refused.
        described: All that the run depends on; a checkpoint with another description is refused.
        label: What the progress bar says.
        progress: Whether to show the bar.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1")
    rows, told = list[Row](), _plain(described or {})
    checkpoint = Path(folder) / "checkpoint.pt" if folder is not None else None
    if checkpoint is not None:
        make_folder(checkpoint.absolute().parent)
        if checkpoint.exists():
            if not resume:
                raise CheckpointError(f"{checkpoint} exists: resume that run, or give another folder")
            state, rows = _load(checkpoint, state, told)
    for _ in _bar(range(state.round, rounds), label, progress):
        started = time.perf_counter()
        state, row = step(state)
        rows.append({"round": state.round, **row, "seconds": round(time.perf_counter() - started, 3)})
        if checkpoint is not None:
            _save(checkpoint, state, rows, told)
            write_csv(checkpoint.with_name("metrics.csv"), rows)
    return state, rows


def table(rows: Sequence[Mapping[str, Figure]], columns: Mapping[str, str]) -> str:
    """The rows as text: column name to format, such as {"round": "d", "accuracy": ".2%"}; "up" rounds an eps up."""
    cells = [[_cell(row.get(name), form) for name, form in columns.items()] for row in rows]
    heads = [name.replace("_", " ") for name in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in [heads, *cells])


def write_csv(path: str | Path, rows: Sequence[Row]) -> None:
    """The rows as a file; whole, or not at all."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    scratch = Path(f"{path}.new")
    with scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(scratch, path)


def _cell(value: Figure, form: str) -> str:
    if value is None:
        return "-"
    return rounded_up(float(value)) if form == "up" else format(value, form)


def _bar(rounds: range, label: str, progress: bool) -> Iterable[int]:
    try:
        from tqdm import tqdm
    except ImportError:
        return rounds
    bar: Iterable[int] = tqdm(
        rounds, desc=label, unit="round", initial=rounds.start, total=rounds.stop, disable=not progress
    )
    return bar


def _plain(described: Mapping[str, object]) -> str:
    return json.dumps(described, sort_keys=True, default=dataclasses.asdict)


def _flat(described: Mapping[str, object], before: str = "") -> dict[str, object]:
    """The description with those within it by names with dots, so that what differs is told and no more."""
    flat: dict[str, object] = {}
    for name, value in described.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return flat


def _save(path: Path, state: HasRound, rows: list[Row], described: str) -> None:
    """Write a checkpoint, durable before it replaces the last one: a kill at any moment leaves one of the two."""
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    scratch = path.with_suffix(".new")
    with scratch.open("wb") as file:
        torch.save({"format": FORMAT, "described": described, "state": fields, "rows": rows}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def _check_like(found: object, expected: object, what: str) -> None:
    """Refuse what no run of this network writes: other names, types, shapes. What may be of any kind starts as None."""
    if expected is None or isinstance(expected, (int, float)):
        if expected is not None and type(found) is not type(expected):
            raise TypeError(f"{what} is a {type(found).__name__}, not a {type(expected).__name__}")
    elif isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or found.keys() != expected.keys():
            raise TypeError(f"{what} does not have the fields of this run's")
        for name, value in expected.items():
            _check_like(found[name], value, f"{name!r} of {what}")
    elif isinstance(expected, torch.Tensor) and (
        not isinstance(found, torch.Tensor) or found.shape != expected.shape or found.dtype != expected.dtype
    ):
        raise TypeError(f"{what} is not a tensor of {expected.dtype} and shape {tuple(expected.shape)}")


def _load(path: Path, state: State, described: str) -> tuple[State, list[Row]]:
    try:
        saved = torch.load(path, weights_only=True)
        if saved["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {saved['format']}, this version reads {FORMAT}")
        theirs, ours = json.loads(saved["described"]), json.loads(described)
        fields, rows = saved["state"], saved["rows"]
        _check_like(fields, {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}, "the state")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError("its rows are not a table")
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is not a checkpoint, or is damaged ({error}): give another folder") from error
    theirs, ours = _flat(theirs), _flat(ours)
    differing = [
        f"{name}: {theirs.get(name)!r} then, {ours.get(name)!r} now"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]
    if differing:
        raise CheckpointError(f"{path} belongs to another run ({'; '.join(differing)}): give that run's settings")
    return dataclasses.replace(state, **fields), rows
