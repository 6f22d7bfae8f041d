// SPDX-License-Identifier: Apache-2.0
// PyValue and PyDict of pickle.h.
#include <algorithm>
#include <iterator>

#include "fp8/runtime/io/pickle/pickle.h"

namespace fp8::io {
namespace {

constexpr std::size_t kFewKeys = 16;  // up to here a scan is faster than the index

std::string text_of(const PyKey& key) {
  const auto* text = std::get_if<std::string>(&key);
  return text ? in_quotes(*text) : std::to_string(std::get<std::int64_t>(key));
}

}  // namespace

PyDict::PyDict() = default;
PyDict::~PyDict() = default;
PyDict::PyDict(const PyDict&) = default;
PyDict::PyDict(PyDict&&) noexcept = default;
PyDict& PyDict::operator=(const PyDict&) = default;
PyDict& PyDict::operator=(PyDict&&) noexcept = default;

const PyValue* PyDict::find(const PyKey& key) const {
  if (!index_.empty()) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &items_[found->second].value;
  }
  for (const auto& [known, value] : items_)
    if (known == key) return &value;
  return nullptr;
}

const PyValue& PyDict::at(const PyKey& key) const {
  if (const PyValue* found = find(key)) return *found;
  throw Error("no key " + text_of(key));
}

void PyDict::insert(PyKey key, PyValue value) {
  if (find(key)) throw Error("duplicate key " + text_of(key));
  if (index_.empty() && items_.size() >= kFewKeys)
    for (std::size_t i = 0; i < items_.size(); ++i) index_.emplace(items_[i].key, i);
  if (!index_.empty()) index_.emplace(key, items_.size());
  items_.push_back({std::move(key), std::move(value)});
}

std::size_t PyDict::size() const { return items_.size(); }

const char* PyValue::type_name() const {
  constexpr const char* kNames[] = {"None", "bool", "int", "float", "str", "list", "tuple", "dict", "ndarray"};
  static_assert(std::size(kNames) == std::variant_size_v<Variant>);
  return kNames[value.index()];
}

bool operator==(const PyValue& a, const PyValue& b) {
  if (a.value.index() != b.value.index()) return false;
  if (const auto* list = a.get_if<PyList>()) return list->items == b.get_if<PyList>()->items;
  if (const auto* tuple = a.get_if<PyTuple>()) return tuple->items == b.get_if<PyTuple>()->items;
  if (const auto* dict = a.get_if<PyDict>()) {
    const auto &ours = dict->items(), &theirs = b.get_if<PyDict>()->items();
    const auto same = [](const PyEntry& x, const PyEntry& y) { return x.key == y.key && x.value == y.value; };
    return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), same);
  }
  if (const auto* array = a.get_if<NdArray>())
    return array->shape == b.get_if<NdArray>()->shape && array->data == b.get_if<NdArray>()->data;
  if (const auto* text = a.get_if<std::string>()) return *text == *b.get_if<std::string>();
  if (const auto* number = a.get_if<double>()) return *number == *b.get_if<double>();
  if (const auto* number = a.get_if<std::int64_t>()) return *number == *b.get_if<std::int64_t>();
  if (const auto* truth = a.get_if<bool>()) return *truth == *b.get_if<bool>();
  return true;
}

}  // namespace fp8::io
