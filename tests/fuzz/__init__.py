# SPDX-License-Identifier: Apache-2.0
"""Foreign bytes for everything that reads bytes: `python -m tests.fuzz TARGET`; tests/test_fuzz.py is a short form.

A target is what to feed (targets.py): seeds that the library itself wrote, and a harness that gives bytes to a reader.
What the reader accepts has to hold together; what it refuses, it refuses by the errors it promises. Anything else is a
finding. Where a digest or a chain would turn every mutation away, the harness puts it right again.
"""
