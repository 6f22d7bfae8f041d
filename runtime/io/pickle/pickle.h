// SPDX-License-Identifier: Apache-2.0
// The part of Python's pickle that measurement and scale files use: dict, list, tuple, str, int, float, bool, None and
// numpy arrays. A pickle is a program; this reader runs none of it: every global but numpy's array reconstruction is
// refused by name, and so is every opcode beyond these types. No torch here.
//
//   numpy.save of an object array, which is what numpy.savez(path, some_dict) makes of it:
//     _reconstruct(ndarray, (0,), b'b')  BUILD (1, shape (), dtype 'O8', fortran False, [the dict])
//   an array within it:
//     _reconstruct(ndarray, (0,), b'b')  BUILD (1, shape, dtype 'f4', fortran False, bytes)
#pragma once
#include <unordered_map>
#include <variant>
#include <vector>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {

struct PyValue;
struct PyEntry;

/// A float32 array in row-major order. shape {}: one element. data.size() == product of shape.
struct NdArray {
  std::vector<std::int64_t> shape;
  std::vector<float> data;
};

struct PyList {
  std::vector<PyValue> items;
};

struct PyTuple {
  std::vector<PyValue> items;
};

using PyKey = std::variant<std::string, std::int64_t>;

/// Keys in the order of their insertion, each once.
class PyDict {
 public:
  PyDict();  // these six stand in the .cpp, where PyEntry is complete
  ~PyDict();
  PyDict(const PyDict&);
  PyDict(PyDict&&) noexcept;
  PyDict& operator=(const PyDict&);
  PyDict& operator=(PyDict&&) noexcept;

  /// Throws io::Error if the key is there already.
  void insert(PyKey key, PyValue value);
  const PyValue* find(const PyKey& key) const;                  ///< nullptr: no such key
  const PyValue& at(const PyKey& key) const;                    ///< throws io::Error naming the key
  const std::vector<PyEntry>& items() const { return items_; }  ///< for (const auto& [key, value] : dict.items())
  std::size_t size() const;

 private:
  std::vector<PyEntry> items_;
  std::unordered_map<PyKey, std::size_t> index_;  // only of large dicts
};

/// None (the default), bool, int, float, str, list, tuple, dict or array.
struct PyValue {
  using Variant =
      std::variant<std::monostate, bool, std::int64_t, double, std::string, PyList, PyTuple, PyDict, NdArray>;
  Variant value;

  PyValue() = default;
  PyValue(bool v) : value(v) {}
  PyValue(int v) : value(static_cast<std::int64_t>(v)) {}
  PyValue(std::int64_t v) : value(v) {}
  PyValue(double v) : value(v) {}
  PyValue(const char* v) : value(std::string(v)) {}
  PyValue(std::string v) : value(std::move(v)) {}
  PyValue(PyList v) : value(std::move(v)) {}
  PyValue(PyTuple v) : value(std::move(v)) {}
  PyValue(PyDict v) : value(std::move(v)) {}
  PyValue(NdArray v) : value(std::move(v)) {}

  /// "None", "bool", "int", "float", "str", "list", "tuple", "dict", "ndarray".
  const char* type_name() const;
  /// The value as T (bool, std::int64_t, double, std::string, PyList, ...), or nullptr.
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&value);
  }
};

/// One item of a dict.
struct PyEntry {
  PyKey key;
  PyValue value;
};

/// Equal types and values, dicts with the same order of keys; NaN equals nothing.
bool operator==(const PyValue& a, const PyValue& b);

/// Reads one pickle (protocol 2 to 5). A 0-dim object array at the top, numpy's wrapper, gives the object in it. numpy
/// arrays and scalars of f2, f4, f8, i4 and i8 are read: arrays become float32 (f8 is rounded, integers must be exact),
/// scalars float or int. `name` stands in messages. Throws io::Error. Depth <= 64; memory is bounded by a multiple of
/// the pickle's size.
PyValue read_pickle(std::string_view pickle, const std::string& name);

/// The pickle (protocol 3) of a 0-dim object array that holds `value`: what follows the header of an .npy file.
/// Readable by numpy 1 and 2. Throws io::Error (depth > 64, strings that are not UTF-8, shapes that don't fit their
/// data).
std::string write_pickle(const PyValue& value, const std::string& name);

}  // namespace fp8::io
