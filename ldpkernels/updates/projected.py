# SPDX-License-Identifier: Apache-2.0
"""Reports of a few bits for a whole update: docs/mechanisms/projected_code.md."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ldpkernels import _native, launch
from ldpkernels.common import capabilities
from ldpkernels.common.arrays import Floats, Integers
from ldpkernels.common.dtypes import FLOAT64
from ldpkernels.common.keys import Generator, Key
from ldpkernels.inputs.containers import Buffers, Weights
from ldpkernels.inputs.transforms import outside_of_graphs
from ldpkernels.laws.clipped_noise import Noise
from ldpkernels.laws.k_of_d import subset, uniform_integers
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.updates.rotation import Singles, Update, rotate_back_, rotated, update_of

_SIGNS, _ROWS, _CODE = 0, 1, 2  # fold_in of the shared key
_INDEX = 0  # fold_in of the client's own


@outside_of_graphs
def report_code(
    update: Weights, law: ProjectedCode, shared: Key, *, generator: Generator = None, buffers: Buffers | None = None
) -> int:
    """A client's report: a number below 2^law.bits, eps-LDP for any two updates, for whoever sees it.

    Args:
        update: A module, a tensor, an array, or a sequence or mapping of them, `law.dimension` weights in all. It is
            clipped to `law.norm` and not changed.
        law: `ProjectedCode`.
        shared: A public key **of this client in this round**, which the server knows: `round_key.fold_in(client)`. If
            clients shared one key, all would be projected alike, and their errors would not average out.
        generator: The client's own secret, as for `perturb_`; None for a key from the operating system.
        buffers: As for `perturb_`.

    >>> import numpy as np, ldpkernels
    >>> law = ldpkernels.ProjectedCode(8.0, dimension=1000, bits=8)
    >>> code = report_code(np.full(1000, 0.01), law, ldpkernels.key(5).fold_in(17))
    >>> 0 <= code < 256
    True
    """
    given = update_of("report_code", update, law.dimension, generator, buffers)
    u = _projection(given, law, shared)
    with capabilities.on_the_host():
        return chosen_code(u, law, shared, given.key)


def mean_of_codes(codes: Iterable[int], law: ProjectedCode, shared: Iterable[Key]) -> Singles:
    """The mean of clients' updates, unbiased, from their reports and the keys that they shared.

    >>> import numpy as np, ldpkernels
    >>> law = ldpkernels.ProjectedCode(8.0, dimension=16, bits=5)
    >>> keys = [ldpkernels.key(5).fold_in(client) for client in range(2000)]
    >>> codes = [report_code(np.full(16, 0.25), law, key) for key in keys]
    >>> bool(abs(mean_of_codes(codes, law, keys) - 0.25).max() < 0.1)
    True
    """
    total, clients = np.zeros(law.dimension), 0
    for code, key in zip(codes, shared, strict=True):
        if not 0 <= code < 2 * law.projected:
            raise ValueError(f"code {code} is not below 2^{law.bits}: it is not a report of this law")
        x = np.zeros(law.padded, np.float32)
        scale = law.length * math.sqrt(law.padded / law.projected)
        x[_rows(law, key)] = scale * codeword(code, law.projected, key)
        total += rotate_back_(x, key.fold_in(_SIGNS))[: law.dimension]
        clients += 1
    if not clients:
        raise ValueError("no codes to average: add at least one")
    mean: Singles = (total / clients).astype(np.float32)
    return mean


def chosen_code(u: Floats, law: ProjectedCode, shared: Key, key: Key) -> int:
    """A code for a projection. Whatever it is, `law.near` codewords are near: the law is that of integers."""
    length = float(np.sqrt(np.sum(u * u)))
    v = u / length if length else np.eye(1, law.projected)[0]
    forward, cap = (int(w) for w in _native.keystream(key.uint32(), 1, 0, 4, "").view("<u8")[:2])
    if forward >= (1 + min(length / (law.norm * law.stretch), 1.0)) / 2 * 2**64:
        v = -v
    near = near_codes(v, law, shared)
    below = uniform_integers(key.fold_in(_INDEX))
    if cap < law.threshold:
        return int(near[below(law.near)])
    others = np.setdiff1d(np.arange(2 * law.projected), near, assume_unique=True)
    return int(others[below(len(others))])


def near_codes(v: Floats, law: ProjectedCode, shared: Key) -> Integers:
    """The `law.near` codewords that are nearest to v, ascending."""
    z = np.array(v, np.float64)
    launch.reflect(z, _reflections(law.projected, shared))
    magnitude = np.where(np.isnan(z), -1.0, np.abs(z))
    largest = np.argsort(-magnitude, kind="stable")[: law.near]
    codes: Integers = np.sort(largest + np.where(z[largest] < 0, law.projected, 0))
    return codes


def codeword(code: int, k: int, shared: Key) -> Floats:
    """Column j of the random rotation for code j, and its opposite for code k + j."""
    x = np.zeros(k)
    x[code % k] = -1.0 if code >= k else 1.0
    launch.reflect(x, _reflections(k, shared), back=True)
    return x


def _reflections(k: int, shared: Key) -> Floats:
    """Normals of the reflections whose product is a uniform rotation but for its columns' signs (Stewart 1980)."""
    return normals(k * (k + 1) // 2 - 1, shared.fold_in(_CODE))


def normals(n: int, key: Key) -> Floats:
    """Standard normals, the same on every backend."""
    out = np.zeros(n)
    if n:
        launch.clipped_sums([np.zeros((1, n))], [out], [FLOAT64], [1.0], Noise(1.0, 0.0, 0), 1.0, key, "cpu")
    return out


def _rows(law: ProjectedCode, shared: Key) -> Integers:
    return subset(law.padded, law.projected, shared.fold_in(_ROWS))


def _projection(given: Update, law: ProjectedCode, shared: Key) -> Floats:
    """The clipped update, rotated, at k random places: of the update's length but for some percent."""
    x, scale = rotated(given, law.padded, law.norm, shared.fold_in(_SIGNS))
    with capabilities.on_the_host():
        rows = _rows(law, shared)
    chosen = x[rows] if isinstance(x, np.ndarray) else x[launch.copied(rows, given.device)].cpu().numpy()
    u: Floats = chosen.astype(np.float64) * (scale * math.sqrt(law.padded / law.projected))
    return u
