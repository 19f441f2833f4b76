# SPDX-License-Identifier: Apache-2.0
"""Instructions of every kernel and call, held to a table: `make cost`."""
