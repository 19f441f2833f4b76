# SPDX-License-Identifier: Apache-2.0
"""Real examples beside synthetic samples, as in figure 4 of Han and Xue."""

from __future__ import annotations

from typing import Any

import torch

from ldpkernels.federated.han_xue import State, World

_EACH = 16


def draw(path: str, world: World, state: State) -> None:
    """A row for each kind of generator: the first party that has it, real on the left, synthetic on the right."""
    from ldpkernels.plot import new_figure, save

    used = world.kinds[: world.config.parties]
    owners = [used.index(kind) for kind in dict.fromkeys(used)]
    images = len(world.shape) > 1
    figure, axes = new_figure(2 * len(owners), 1, width=9, height=(1.5 if images else 3.6) * len(owners))
    for row, party in enumerate(owners):
        real = world.dataset.train_x[world.shards[party][:_EACH]]
        made = world.samples_of(state, party, _EACH)
        kind = used[party]
        for axis, x, name in ((axes[2 * row], real, "real"), (axes[2 * row + 1], made, f"synthetic, {kind}")):
            (_images if images else _features)(axis, x, f"party {party}: {name}", world)
    save(figure, path)


def _images(axis: Any, x: torch.Tensor, title: str, world: World) -> None:
    assert world.span is not None
    low, high = world.span
    strip = torch.cat(list((x - low) / (high - low)), dim=2).clamp(0, 1)  # [channels, height, all widths]
    axis.imshow(strip.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    _bare(axis, title)


def _features(axis: Any, x: torch.Tensor, title: str, world: World) -> None:
    axis.imshow(x.clamp(-3, 3).numpy(), cmap="coolwarm", vmin=-3, vmax=3, aspect="auto", interpolation="nearest")
    _bare(axis, f"{title}: {x.shape[1]} features of {len(x)} samples, in deviations from the mean")


def _bare(axis: Any, title: str) -> None:
    axis.grid(False)
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=8, loc="left")
