// SPDX-License-Identifier: Apache-2.0
// Tensors and arrays whose memory a kernel may take as it is, read in one crossing from Python. What is not plain is
// left to ldpkernels/inputs, which copies it, or refuses it by name: here every doubt is a "no", and nothing is raised.
//
// torch is not linked against. Its tensors are read by C functions of its own (torch_tensors.h), modules by the
// dictionaries that every nn.Module keeps its parameters, buffers and children in.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common.h"
#include "dtype.h"
#include "tables.h"
#include "torch_tensors.h"

namespace ldpk {

// The table of spans that grows as objects are read. Refuses what overlaps: perturbed twice, it would be wrong.
class PlainTable {
 public:
  explicit PlainTable(bool shapes) : with_shapes_(shapes) {}

  template <class Int>
  bool add(const void* data, int64_t numel, int64_t dtype, int64_t dimensions, const Int* shape) {
    if (data == nullptr || numel == 0) return false;
    const auto address = reinterpret_cast<uint64_t>(data);
    if (address < end_) ascending_ = false;
    end_ = address + numel * bytes_of(dtype);
    spans_.push_back({address, 0, numel, first_, dtype});
    first_ += (numel + 7) / 8 * 8;
    numel_ += numel;
    if (with_shapes_) {
      shapes_.push_back(dimensions);
      shapes_.insert(shapes_.end(), shape, shape + dimensions);
    }
    return true;
  }

  bool apart() const {
    if (ascending_) return true;
    std::vector<std::pair<uint64_t, uint64_t>> extents;
    extents.reserve(spans_.size());
    for (const Span& s : spans_) extents.emplace_back(s.data, s.data + s.numel * bytes_of(s.dtype));
    std::sort(extents.begin(), extents.end());
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].first < extents[i - 1].second) return false;
    }
    return true;
  }

  // (spans, elements in all, the dtype of all or -1, shapes); None where it is empty or tensors overlap.
  py::object finish() const {
    if (spans_.empty() || !apart()) return py::none();
    py::array table(dtype_of<Span>(), spans_.size());
    memcpy(table.mutable_data(), spans_.data(), spans_.size() * sizeof(Span));
    int64_t dtype = spans_[0].dtype;
    for (const Span& s : spans_) dtype = s.dtype == dtype ? dtype : -1;
    const py::bytes shapes(reinterpret_cast<const char*>(shapes_.data()), shapes_.size() * sizeof(int64_t));
    return py::make_tuple(std::move(table), numel_, dtype, shapes);
  }

 private:
  bool with_shapes_;
  std::vector<Span> spans_;
  std::vector<int64_t> shapes_;
  uint64_t end_ = 0;
  int64_t first_ = 0, numel_ = 0;
  bool ascending_ = true;
};

// The items of a list or tuple that nobody else can change: reading a tensor may run any finalizer.
inline py::tuple held(const py::object& values) {
  if (!PyList_CheckExact(values.ptr()) && !PyTuple_CheckExact(values.ptr())) return py::tuple();
  return py::tuple(values);
}
inline py::list held_values(PyObject* dictionary) { return py::reinterpret_steal<py::list>(PyDict_Values(dictionary)); }

inline PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

inline int64_t dtype_of_numpy(int number) {
  if (number == py::detail::npy_api::NPY_FLOAT_) return static_cast<int64_t>(Dtype::f32);
  if (number == py::detail::npy_api::NPY_DOUBLE_) return static_cast<int64_t>(Dtype::f64);
  return number == 23 ? static_cast<int64_t>(Dtype::f16) : -1;  // NPY_HALF, which pybind11 has no name for
}

inline bool add_array(PlainTable& table, PyObject* value) {
  if (!py::isinstance<py::array>(value)) return false;
  const auto array = py::reinterpret_borrow<py::array>(value);
  if (Py_TYPE(value) != reinterpret_cast<PyTypeObject*>(py::detail::npy_api::get().PyArray_Type_)) return false;
  constexpr int wanted = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_ |
                         py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  if ((array.flags() & wanted) != wanted) return false;
  const auto* descriptor = py::detail::array_descriptor_proxy(py::detail::array_proxy(value)->descr);
  if (descriptor->byteorder != '=') return false;
  const int64_t dtype = dtype_of_numpy(descriptor->type_num);
  return dtype >= 0 && table.add(array.data(), array.size(), dtype, array.ndim(), array.shape());
}

