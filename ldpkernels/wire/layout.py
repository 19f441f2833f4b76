# SPDX-License-Identifier: Apache-2.0
"""What a report's header says: read from a model that was reported, or from bytes that anyone may have written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from typing import TypeVar

import numpy as np

from ldpkernels.common.arrays import Bytes, Integers
from ldpkernels.common.dtypes import DTYPES, FLOAT64, Dtype
from ldpkernels.inputs.containers import Container, Tensors
from ldpkernels.laws.registry import MECHANISMS, executed_ranges, mechanism_named
from ldpkernels.laws.weightwise import Weightwise
from ldpkernels.wire.codec import Codec, codec_of
from ldpkernels.wire.envelope import Header

STREAM = 1  # docs/rng.md
LIBRARIES = ("torch", "numpy")
CONTAINERS = ("module", "mapping", "sequence", "tensor")

_FOREIGN = "the header is not one of this version's"

Field = TypeVar("Field")


@dataclass(frozen=True)
class Layout:
    """Which weights were reported, and by which law. Reports of equal layouts can be added.

    What held the weights is not compared: torch's and NumPy's reports of one model are alike.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    c: tuple[float, ...]
    r: tuple[float, ...]
    dtypes: tuple[str, ...]  # in which the mean is given: float32 or float64
    eps: float
    threshold: int  # the lowest that is executed: the integer that proves eps
    container: str = field(compare=False)  # of the client; the server gives its mean in the first client's
    library: str = field(compare=False)
    mechanism: str = "two-point"
    stream: int = STREAM

    @classmethod
    def of(
        cls, tensors: Tensors, c: Sequence[float], r: Sequence[float], mechanism: Weightwise, dtypes: Sequence[Dtype]
    ) -> Layout:
        """The layout of reports of these tensors."""
        shapes = tuple(tuple(t.shape) for t in tensors.values)
        library = "torch" if tensors.is_torch else "numpy"
        ranges = tuple(c), tuple(r), tuple(dtypes)
        return _layout(tuple(tensors.names), shapes, *ranges, mechanism, tensors.container, library)

    @cached_property
    def codec(self) -> Codec:
        """How the weights lie in a report, and how they are counted."""
        return codec_of(MECHANISMS[self.mechanism].reported)

    @cached_property
    def sizes(self) -> list[int]:
        """Weights in each tensor."""
        return list(map(math.prod, self.shapes))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one report's weights."""
        return self.codec.payload_bytes(self.sizes)

    @cached_property
    def offsets(self) -> Integers:
        """The byte at which each tensor starts in one report."""
        return np.array(self.codec.offsets(self.sizes), np.int64)

    @cached_property
    def decoding(self) -> list[tuple[float, float]]:
        """(offset, step) for each tensor: a report's number y decodes to offset + step * y."""
        affine = cache(mechanism_named(self.mechanism, self.eps).affine)  # many tensors have the ranges of others
        return [affine(c, r) for c, r in zip(self.c, self.r, strict=True)]

    @property
    def header(self) -> Header:
        """The fields, for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def unused_bits(self) -> tuple[Integers, Bytes]:
        """Bytes with bits that are no weight's, and a mask of those."""
        return self.codec.unused_bits(self.sizes)

    def difference(self, other: Layout) -> tuple[str, str, str]:
        """The first field in which another layout differs, what it says there, and what this one says."""
        compared = [f.name for f in fields(self) if f.compare]
        for name in ("mechanism", *compared):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours == theirs:
                continue
            if isinstance(ours, tuple) and len(ours) == len(theirs):
                at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
                name, ours, theirs = f"{name} of {short(self.names[at])}", ours[at], theirs[at]
            return name, short(theirs), short(ours)
        raise ValueError("equal layouts do not differ")

    def check_payload(self, payload: Bytes) -> None:
        """Refuse bytes in which a bit is set that is no weight's; their number was compared."""
        at, unused = self.unused_bits
        if at.size and (payload[at] & unused).any():
            raise ValueError("not report bytes: a bit is set past the last weight of a tensor")

    def check_law(self) -> None:
        """Refuse ranges and an eps that no report of this mechanism has: the work of one law for each range."""
        try:
            mechanism = mechanism_named(self.mechanism, self.eps)
            if mechanism.name != self.mechanism or mechanism.lowest_threshold != self.threshold:
                threshold = short(self.threshold)
                raise ValueError(f"its threshold {threshold} is not that of {self.mechanism} at eps={self.eps}")
            asked = dict.fromkeys(zip(self.c, self.r, self.dtypes, strict=True))
            all_c, all_r, names = zip(*asked, strict=True)
            found = executed_ranges(mechanism, all_c, all_r, tuple(map(DTYPES.__getitem__, names)))
            for (c, r, name), executed in zip(asked, found, strict=True):
                if executed != (c, r):
                    raise ValueError(f"C={c} with R={r} cannot be executed in {name}")
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{_FOREIGN}: {error}") from None

    def check_form(self) -> None:
        """Refuse names and formats that no report has."""
        lengths = {len(self.names), len(self.shapes), len(self.c), len(self.r), len(self.dtypes)}
        if len(lengths) != 1 or not self.names or len(set(self.names)) != len(self.names):
            raise ValueError("its tensors are not named once each")
        for name in {*self.dtypes} - {"float32", "float64"}:
            raise ValueError(f"it is of {short(name)}, in which no mean is given")
        if self.mechanism not in MECHANISMS or self.stream != STREAM:
            raise ValueError(
                f"it is of {short(self.mechanism)}, stream {short(self.stream)}: this version cannot read it"
            )
        if self.container not in CONTAINERS or self.library not in LIBRARIES:
            raise ValueError(f"it is of {short(self.library)} {short(self.container)}")
        if self.container == "tensor" and len(self.names) > 1:
            raise ValueError("it is of one tensor, with several names")


