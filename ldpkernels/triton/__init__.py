# SPDX-License-Identifier: Apache-2.0
"""The kernels in Triton, for GPUs where the package was built without CUDA C++. The bits are those of every backend.

`registry.launch` runs a mechanism over tables of `ldpkernels._native`, with a key tensor on the device of the weights;
`clipped_noise.clipped_sums` and `votes.majority_vote` are calls of their own. `launch.keystream` gives a key's words.

Without a GPU, Triton's interpreter runs them on CPU tensors: slow, and for tests. It is on if TRITON_INTERPRET=1 was
set before triton was first imported; triton decides at import, so this package imports it only when a kernel is called.
"""
