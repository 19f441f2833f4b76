# SPDX-License-Identifier: Apache-2.0
"""The command line. A command imports what it runs only when it runs."""
