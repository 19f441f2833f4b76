# SPDX-License-Identifier: Apache-2.0
"""What a release is made of: the wheels."""
