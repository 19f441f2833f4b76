# SPDX-License-Identifier: Apache-2.0
"""What a report's header says: read from a model that was reported, or from bytes that anyone may have written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from ldpkernels.dtypes import DTYPES, FLOAT64, Dtype
from ldpkernels.inputs.containers import Tensors
from ldpkernels.laws.registry import MECHANISMS, mechanism_named
from ldpkernels.laws.weightwise import Weightwise
from ldpkernels.wire.codec import Codec, codec_of

STREAM = 1  # docs/rng.md


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
    def of(cls, tensors: Tensors, c: list[float], r: list[float], mechanism: Weightwise, dtypes: list[Dtype]) -> Layout:
        """The layout of a report that was just made."""
        executed = [mechanism.executed_range(ci, ri, d) for ci, ri, d in zip(c, r, dtypes, strict=True)]
        return cls(
            names=tuple(tensors.names),
            shapes=tuple(tuple(t.shape) for t in tensors.values),
            c=tuple(ci for ci, _ in executed),
            r=tuple(ri for _, ri in executed),
            dtypes=tuple("float64" if d is FLOAT64 else "float32" for d in dtypes),
            eps=mechanism.eps,
            threshold=mechanism.lowest_threshold,
            container=tensors.container,
            library="torch" if tensors.is_torch else "numpy",
            mechanism=mechanism.name,
        )

    @cached_property
    def codec(self) -> Codec:
        """How the weights lie in a report, and how they are counted."""
        return codec_of(MECHANISMS[self.mechanism].reported)

    @cached_property
    def sizes(self) -> list[int]:
        """Weights in each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def nbytes(self) -> int:
        """Bytes of one report's weights."""
        return self.codec.payload_bytes(self.sizes)

    def difference(self, other: Layout) -> str:
        """The first field in which two layouts differ, in words."""
        compared = [f.name for f in fields(self) if f.compare]
        for name in ("mechanism", *compared):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return f"{name} is {_short(theirs)} in one and {_short(ours)} in the others"
        return ""

    def check(self) -> None:
        """Refuse a layout that no report could have."""
        lengths = {len(self.names), len(self.shapes), len(self.c), len(self.r), len(self.dtypes)}
        if len(lengths) != 1 or not self.names or len(set(self.names)) != len(self.names):
            raise ValueError("its tensors are not named once each")
        if not all(_is_shape(shape) for shape in self.shapes):
            raise ValueError("a tensor's shape is none that a tensor can have")
        if self.mechanism not in MECHANISMS or self.stream != STREAM:
            raise ValueError(
                f"it is of {_short(self.mechanism)}, stream {_short(self.stream)}: this version cannot read it"
            )
        if self.container not in ("module", "mapping", "sequence", "tensor") or self.library not in ("torch", "numpy"):
            raise ValueError(f"it is of {_short(self.library)} {_short(self.container)}")
        if self.container == "tensor" and len(self.names) > 1:
            raise ValueError("it is of one tensor, with several names")
        mechanism = mechanism_named(self.mechanism, self.eps)
        if mechanism.name != self.mechanism or mechanism.lowest_threshold != self.threshold:
            threshold = _short(self.threshold)
            raise ValueError(f"its threshold {threshold} is not that of {self.mechanism} at eps={self.eps}")
        for c, r, name in zip(self.c, self.r, self.dtypes, strict=True):
            if name not in ("float32", "float64") or mechanism.executed_range(c, r, DTYPES[name]) != (c, r):
                raise ValueError(f"C={c} with R={r} cannot be executed in {_short(name)}")


def layout_of(header: dict[str, Any]) -> Layout:
    """The layout in a header, whoever wrote it: every field typed and checked."""
    try:
        layout = Layout(
            names=tuple(_each(header.pop("names"), str)),
            shapes=tuple(tuple(_each(shape, int)) for shape in _each(header.pop("shapes"), list)),
            c=tuple(_each(header.pop("c"), float)),
            r=tuple(_each(header.pop("r"), float)),
            dtypes=tuple(_each(header.pop("dtypes"), str)),
            eps=_typed(header.pop("eps"), float),
            threshold=_typed(header.pop("threshold"), int),
            container=_typed(header.pop("container"), str),
            library=_typed(header.pop("library"), str),
            mechanism=_typed(header.pop("mechanism"), str),
            stream=_typed(header.pop("stream"), int),
        )
        if header:
            raise ValueError(f"it has a field {sorted(header)[0]!r} that this version does not know")
        layout.check()
    except KeyError as missing:
        raise ValueError(f"the header is not one of this version's: it has no {missing}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the header is not one of this version's: {error}") from None
    return layout


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{_short(value)} is no {kind.__name__}")
    return value


def _each(values: Any, kind: type) -> list[Any]:
    return [_typed(v, kind) for v in _typed(values, list)]


def _is_shape(shape: tuple[int, ...]) -> bool:
    """Whether an array can have this shape; empty ones have a limit too."""
    return len(shape) <= 64 and all(0 <= n < 2**60 for n in shape) and math.prod(n or 1 for n in shape) < 2**60


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
