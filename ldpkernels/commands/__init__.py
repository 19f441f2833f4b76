# SPDX-License-Identifier: Apache-2.0
"""The command line.

A command is a module with `add_parser` and `main(args) -> Outcome`. What needs torch lies in a module of its own
(`*_run`), which `main` imports: reading the arguments and printing help imports no torch. `program` is the frame around
all of them: one meaning of --json, one way to refuse.
"""
