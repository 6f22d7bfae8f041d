// SPDX-License-Identifier: Apache-2.0
// PickleMachine's work for torch.save's globals. None of them is called: a tensor stays a note of where its bytes
// are.
//
//   BINPERSID ('storage', torch.FloatStorage, '0', 'cpu', 6)                        a Storage: class, key, elements
//   _rebuild_tensor_v2(storage, offset, (2, 3), (3, 1), False, OrderedDict())       a Tensor
//   _rebuild_tensor_v3(storage of bytes, .., dtype)                                 the same of dtypes without a class
//   _rebuild_parameter(tensor, True, OrderedDict())                                 that Tensor
#include <algorithm>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/pickle/pickle_machine.h"

namespace fp8::io {
namespace {

struct GlobalRow {
  std::string_view module, name;
  PickleGlobal global;
};
constexpr GlobalRow kFunctions[] = {
    {"collections", "OrderedDict", kOrderedDict},
    {"torch._utils", "_rebuild_tensor", kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v3", kRebuildTensor},
    {"torch._utils", "_rebuild_parameter", kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", kRebuildParameter},
    {"torch", "Size", kSize},
};

/// A dtype of ours, and torch's names for it: of its storage ("": none) and of itself.
struct TypeRow {
  std::string_view dtype, storage, name;
};
constexpr TypeRow kTypes[] = {
    {"F32", "FloatStorage", "float32"},
    {"BF16", "BFloat16Storage", "bfloat16"},
    {"F16", "HalfStorage", "float16"},
    {"F64", "DoubleStorage", "float64"},
    {"I64", "LongStorage", "int64"},
    {"I32", "IntStorage", "int32"},
    {"I16", "ShortStorage", "int16"},
    {"I8", "CharStorage", "int8"},
    {"U8", "ByteStorage", "uint8"},
    {"U16", "", "uint16"},
    {"U32", "", "uint32"},
    {"U64", "", "uint64"},
    {"BOOL", "BoolStorage", "bool"},
    {"C64", "ComplexFloatStorage", "complex64"},
    {"F8_E4M3", "", "float8_e4m3fn"},
    {"F8_E5M2", "", "float8_e5m2"},
    {"F8_E8M0", "", "float8_e8m0fnu"},
    {"F8_E4M3FNUZ", "", "float8_e4m3fnuz"},
    {"F8_E5M2FNUZ", "", "float8_e5m2fnuz"},
};

}  // namespace

void PickleMachine::torch_global(std::string_view module, std::string_view name) {
  const auto push = [&](PickleGlobal global, std::string_view dtype) {
    PickleNode& node = push_new(PickleNode::Global);
    node.integer = global;
    node.text = dtype;
  };
  for (const auto& row : kFunctions)
    if (row.module == module && row.name == name) return push(row.global, "");
  if (module == "torch.storage" && name == "UntypedStorage") return push(kStorageClass, "U8");
  for (const auto& row : kTypes) {
    if (module != "torch" || name.empty()) break;
    if (row.storage == name) return push(kStorageClass, row.dtype);
    if (row.name == name) return push(kTorchDType, row.dtype);
  }
  fail("asks for " + in_quotes(std::string(module) + "." + std::string(name)) +
       ", which is not allowed: a pickle is a program, and this reader runs none of it (tensors only; save the "
       "state_dict alone)");
}

void PickleMachine::persistent_id() {
  const PickleNode& id = nodes_[pop()];
  const std::vector<PickleId>& parts = id.children;
  if (id.kind != PickleNode::Tuple || parts.size() < 5 || nodes_[parts[0]].text != "storage" ||
      nodes_[parts[1]].kind != PickleNode::Global || nodes_[parts[1]].integer != kStorageClass ||
      nodes_[parts[2]].kind != PickleNode::Str || nodes_[parts[4]].kind != PickleNode::Int)
    fail("a persistent id that is not ('storage', class, key, location, number of elements)");
  std::vector<PickleId> kept = {parts[1], parts[2], parts[4]};
  push_new(PickleNode::Storage).children = std::move(kept);
}

void PickleMachine::torch_reduce(const PickleNode& callable, const std::vector<PickleId>& arguments) {
  switch (static_cast<PickleGlobal>(callable.integer)) {
    case kOrderedDict: return make_ordered_dict(arguments);
    case kRebuildTensor: return make_tensor(arguments);
    case kRebuildParameter:
      if (arguments.size() < 3 || nodes_[arguments[0]].kind != PickleNode::Tensor)
        fail("_rebuild_parameter of something other than a tensor");
      return push(arguments[0]);
    case kSize:
      if (arguments.size() != 1 || nodes_[arguments[0]].kind != PickleNode::Tuple)
        fail("torch.Size of something other than a tuple");
      return push(arguments[0]);
    default: fail("a call of a class or dtype of torch is not allowed");
  }
}

// OrderedDict() in Python 3, OrderedDict([[key, value], ..]) in Python 2.
void PickleMachine::make_ordered_dict(const std::vector<PickleId>& arguments) {
  std::vector<PickleId> children;
  if (arguments.size() > 1 || (arguments.size() == 1 && nodes_[arguments[0]].kind != PickleNode::List))
    fail("OrderedDict of something other than a list of pairs");
  if (arguments.size() == 1)
    for (const PickleId id : nodes_[arguments[0]].children) {
      const PickleNode& pair = nodes_[id];
      if ((pair.kind != PickleNode::List && pair.kind != PickleNode::Tuple) || pair.children.size() != 2)
        fail("OrderedDict of something other than a list of pairs");
      children.insert(children.end(), pair.children.begin(), pair.children.end());
    }
  push_new(PickleNode::Dict).children = std::move(children);
}

void PickleMachine::make_tensor(const std::vector<PickleId>& arguments) {
  const auto kind = [&](std::size_t i) { return nodes_[arguments[i]].kind; };
  if (arguments.size() < 4 || kind(0) != PickleNode::Storage || kind(1) != PickleNode::Int ||
      kind(2) != PickleNode::Tuple || kind(3) != PickleNode::Tuple)
    fail("a tensor that is not rebuilt from (storage, offset, sizes, strides)");
  std::vector<PickleId> kept(arguments.begin(), arguments.begin() + 4);
  if (arguments.size() > 6 && kind(6) == PickleNode::Global && nodes_[arguments[6]].integer == kTorchDType)
    kept.push_back(arguments[6]);
  push_new(PickleNode::Tensor).children = std::move(kept);
}

}  // namespace fp8::io
