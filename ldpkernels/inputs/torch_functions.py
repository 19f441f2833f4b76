# SPDX-License-Identifier: Apache-2.0
"""The functions of torch's libraries by which csrc/torch_tensors.h reads tensors, found while the program runs."""

from __future__ import annotations

import ctypes

from ldpkernels import _native

# In the order of TorchFunctions there: those that torch keeps for models compiled ahead of time, and one of C++,
# at::native::is_neg(const at::Tensor&).
_QUESTIONS = ("device_type", "layout", "dtype", "dim", "sizes", "strides", "data_ptr", "storage_size", "storage_offset")
_IS_NEG = "_ZN2at6native6is_negERKNS_6TensorE"
_CODES = ("device_type_cpu", "layout_strided", "dtype_float32", "dtype_float64", "dtype_bfloat16", "dtype_float16")


def torch_tensors() -> _native.TorchTensors | None:
    """The reader of tensors' memory; None where this torch lacks a function, or its answers are not its methods'."""
    import torch

    try:
        library = ctypes.CDLL(torch._C.__file__)
        functions = [library[f"aoti_torch_get_{name}"] for name in _QUESTIONS] + [library[_IS_NEG]]
        codes = [library[f"aoti_torch_{name}"]() for name in _CODES]
    except (AttributeError, OSError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    samples = (torch.zeros(3, device="cpu"), torch.nn.Parameter(torch.zeros(3, device="cpu")))
    try:
        return _native.TorchTensors(addresses, codes, samples, [sample._cdata for sample in samples])
    except ValueError:
        return None


def answers_rightly(reader: _native.PlainTensors) -> bool:
    """Whether tensors are read as torch's methods describe them, and what is not plain is none."""
    import torch

    base = torch.zeros(24, device="cpu")
    formats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    for code, dtype in enumerate(formats):
        tensor = base.to(dtype)[8:].view(2, 8)
        found = reader.tensors((tensor,), True)
        if found is None or found[0].tolist() != [(tensor.data_ptr(), 0, 16, 0, code)]:
            return False
    shrunk = torch.zeros(8, device="cpu")
    shrunk.untyped_storage().resize_(28)
    doubtful = (torch._neg_view(base), base[::2], base.to(torch.int32), base.to_sparse(), base.to("meta"), shrunk)
    return all(reader.tensors((tensor,), False) is None for tensor in doubtful)
