# SPDX-License-Identifier: Apache-2.0
"""The bytes of reports: a header, the weights, an envelope around both."""
