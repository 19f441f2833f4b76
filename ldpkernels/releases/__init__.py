# SPDX-License-Identifier: Apache-2.0
"""What a client of a federated framework releases in a round, and what it may spend: for whichever framework."""