// What PlainTable::finish gives, of arrays in a list or tuple; None where one of them is not plain.
inline py::object plain_arrays(const py::object& values, bool shapes) {
  PlainTable table(shapes);
  for (const py::handle value : held(values)) {
    if (!add_array(table, value.ptr())) return py::none();
  }
  return table.finish();
}

// Attributes of a module that are numbers, names, or lists of them: nothing in them could be a weight.
inline bool holds_nothing(PyObject* value, int depth = 0) {
  PyTypeObject* type = Py_TYPE(value);
  if (value == Py_None || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
      type == &PyUnicode_Type)
    return true;
  if (type == &PyDict_Type || type == &PyODict_Type) return PyDict_Size(value) == 0;
  if (type == &PySet_Type || type == &PyFrozenSet_Type) return PySet_Size(value) == 0;
  if (type == &PyFunction_Type || type == &PyCFunction_Type) return true;  // as in inputs/remains.py
  if ((type == &PyTuple_Type || type == &PyList_Type) && depth < 3) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      if (!holds_nothing(PySequence_Fast_GET_ITEM(value, i), depth + 1)) return false;
    }
    return true;
  }
  return false;
}

// Reads the tensors of one torch. It is made with what it compares with, and calls, of that torch.
class PlainTensors {
 public:
  // `strange` says of which classes a module is not plain. The names in `usual` are those of every module's own
  // attributes.
  PlainTensors(TorchTensors memory, py::tuple types, py::object extra_state, py::object strange, py::set usual)
      : memory_(memory),
        types_(std::move(types)),
        extra_state_(std::move(extra_state)),
        strange_(std::move(strange)),
        usual_(std::move(usual)) {}

  py::object tensors(const py::object& values, bool shapes) const {
    PlainTable table(shapes);
    for (const py::handle value : held(values)) {
      if (!add(table, value.ptr(), false)) return nothing();
    }
    return table.finish();
  }

  // Appends the module's parameters to `found`, and their names to `names` if it is a list. With `keep`, buffers and
  // what torch.save would store beside stay.
  py::object module(const py::object& module, bool keep, bool shapes, py::list found, py::object names) const {
    PlainTable table(shapes);
    Walk walk{keep, table, found, names.is_none() ? nullptr : &names, {}};
    if (!visit(walk, module.ptr(), std::string(), 0)) return nothing();
    return table.finish();
  }

 private:
  static py::object nothing() {
    PyErr_Clear();
    return py::none();
  }

  bool add(PlainTable& table, PyObject* value, bool whole) const {
    bool known = false;
    for (const py::handle type : types_) known |= reinterpret_cast<PyObject*>(Py_TYPE(value)) == type.ptr();
    if (!known || !marked_by_nobody(value)) return false;
    TorchMemory found;
    return memory_.read(value, whole, found) &&
           table.add(found.data, found.numel, found.dtype, found.dimensions, found.shape);
  }

