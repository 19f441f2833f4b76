# SPDX-License-Identifier: Apache-2.0
"""Images that are cropped at random and mirrored while a network trains."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ldpkernels.federated.networks import Mirrored


class Cropped(Mirrored):
    """A window of each image's own size, at random in the image with four black pixels around; then `Mirrored`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The windows, mirrored or not; while it is evaluated the images."""
        if self.training:
            height, width = x.shape[2:]
            padded, places = F.pad(x, (4, 4, 4, 4)), torch.randint(9, (len(x), 2)).tolist()
            x = torch.stack(
                [image[:, i : i + height, j : j + width] for image, (i, j) in zip(padded, places, strict=True)]
            )
        return super().forward(x)