@lru_cache(maxsize=64)  # the same from one report to the next, with what follows from it
def _layout(
    names: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    c: tuple[float, ...],
    r: tuple[float, ...],
    dtypes: tuple[Dtype, ...],
    mechanism: Weightwise,
    container: Container,
    library: str,
) -> Layout:
    executed = executed_ranges(mechanism, c, r, dtypes)
    return Layout(
        names=names,
        shapes=shapes,
        c=tuple([ci for ci, _ in executed]),
        r=tuple([ri for _, ri in executed]),
        dtypes=tuple(["float64" if d is FLOAT64 else "float32" for d in dtypes]),
        eps=mechanism.eps,
        threshold=mechanism.lowest_threshold,
        container=container,
        library=library,
        mechanism=mechanism.name,
    )


# The fields of a header, in the order in which they are checked: their type, or that of the numbers of a list.
_SINGLE_FIELDS: dict[str, type] = {
    "eps": float, "threshold": int, "container": str, "library": str, "mechanism": str, "stream": int,
}  # fmt: skip
_LISTED_FIELDS: dict[str, type] = {"names": str, "c": float, "r": float, "dtypes": str}


def layout_of(header: Header) -> Layout:
    """The layout in a header, whoever wrote it: every field typed and in form. Its law is for `check_law`."""
    try:
        found: dict[str, object] = {"shapes": tuple(map(_shape, _listed(header.pop("shapes"), list)))}
        for name, kind in _LISTED_FIELDS.items():
            found[name] = _listed(header.pop(name), kind)
        for name, kind in _SINGLE_FIELDS.items():
            found[name] = value = header.pop(name)
            if type(value) is not kind:
                raise TypeError(f"{short(value)} is not of type {kind.__name__}")
        if header:
            raise ValueError(f"it has a field {short(sorted(header)[0])} that this version does not know")
        layout = Layout(**found)  # type: ignore[arg-type]  # of the types that were compared
        layout.check_form()
    except KeyError as missing:
        raise ValueError(f"{_FOREIGN}: it has no {missing}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_FOREIGN}: {error}") from None
    return layout


def short(value: object) -> str:
    """A value in an error, whatever its length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(values: object, kind: type[Field]) -> tuple[Field, ...]:
    if type(values) is not list:
        raise TypeError(f"{short(values)} is not a list")
    for value in values:
        if type(value) is not kind:
            raise TypeError(f"{short(value)} is not of type {kind.__name__}")
    return tuple(values)


def _shape(dimensions: list[object]) -> tuple[int, ...]:
    """Dimensions that an array can have; empty ones have a limit too."""
    shape = _listed(dimensions, int)
    if len(shape) > 64 or min(shape, default=0) < 0 or math.prod([n or 1 for n in shape]) >= 2**60:
        raise ValueError("a tensor's shape is not one that a tensor can have")
    return shape