  // A tensor's own attributes are numbers and names, and none says that it is a shard.
  static bool marked_by_nobody(PyObject* value) {
    const auto own = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(value, nullptr));
    if (!own) return PyErr_Clear(), false;
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(own.ptr(), &at, &key, &item);) {
      if (!holds_nothing(item) || !PyUnicode_Check(key)) return false;
      if (PyUnicode_CompareWithASCIIString(key, "_is_flat_param") == 0 ||
          PyUnicode_CompareWithASCIIString(key, "_fsdp_flattened") == 0)
        return false;
    }
    return true;
  }

  // A class is asked about once; a module that changes its nature changes its class.
  bool is_familiar(PyTypeObject* type) const {
    auto* kind = reinterpret_cast<PyObject*>(type);
    if (PySet_Contains(familiar_.ptr(), kind) == 1) return true;
    const auto answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(strange_.ptr(), kind));
    if (answer.ptr() != Py_False) return false;
    if (PySet_Size(familiar_.ptr()) >= 1024) PySet_Clear(familiar_.ptr());
    return PySet_Add(familiar_.ptr(), kind) == 0;
  }

  struct Walk {
    bool keep;
    PlainTable& table;
    py::list& found;
    py::object* names;  // a list, or nothing: then names are not made
    std::unordered_set<PyObject*> seen;
  };

  // The items of a dictionary that nobody else can change, as names and values.
  static std::pair<py::list, py::list> held_items(PyObject* dictionary, bool named) {
    return {named ? py::reinterpret_steal<py::list>(PyDict_Keys(dictionary)) : py::list(), held_values(dictionary)};
  }
  // Wrappers leave their names out (inputs/modules.py), which is left to Python.
  static bool plain_name(PyObject* name, bool of_module, std::string& out) {
    if (!PyUnicode_CheckExact(name)) return false;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) return false;
    out.append(text, size);
    return !of_module || (PyUnicode_CompareWithASCIIString(name, "module") != 0 &&
                          PyUnicode_CompareWithASCIIString(name, "_module") != 0 &&
                          PyUnicode_CompareWithASCIIString(name, "_orig_mod") != 0);
  }

  bool visit(Walk& walk, PyObject* module, const std::string& prefix, int depth) const {
    if (!walk.seen.insert(module).second) return true;
    if (depth > 100) return false;
    if (!is_familiar(Py_TYPE(module))) return false;
    if (!walk.keep) {  // state_dict() would store what it returns
      static PyObject* name = interned("get_extra_state");
      auto* type = reinterpret_cast<PyObject*>(Py_TYPE(module));
      if (py::reinterpret_steal<py::object>(PyObject_GetAttr(type, name)).ptr() != extra_state_.ptr()) return false;
    }
    const auto own = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
    if (!own) return false;
    static PyObject *parameters_name = interned("_parameters"), *buffers_name = interned("_buffers"),
                    *children_name = interned("_modules");
    PyObject* parameters = PyDict_GetItemWithError(own.ptr(), parameters_name);
    PyObject* buffers = PyDict_GetItemWithError(own.ptr(), buffers_name);
    PyObject* children = PyDict_GetItemWithError(own.ptr(), children_name);
    for (PyObject* one : {parameters, buffers, children}) {
      if (one == nullptr || !PyDict_CheckExact(one)) return false;
    }
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(own.ptr(), &at, &key, &item);) {
      if (!holds_nothing(item) && item != parameters && item != buffers && item != children &&
          PySet_Contains(usual_.ptr(), key) != 1)
        return false;
    }
    for (Py_ssize_t at = 0; !walk.keep && PyDict_Next(buffers, &at, &key, &item);) {
      if (item != Py_None) return false;
    }
    const bool named = walk.names != nullptr;
    const auto [inner_names, inner] = held_items(children, named);
    const auto [names, values] = held_items(parameters, named);
    for (size_t i = 0; i < values.size(); ++i) {
      PyObject* parameter = PyList_GET_ITEM(values.ptr(), i);
      if (parameter == Py_None) continue;
      if (!add(walk.table, parameter, true)) return false;
      walk.found.append(py::handle(parameter));
      if (!named) continue;
      std::string name = prefix;
      if (!plain_name(PyList_GET_ITEM(names.ptr(), i), false, name)) return false;
      if (PyList_Append(walk.names->ptr(), py::str(name).ptr()) != 0) return false;
    }
    for (size_t i = 0; i < inner.size(); ++i) {
      PyObject* child = PyList_GET_ITEM(inner.ptr(), i);
      if (child == Py_None) continue;
      std::string name = prefix;
      if (named && !plain_name(PyList_GET_ITEM(inner_names.ptr(), i), true, name)) return false;
      if (!visit(walk, child, named ? name + "." : name, depth + 1)) return false;
    }
    return true;
  }

  TorchTensors memory_;
  py::tuple types_;
  py::object extra_state_, strange_;
  py::set usual_, familiar_;
};

}  // namespace ldpk
