# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious twin of every kernel, written from docs/ and from nothing else."""
