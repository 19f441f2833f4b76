# SPDX-License-Identifier: Apache-2.0
"""Images that are cropped at random while a network trains."""

from __future__ import annotations

import torch

from ldpkernels.federated.networks import Mirrored

MARGIN = 4  # of zeros on every side


class Cropped(Mirrored):
    """Moves each image by up to four pixels, and mirrors it with probability one half; nothing in evaluation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The images, of the size that they had."""
        if not self.training:
            return x
        wide, (height, width) = torch.nn.functional.pad(x, 4 * [MARGIN]), x.shape[2:]
        corners = torch.randint(2 * MARGIN + 1, (len(x), 2)).tolist()
        crops = [one[:, i : i + height, j : j + width] for one, (i, j) in zip(wide, corners, strict=True)]
        return super().forward(torch.stack(crops))
