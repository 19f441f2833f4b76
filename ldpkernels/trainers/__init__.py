# SPDX-License-Identifier: Apache-2.0
"""What a client of a federated round sends, from the tools that train its model: docs/integrations/trainers.md."""

from ldpkernels.trainers.callbacks import huggingface, lightning
from ldpkernels.trainers.private import measure_privately, train_privately
from ldpkernels.trainers.uploads import Upload, trainable

__all__ = ["Upload", "huggingface", "lightning", "measure_privately", "train_privately", "trainable"]
