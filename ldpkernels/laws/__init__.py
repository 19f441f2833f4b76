# SPDX-License-Identifier: Apache-2.0
"""A mechanism's claim, and the exact integers that execute it. Nothing here imports torch."""
