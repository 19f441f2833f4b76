# SPDX-License-Identifier: Apache-2.0
"""What users call, a function or a family a file; docs/calls.md lists them, and `ldpkernels` hands them on."""
