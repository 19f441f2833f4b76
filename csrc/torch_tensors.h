// SPDX-License-Identifier: Apache-2.0
// Where a torch tensor's numbers lie, without linking against torch: by the C functions that torch keeps stable for
// models compiled ahead of time (torch/csrc/inductor/aoti_torch/c/shim.h), and one of C++. Each is a few loads; by a
// method of the tensor, an answer is an object of Python, and some give its lock up.
#pragma once

#include <Python.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "dtype.h"

namespace ldpk {

// A tensor as these functions take it: what at::Tensor is, a pointer to its TensorImpl, by its address.
using TorchHandle = const void*;

// Addresses, in the order of ldpkernels/inputs/torch_functions.py. The last is C++: bool(const at::Tensor&).
struct TorchFunctions {
  int32_t (*device_type)(TorchHandle, int32_t*);  // 0, or it failed, as all of these
  int32_t (*layout)(TorchHandle, int32_t*);
  int32_t (*dtype)(TorchHandle, int32_t*);
  int32_t (*dimensions)(TorchHandle, int64_t*);
  int32_t (*sizes)(TorchHandle, const int64_t**);
  int32_t (*strides)(TorchHandle, const int64_t**);
  int32_t (*data)(TorchHandle, void**);  // apart from others that share it lazily
  int32_t (*storage_bytes)(TorchHandle, int64_t*);
  int32_t (*storage_offset)(TorchHandle, int64_t*);
  bool (*is_negated)(TorchHandle);
};
// What they answer of tensors that are plain.
struct TorchCodes {
  int32_t cpu, strided, dtypes[4];  // in the order of Dtype
};

struct TorchMemory {
  void* data = nullptr;
  int64_t numel = 1, dtype = -1, dimensions = 0;
  const int64_t* shape = nullptr;
};

class TorchTensors {
 public:
  // `samples` are tensors, and `impls` what torch says of where their TensorImpl is: it is at one place in every
  // tensor's object, which is found here.
  TorchTensors(const TorchFunctions& functions, const TorchCodes& codes, const std::vector<PyObject*>& samples,
               const std::vector<uint64_t>& impls)
      : ask_(functions), codes_(codes) {
    int places = 0;
    for (size_t at = sizeof(PyObject); at + 8 <= static_cast<size_t>(Py_TYPE(samples.at(0))->tp_basicsize); at += 8) {
      bool all = true;
      for (size_t i = 0; i < samples.size(); ++i) {
        uint64_t word;
        memcpy(&word, reinterpret_cast<const char*>(samples[i]) + at, sizeof(word));
        all &= word == impls.at(i);
      }
      if (all) place_ = at, ++places;
    }
    if (places != 1) throw std::invalid_argument("tensors of another build");
  }

  // Contiguous weights on the host, which are not a negated view and end within their storage; with `whole`, they are
  // all of it. `tensor` is a torch.Tensor and of no class that could have another layout.
  bool read(PyObject* tensor, bool whole, TorchMemory& found) const {
    const TorchHandle handle = reinterpret_cast<const char*>(tensor) + place_;
    int32_t device, layout, dtype;
    if (ask_.device_type(handle, &device) || device != codes_.cpu) return false;
    if (ask_.layout(handle, &layout) || layout != codes_.strided) return false;
    if (ask_.dtype(handle, &dtype) || ask_.is_negated(handle)) return false;
    for (int64_t d = 0; d < 4; ++d) {
      if (dtype == codes_.dtypes[d]) found.dtype = d;
    }
    const int64_t* strides;
    if (found.dtype < 0 || ask_.dimensions(handle, &found.dimensions) || ask_.sizes(handle, &found.shape) ||
        ask_.strides(handle, &strides))
      return false;
    for (int64_t i = found.dimensions - 1; i >= 0; --i) {
      if (found.shape[i] != 1 && strides[i] != found.numel) return false;
      found.numel *= found.shape[i];
    }
    int64_t bytes, first;
    if (ask_.storage_bytes(handle, &bytes) || ask_.storage_offset(handle, &first)) return false;
    // A storage may have been made smaller than the tensors that lie in it.
    const int64_t stop = (first + found.numel) * bytes_of(found.dtype);
    return (whole ? first == 0 && stop == bytes : stop <= bytes) && !ask_.data(handle, &found.data);
  }

 private:
  TorchFunctions ask_;
  TorchCodes codes_;
  size_t place_ = 0;
};

}  // namespace ldpk
