# SPDX-License-Identifier: Apache-2.0
"""Real examples beside synthetic samples, as in figure 4 of Han and Xue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ldpkernels.common.plot import new_figure, save
from ldpkernels.federated.adult import FEATURES
from ldpkernels.federated.han_xue import State, World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EACH = 16


def draw(path: str | Path, world: World, state: State) -> None:
    """A row for each kind of generator: the first party that has it, real on the left, synthetic on the right."""
    used = world.kinds[: world.config.parties]
    owners = [used.index(kind) for kind in dict.fromkeys(used)]
    images = len(world.shape) == 3 and world.shape[0] in (1, 3)
    strip: Callable[[Axes, torch.Tensor, str, World], None] = _images if images else _features
    figure, axes = new_figure(2 * len(owners), 1, width=9, height=(1.5 if images else 4.6) * len(owners))
    for row, party in enumerate(owners):
        real = world.dataset.train_x[world.shards[party][:_EACH]]
        made = world.samples_of(state, party, _EACH)
        kind = used[party]
        for axis, x, name in ((axes[2 * row], real, "real"), (axes[2 * row + 1], made, f"synthetic, {kind}")):
            strip(axis, x, f"party {party}: {name}", world)
    save(figure, path)


def _images(axis: Axes, x: torch.Tensor, title: str, world: World) -> None:
    assert world.span is not None
    low, high = world.span
    strip = torch.cat(list((x - low) / (high - low)), dim=2).clamp(0, 1)  # [channels, height, all widths]
    axis.imshow(strip.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    _bare(axis, title)


def _features(axis: Axes, x: torch.Tensor, title: str, world: World) -> None:
    x = x.flatten(1)
    shown = axis.imshow(
        x.clamp(-3, 3).numpy(), cmap="coolwarm", vmin=-3, vmax=3, aspect="auto", interpolation="nearest"
    )
    _bare(axis, f"{title}: {x.shape[1]} features of {len(x)} samples, in deviations from the mean")
    axis.figure.colorbar(shown, ax=axis, pad=0.01, aspect=12)
    if world.dataset.name == "adult":
        first = {name.partition("=")[0]: i for i, name in reversed(list(enumerate(FEATURES)))}
        axis.set_xticks(list(first.values()), list(first), rotation=90, fontsize=6)


def _bare(axis: Axes, title: str) -> None:
    axis.grid(False)
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=8, loc="left")
