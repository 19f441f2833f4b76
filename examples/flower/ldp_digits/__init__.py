# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits, learnt from reports under local differential privacy."""

EPS = 4.0  # of each weight of a report; client and server must agree
