# SPDX-License-Identifier: Apache-2.0
"""The kernels in Triton: everything for GPUs without the CUDA C++ module, and what that module lacks for the others.

The bits are those of every backend. `registry.launch` runs a mechanism over tables of `ldpkernels._native`, with a key
tensor on the device of the weights; rows, votes, whole vectors, ranges and tallies of reports have modules of their
own. `launch.keystream` gives a key's words.

Without a GPU, Triton's interpreter runs them on CPU tensors: slow, and for tests. It is on if TRITON_INTERPRET=1 was
set before triton was first imported; triton decides at import, so this package imports it only when a kernel is called.
"""
