# SPDX-License-Identifier: Apache-2.0
"""What travels in Flower's records: the terms of a round to the clients, a report and few metrics back.

A report's bytes are the `data` of an Array with a serialization type of its own, so that nobody runs `numpy.load` on
what a stranger sent.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app import Error as FlowerError
from flwr.common.constant import ErrorCode

from ldpkernels.common.arrays import Array
from ldpkernels.inputs.containers import collect
from ldpkernels.releases.release import Arrays, Asked, Ranges, Release

TERMS, REPORT, METRICS = "ldp", "report", "metrics"  # keys of records
EPSILON = "ldp-epsilon"  # the metric: what the client's ledger says after this round
STYPE = "ldpkernels.report"

Upload = Literal["updates", "weights"]
Metrics: TypeAlias = "dict[str, int | float | list[int] | list[float]]"


def terms(release: Release, upload: Upload, round_: int, like: Arrays, ranges: Ranges) -> ConfigRecord:
    """The record that goes out with a round's model: what both sides agreed on, and the ranges by array."""
    record = ConfigRecord({**release.terms, "upload": upload, "round": round_})
    if release.ranged:
        tensors, (c, r) = collect(like, "perturb", C=ranges[0], R=ranges[1])
        record.update({"arrays": list(tensors.names), "c": c, "r": r})
    return record


def told(message: Message, context: Context, release: Release, upload: Upload, names: Sequence[str]) -> Asked:
    """What a message says of its round; a ValueError where it is not what this client agreed to."""
    record = message.content.config_records.get(TERMS)
    if record is None:
        raise ValueError(f"the message has no record {TERMS!r}, which says C and R: let LdpFedAvg send it")
    given = dict(record)
    for name, ours in {**release.terms, "upload": upload}.items():
        theirs = given.pop(name, None)
        if type(theirs) is not type(ours) or theirs != ours:
            raise ValueError(f"the server says {name}={theirs!r}, and this client was set up with {ours!r}")
    round_ = given.pop("round", None)
    if type(round_) is not int:
        raise ValueError("the server names no round")
    if not release.ranged:
        given.update({"arrays": list(names), "c": [0.0] * len(names), "r": [0.0] * len(names)})
    arrays, c, r = (given.pop(name, None) for name in ("arrays", "c", "r"))
    if given:
        raise ValueError(f"the server says {sorted(given)[0]!r}, which this client does not know")
    if arrays != list(names):
        raise ValueError("the ranges are for other arrays than this client reports: give both sides the same buffers=")
    ranges = _by_name(names, c, "c"), _by_name(names, r, "r")
    return Asked(ranges, context.run_id, round_, context.node_id)


def _by_name(names: Sequence[str], values: object, label: str) -> Mapping[str, float]:
    if not isinstance(values, list) or len(values) != len(names) or not all(type(v) is float for v in values):
        raise ValueError(f"{label!r} is not one number for each of {len(names)} arrays")
    return dict(zip(names, values, strict=True))


def arrays_of(content: RecordDict, whose: str) -> Arrays:
    """The arrays of the one ArrayRecord that there is."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"{whose} has {len(records)} ArrayRecords: send one")
    return {str(name): _numbers(str(name), array) for name, array in records[0].items()}


def _numbers(name: str, array: FlowerArray) -> Array:
    """The numbers of an array that a stranger sent: a header that speaks of more than there is takes no memory."""
    try:
        file = io.BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns, dtype = read(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not dtype.itemsize or size != len(array.data) - file.tell():
            raise ValueError("its header is of other data")
        there: Array = np.ndarray(shape, dtype, array.data, file.tell(), order="F" if columns else "C")
        return there.copy()
    except Exception as error:  # whatever a stranger's bytes make a parser raise
        raise ValueError(
            f"array {name!r} is not an array in NumPy's format ({error}): send flwr.app.Array(array)"
        ) from None


def record_of(arrays: Arrays) -> ArrayRecord:
    """The record of a message that holds these arrays."""
    return ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})


def answer(message: Message, report: bytes, metrics: Metrics) -> Message:
    """A client's upload."""
    array = FlowerArray(dtype="uint8", shape=(len(report),), stype=STYPE, data=report)
    content = RecordDict({REPORT: ArrayRecord({REPORT: array}), METRICS: MetricRecord(metrics)})
    return Message(content, reply_to=message)


def report_in(content: RecordDict) -> bytes:
    """The report in a stranger's reply; a ValueError where there is none."""
    records = list(content.array_records.values())
    if len(records) != 1 or list(records[0]) != [REPORT] or records[0][REPORT].stype != STYPE:
        raise ValueError("the reply has no report: the ClientApp needs LdpMod")
    return bytes(records[0][REPORT].data)


def epsilon_in(content: RecordDict) -> float:
    """What a client says that it has spent, which nobody can check; 0 where it says nothing sensible."""
    for record in content.metric_records.values():
        value = record.get(EPSILON)
        if isinstance(value, float) and math.isfinite(value) and value >= 0:
            return value
    return 0.0


def allowed(content: RecordDict, names: Sequence[str]) -> Metrics:
    """The metrics that the client's list lets out."""
    return {
        name: value for record in content.metric_records.values() for name, value in record.items() if name in names
    }


def refusal(message: Message, reason: str, code: int | None = None) -> Message:
    """An error, as Flower's own mods answer it."""
    return Message(FlowerError(ErrorCode.MOD_FAILED_PRECONDITION if code is None else code, reason), reply_to=message)


def checked_upload(upload: str) -> Upload:
    """The argument `upload`, if it is one of the two that there are."""
    if upload not in get_args(Upload):
        raise ValueError(f"upload={upload!r} must be 'updates' (what training changed) or 'weights'")
    return upload  # type: ignore[return-value]
