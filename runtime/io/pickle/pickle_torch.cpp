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
  std::string_view dtype = {};
};
constexpr GlobalRow kAllowed[] = {
    {"collections", "OrderedDict", kOrderedDict},
    {"torch._utils", "_rebuild_tensor", kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v3", kRebuildTensor},
    {"torch._utils", "_rebuild_parameter", kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", kRebuildParameter},
    {"torch", "Size", kSize},
    {"torch", "FloatStorage", kStorageClass, "F32"},
    {"torch", "BFloat16Storage", kStorageClass, "BF16"},
    {"torch", "HalfStorage", kStorageClass, "F16"},
    {"torch", "DoubleStorage", kStorageClass, "F64"},
    {"torch", "LongStorage", kStorageClass, "I64"},
    {"torch", "IntStorage", kStorageClass, "I32"},
    {"torch", "ShortStorage", kStorageClass, "I16"},
    {"torch", "CharStorage", kStorageClass, "I8"},
    {"torch", "ByteStorage", kStorageClass, "U8"},
    {"torch", "BoolStorage", kStorageClass, "BOOL"},
    {"torch", "ComplexFloatStorage", kStorageClass, "C64"},
    {"torch.storage", "UntypedStorage", kStorageClass, "U8"},
    {"torch", "float32", kTorchDType, "F32"},
    {"torch", "bfloat16", kTorchDType, "BF16"},
    {"torch", "float16", kTorchDType, "F16"},
    {"torch", "float64", kTorchDType, "F64"},
    {"torch", "int64", kTorchDType, "I64"},
    {"torch", "int32", kTorchDType, "I32"},
    {"torch", "int16", kTorchDType, "I16"},
    {"torch", "int8", kTorchDType, "I8"},
    {"torch", "uint8", kTorchDType, "U8"},
    {"torch", "uint16", kTorchDType, "U16"},
    {"torch", "uint32", kTorchDType, "U32"},
    {"torch", "uint64", kTorchDType, "U64"},
    {"torch", "bool", kTorchDType, "BOOL"},
    {"torch", "complex64", kTorchDType, "C64"},
    {"torch", "float8_e4m3fn", kTorchDType, "F8_E4M3"},
    {"torch", "float8_e5m2", kTorchDType, "F8_E5M2"},
    {"torch", "float8_e8m0fnu", kTorchDType, "F8_E8M0"},
    {"torch", "float8_e4m3fnuz", kTorchDType, "F8_E4M3FNUZ"},
    {"torch", "float8_e5m2fnuz", kTorchDType, "F8_E5M2FNUZ"},
};

}  // namespace

void PickleMachine::torch_global(std::string_view module, std::string_view name) {
  for (const auto& row : kAllowed)
    if (row.module == module && row.name == name) {
      PickleNode& node = push_new(PickleNode::Global);
      node.integer = row.global;
      node.text = row.dtype;
      return;
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
    case kOrderedDict:
      return make_ordered_dict(arguments);
    case kRebuildTensor:
      return make_tensor(arguments);
    case kRebuildParameter:
      if (arguments.size() < 3 || nodes_[arguments[0]].kind != PickleNode::Tensor)
        fail("_rebuild_parameter of something other than a tensor");
      return push(arguments[0]);
    case kSize:
      if (arguments.size() != 1 || nodes_[arguments[0]].kind != PickleNode::Tuple)
        fail("torch.Size of something other than a tuple");
      return push(arguments[0]);
    default:
      fail("a call of a class or dtype of torch is not allowed");
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
