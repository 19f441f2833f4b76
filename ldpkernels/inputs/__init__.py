# SPDX-License-Identifier: Apache-2.0
"""What a caller hands in: containers, modules, checks before the first write, and the kernels' table of spans."""
