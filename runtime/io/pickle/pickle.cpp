// SPDX-License-Identifier: Apache-2.0
// read_pickle of pickle.h: unfolds PickleMachine's graph into a PyValue, in which every object has one owner.
//
// A graph of 30 lists, each naming the next twice, unfolds into 2^30 values: a budget proportional to the pickle's size
// ends that, a depth limit ends a list that contains itself.
#include "fp8/runtime/io/pickle/pickle.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "fp8/runtime/io/base/byte_reader.h"
#include "fp8/runtime/io/pickle/pickle_machine.h"

namespace fp8::io {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are read as they lie in memory");

constexpr int kMaxDepth = 64;
constexpr std::size_t kFreeBytes = std::size_t{64} << 20;  // any pickle may unfold to this,
constexpr std::size_t kGrowth = 64;                        // a large one to this many times its size,
constexpr std::size_t kMostBytes = std::size_t{4} << 30;   // none to more than this
constexpr std::size_t kValueBytes = sizeof(PyValue);

class PickleReader {
 public:
  PickleReader(std::string_view pickle, const std::string& name)
      : machine_(pickle, name), budget_(std::min(kFreeBytes + kGrowth * pickle.size(), kMostBytes)) {}

  PyValue read() {
    const PickleNode& root = machine_.node(machine_.run());
    return value(root.kind == PickleNode::ObjectArray ? machine_.node(root.children[0]) : root, 0);
  }

 private:
  void charge(std::size_t bytes) {
    if (bytes > budget_) machine_.fail("names the same objects so often that they would fill the memory");
    budget_ -= bytes;
  }

  // The value itself is charged by what holds it.
  PyValue value(const PickleNode& node, int depth) {
    const bool holds_others =
        node.kind == PickleNode::List || node.kind == PickleNode::Tuple || node.kind == PickleNode::Dict;
    if (holds_others && depth == kMaxDepth)
      machine_.fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    switch (node.kind) {
      case PickleNode::None: return {};
      case PickleNode::Bool: return node.integer != 0;
      case PickleNode::Int: return node.integer;
      case PickleNode::Float: return node.real;
      case PickleNode::Str: return text(node);
      case PickleNode::List: return PyList{sequence(node, depth)};
      case PickleNode::Tuple: return PyTuple{sequence(node, depth)};
      case PickleNode::Dict: return dict(node, depth);
      case PickleNode::Array: return array(node);
      case PickleNode::Bytes: machine_.fail("holds bytes, expected dict, list, tuple, str, number, None or array");
      case PickleNode::Global:
        machine_.fail("holds a function or class, expected dict, list, tuple, str, number, None or array");
      case PickleNode::DType: machine_.fail("holds a dtype, expected dict, list, tuple, str, number, None or array");
      case PickleNode::ObjectArray: machine_.fail("holds an array of objects within another object");
      case PickleNode::Storage:
      case PickleNode::Tensor: break;  // in a pickle of torch only
    }
    machine_.fail("holds an unknown object");
  }

  std::string text(const PickleNode& node) {
    charge(node.text.size());
    return std::string(node.text);
  }

  std::vector<PyValue> sequence(const PickleNode& node, int depth) {
    charge(node.children.size() * kValueBytes);  // before it is reserved
    std::vector<PyValue> items;
    items.reserve(node.children.size());
    for (const PickleId id : node.children) items.push_back(value(machine_.node(id), depth + 1));
    return items;
  }

  PyDict dict(const PickleNode& node, int depth) {
    PyDict result;
    for (std::size_t i = 0; i < node.children.size(); i += 2) {
      const PickleNode& key = machine_.node(node.children[i]);
      if (key.kind != PickleNode::Str && key.kind != PickleNode::Int)
        machine_.fail("a dict key that is neither str nor int");
      charge(2 * kValueBytes);
      PyKey name = key.kind == PickleNode::Int ? PyKey(key.integer) : PyKey(text(key));
      PyValue member = value(machine_.node(node.children[i + 1]), depth + 1);
      try {
        result.insert(std::move(name), std::move(member));
      } catch (const Error& error) {
        machine_.fail(error.what());
      }
    }
    return result;
  }

  NdArray array(const PickleNode& node) {
    if (node.dtype == 0) machine_.fail("an array without its data");
    const std::string_view dtype = machine_.node(node.dtype).text;
    const std::size_t item = static_cast<std::size_t>(pickle_item_size(dtype)), count = node.text.size() / item;
    charge(count * sizeof(float) * (node.fortran ? 2 : 1));
    NdArray result;
    for (const PickleId id : node.children) result.shape.push_back(machine_.node(id).integer);
    result.data.resize(count);
    for (std::size_t i = 0; i < count; ++i) result.data[i] = number(dtype, ByteReader(node.text), i * item);
    if (node.fortran && result.shape.size() > 1) result.data = to_row_major(result);
    return result;
  }

  float number(std::string_view dtype, const ByteReader& bytes, std::size_t at) const {
    if (dtype == "f4") return bytes.little<float>(at);
    if (dtype == "f8") return static_cast<float>(bytes.little<double>(at));
    if (dtype == "f2") return half_to_float(bytes.little<std::uint16_t>(at));
    const std::int64_t integer = dtype == "i4" ? bytes.little<std::int32_t>(at) : bytes.little<std::int64_t>(at);
    const auto real = static_cast<float>(integer);
    // 2^63 is the one float in reach that an int64 can't be compared with.
    if (real >= 0x1p63f || static_cast<std::int64_t>(real) != integer)
      machine_.fail("an array holds the integer " + std::to_string(integer) + ", which float32 can't");
    return real;
  }

  // Column-major data: the first index runs fastest.
  static std::vector<float> to_row_major(const NdArray& array) {
    std::vector<float> out(array.data.size());
    std::vector<std::size_t> index(array.shape.size(), 0);
    std::vector<std::size_t> stride(array.shape.size(), 1);
    for (std::size_t d = 1; d < stride.size(); ++d)
      stride[d] = stride[d - 1] * static_cast<std::size_t>(array.shape[d - 1]);
    for (float& target : out) {
      std::size_t from = 0;
      for (std::size_t d = 0; d < index.size(); ++d) from += index[d] * stride[d];
      target = array.data[from];
      for (std::size_t d = index.size(); d-- > 0;) {
        if (++index[d] < static_cast<std::size_t>(array.shape[d])) break;
        index[d] = 0;
      }
    }
    return out;
  }

  PickleMachine machine_;
  std::size_t budget_;
};

}  // namespace

PyValue read_pickle(std::string_view pickle, const std::string& name) { return PickleReader(pickle, name).read(); }

// PyValue and PyDict of pickle.h.

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
  io::fail<Error>("no key {}", text_of(key));
}

void PyDict::insert(PyKey key, PyValue value) {
  if (find(key)) io::fail<Error>("duplicate key {}", text_of(key));
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

// NaN equals nothing, in arrays too.
static bool operator==(const NdArray& a, const NdArray& b) { return a.shape == b.shape && a.data == b.data; }
static bool operator==(const PyList& a, const PyList& b) { return a.items == b.items; }
static bool operator==(const PyTuple& a, const PyTuple& b) { return a.items == b.items; }
static bool operator==(const PyEntry& a, const PyEntry& b) { return a.key == b.key && a.value == b.value; }
static bool operator==(const PyDict& a, const PyDict& b) { return a.items() == b.items(); }
bool operator==(const PyValue& a, const PyValue& b) { return a.value == b.value; }

}  // namespace fp8::io
