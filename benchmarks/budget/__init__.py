# SPDX-License-Identifier: Apache-2.0
"""Accuracy at the same honest total: every mechanism of `ldpkernels.plan`, under every trust, on one task."""
