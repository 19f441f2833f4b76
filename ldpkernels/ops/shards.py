# SPDX-License-Identifier: Apache-2.0
"""`perturb_` and `report` of DTensors: each rank works on its own memory, under one key, by the elements' numbers.

All ranks of the mesh call together, as for full_tensor(): they compare their arguments, and take the lowest rank's key.
Copies of a part (Replicate) so get the same bits. With keys of their own they would drift apart, and each would be a
release of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple, SupportsFloat

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ldpkernels import launch
from ldpkernels._native import SPAN, Summary
from ldpkernels.common.arrays import Integers, Laws, Spans
from ldpkernels.common.dtypes import Dtype
from ldpkernels.common.keys import Generator, Key, is_secure, secure_key
from ldpkernels.inputs.agreement import SECRET, Statement, agreed, gathered
from ldpkernels.inputs.containers import Buffers, Numbers, Tensors, collect
from ldpkernels.inputs.memory import locate, note_write, write_back
from ldpkernels.inputs.shards import Part, groups_of, mesh_of, part_of
from ldpkernels.inputs.spans import first_elements
from ldpkernels.laws.registry import executed, mechanism_named
from ldpkernels.laws.weightwise import Output, Weightwise
from ldpkernels.ops.keys import torch_key
from ldpkernels.wire.layout import Layout


class Asked(NamedTuple):
    """The arguments of `ldpkernels.perturb_` and `ldpkernels.report`."""

    model: object
    C: Numbers
    R: Numbers
    eps: SupportsFloat
    mechanism: str
    generator: Generator
    buffers: Buffers | None


@dataclass(frozen=True)
class _Call:
    """What a rank has checked: nothing is left to refuse."""

    mesh: DeviceMesh
    tensors: Tensors
    parts: list[Part]
    dtypes: list[Dtype]
    device: torch.device
    mechanism: Weightwise
    laws: Laws
    layout: Layout
    key: torch.Tensor | None  # the caller's own


def perturb_(asked: Asked) -> None:
    """Perturb the parts of this rank in place."""
    call, key = _agreed(asked, "values")
    pieces = _pieces(call)
    if any(piece.memory is not piece.local for piece in pieces):  # then all are written back at once
        pieces = [piece.apart() for piece in pieces]
    spans, laws = _table(call, pieces, None)
    launch.run(call.mechanism.kernel, "values", spans, laws, key, call.device.type)
    copies = [piece for piece in pieces if piece.memory is not piece.local]
    write_back([piece.local for piece in copies], [piece.result() for piece in copies])
    note_write([*call.tensors.values, *(part.local for part in call.parts)])


def report(asked: Asked) -> tuple[Layout, torch.Tensor]:
    """The report of the whole model, on every rank: parts are reported where they lie, and their bits gathered."""
    call, key = _agreed(asked, "report")
    pieces, kind = _pieces(call), call.mechanism.reported
    room = sum(piece.room for piece in pieces)
    out = torch.empty(room // 8 if kind == "bits" else room, dtype=torch.uint8, device=call.device)
    spans, laws = _table(call, pieces, out)
    launch.run(call.mechanism.kernel, kind, spans, laws, key, call.device.type, out)
    numbers = (unpacked(out) if kind == "bits" else out).split([piece.room for piece in pieces])
    wholes = []
    for tensor, piece, mine in zip(call.tensors.values, pieces, numbers, strict=True):
        part = mine[piece.at].reshape(piece.local.shape)
        form = {"shape": tensor.shape, "stride": torch.empty(tensor.shape, device="meta").stride()}
        whole = (
            DTensor.from_local(part, call.mesh, tensor.placements, run_check=False, **form).full_tensor().reshape(-1)
        )
        wholes.append(packed(whole) if kind == "bits" else whole)
    return call.layout, torch.cat(wholes)


def summaries(model: object, prepare: Callable[[], tuple[Tensors, Statement]]) -> tuple[Tensors, list[Summary]]:
    """What all ranks prepared, and the summary of each tensor: the same numbers on every rank."""
    mesh = mesh_of(model)
    tensors, _ = agreed(groups_of(mesh), prepare)
    parts = [part_of(name, t) for name, t in zip(tensors.names, tensors.values, strict=True)]
    weights = locate([part.local for part in parts], tensors.names)
    found = launch.summaries(weights.spans, weights.device)
    nothing = (math.inf, -math.inf, 0.0, 0.0, 0.0)
    rows = torch.tensor(
        [
            (one.min, one.max, one.sum, one.sum_squares, one.finite) if part.first and part.local.numel() else nothing
            for one, part in zip(found, parts, strict=True)
        ],
        dtype=torch.float64,
    )
    for group in groups_of(mesh):
        rows = torch.stack(gathered(rows, group))
    return tensors, [_summary(one) for one in rows.reshape(-1, len(parts), 5).transpose(0, 1).tolist()]


def _summary(of_ranks: list[list[float]]) -> Summary:
    """Added in ascending order: ranks may have gathered them in different ones, and have to find the same."""
    low, high, sums, squares, finite = zip(*of_ranks, strict=True)
    return Summary(min(low), max(high), sum(sorted(sums)), sum(sorted(squares)), int(sum(finite)))


def unpacked(payload: torch.Tensor) -> torch.Tensor:
    """A number, 0 or 1, for every bit of the bytes of a report."""
    return ((payload[:, None] >> _bits(payload.device)) & 1).reshape(-1)


def packed(bits: torch.Tensor) -> torch.Tensor:
    """The bytes of a report of one tensor."""
    padded = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).reshape(-1, 8)
    return (padded << _bits(bits.device)).sum(1, dtype=torch.uint8)


def _bits(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


@dataclass(frozen=True)
class _Piece:
    """Where a kernel finds a part: in its own memory, if all runs start at multiples of 8 there, or else in a copy.

    Each run has a slot of whole bytes of a report, in which it starts where it does in the byte of the whole's report.
    """

    local: torch.Tensor
    memory: torch.Tensor  # `local` itself, or the slots
    at: slice | torch.Tensor  # of the slots' elements: the part's
    room: int  # elements of all slots
    offsets: Integers  # of each run, in elements of `memory`
    slots: Integers  # of each run, in elements of a report's room
    lengths: Integers  # with what is before a run in its slot
    firsts: Integers  # the elements' numbers in the stream

    @classmethod
    def of(cls, part: Part, first: int) -> _Piece:
        """The runs of a tensor whose first element has the number `first`."""
        before = part.starts % 8
        rooms = (before + part.lengths + 7) // 8 * 8
        slots, offsets = np.cumsum(rooms) - rooms, np.cumsum(part.lengths) - part.lengths
        room, numel = int(rooms.sum()), part.local.numel()
        at: slice | torch.Tensor = slice(int(before[0]), int(before[0]) + numel) if len(rooms) == 1 else slice(0, 0)
        if len(rooms) > 1:
            places = np.repeat(slots + before - offsets, part.lengths) + np.arange(numel)
            at = torch.from_numpy(places).to(part.local.device)
        memory = part.local
        if before.any() or not memory.is_contiguous() or memory.is_neg():
            memory = torch.zeros(room, dtype=part.local.dtype, device=part.local.device)
            memory[at] = part.local.reshape(-1)
            offsets = slots
        lengths, firsts = before + part.lengths, first + part.starts - before
        return cls(part.local, memory, at, room, offsets, slots, lengths, firsts)

    def apart(self) -> _Piece:
        """This piece in a copy."""
        return replace(self, memory=self.local.clone()) if self.memory is self.local else self

    def result(self) -> torch.Tensor:
        """The part's elements, in the part's shape."""
        found = self.memory if self.memory.shape == self.local.shape else self.memory[self.at]
        return found.reshape(self.local.shape)


def _pieces(call: _Call) -> list[_Piece]:
    firsts = first_elements([t.numel() for t in call.tensors.values])
    return [_Piece.of(part, first) for part, first in zip(call.parts, firsts, strict=True)]


def _table(call: _Call, pieces: Sequence[_Piece], out: torch.Tensor | None) -> tuple[Spans, Laws]:
    """A span and a law for every run; `out` has a slot for each where reports are written."""
    runs = [len(piece.firsts) for piece in pieces]
    spans: Spans = np.zeros(sum(runs), SPAN)
    at = room = 0
    for piece, dtype, count in zip(pieces, call.dtypes, runs, strict=True):
        rows = spans[at : at + count]
        rows["data"] = piece.memory.data_ptr() + piece.offsets * dtype.itemsize
        if out is not None:
            rows["out"] = out.data_ptr() + (room + piece.slots) // (8 if call.mechanism.reported == "bits" else 1)
        rows["numel"], rows["first"], rows["dtype"] = piece.lengths, piece.firsts, dtype.code
        at, room = at + count, room + piece.room
    return spans, call.laws[np.repeat(np.arange(len(runs)), runs)]


def _agreed(asked: Asked, output: Output) -> tuple[_Call, torch.Tensor]:
    """The call as all ranks of the mesh make it, and its key."""
    model, C, R, eps, mechanism, generator, buffers = asked
    mesh = mesh_of(model)

    def prepare() -> tuple[_Call, Statement]:
        law = mechanism_named(mechanism, eps)
        tensors, (c, r) = collect(model, buffers, in_place=output == "values", sharded=True, C=C, R=R)
        parts = [part_of(name, t) for name, t in zip(tensors.names, tensors.values, strict=True)]
        dtypes = locate([part.local for part in parts], tensors.names).dtypes
        _, laws = executed(mechanism, law.eps, c, r, dtypes, output)
        device = parts[0].local.device
        key = None if is_secure(generator) else torch_key(generator, device)
        layout = Layout.of(tensors, c, r, law, dtypes)
        said = {
            "the call": "perturb_" if output == "values" else "report",
            "eps": law.eps,
            "mechanism": mechanism,
            "C": c,
            "R": r,
            "names": tensors.names,
            "shapes": layout.shapes,
            "dtypes": [d.name for d in dtypes],
            "placements": [str(t.placements) for t in tensors.values],
            SECRET: None if key is None else blake2b(key.cpu().numpy().tobytes(), digest_size=16).hexdigest(),
        }
        return _Call(mesh, tensors, parts, dtypes, device, law, laws, layout, key), said

    offer = ",".join(str(word) for word in secure_key("chacha20").words)
    call, offered = agreed(groups_of(mesh), prepare, offer)
    if call.key is not None:
        return call, call.key
    return call, Key(tuple(int(word) for word in offered.split(","))).tensor(call.device)
