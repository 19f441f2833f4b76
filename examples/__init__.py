# SPDX-License-Identifier: Apache-2.0
"""Programs to start from; the tests run them."""
