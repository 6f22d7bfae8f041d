// SPDX-License-Identifier: Apache-2.0
// PickleMachine's work for numpy's globals: REDUCE (a call) and BUILD (setting an object's state).
//
//   dtype('f4', False, True)                        BUILD (3, '<', None, None, None, -1, -1, 0)
//   _reconstruct(ndarray, (0,), b'b')               BUILD (1, shape, dtype, fortran, bytes or list of objects)
//   scalar(dtype, bytes)                            a number
//   _frombuffer(bytes, dtype, shape, 'C' or 'F')    protocol 5's form of an array
//   encode(text, 'latin1')                          protocol 2's form of bytes
//   bytes()                                         protocol 2's form of no bytes
#include <array>
#include <cstring>

#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/pickle/pickle_machine.h"

namespace fp8::io {
namespace {

struct GlobalRow {
  std::string_view module, name;
  PickleGlobal global;
};
constexpr GlobalRow kOfNumpy[] = {
    {"numpy.core.multiarray", "_reconstruct", kReconstruct},
    {"numpy._core.multiarray", "_reconstruct", kReconstruct},
    {"numpy", "ndarray", kNdArrayClass},
    {"numpy", "dtype", kDTypeClass},
    {"numpy.core.multiarray", "scalar", kScalar},
    {"numpy._core.multiarray", "scalar", kScalar},
    {"numpy.core.numeric", "_frombuffer", kFromBuffer},
    {"numpy._core.numeric", "_frombuffer", kFromBuffer},
    {"_codecs", "encode", kEncode},
    {"__builtin__", "bytes", kBytes},
};

bool is_global(const PickleNode& node, PickleGlobal global) {
  return node.kind == PickleNode::Global && node.integer == global;
}

}  // namespace

int pickle_item_size(std::string_view dtype) {
  if (dtype == "f2") return 2;
  if (dtype == "f4" || dtype == "i4") return 4;
  return dtype == "f8" || dtype == "i8" ? 8 : 0;
}

void PickleMachine::global(std::string_view module, std::string_view name) {
  if (dialect_ == PickleDialect::torch) return torch_global(module, name);
  for (const auto& row : kOfNumpy)
    if (row.module == module && row.name == name) {
      push_new(PickleNode::Global).integer = row.global;
      return;
    }
  fail("asks for " + in_quotes(std::string(module) + "." + std::string(name)) +
       ", which is not allowed (numpy arrays only)");
}

void PickleMachine::reduce() {
  const PickleNode& arguments = nodes_[pop()];
  const PickleNode& callable = nodes_[pop()];
  if (callable.kind != PickleNode::Global || arguments.kind != PickleNode::Tuple)
    fail("REDUCE of something that can't be called");
  const std::vector<PickleId>& list = arguments.children;
  if (dialect_ == PickleDialect::torch) return torch_reduce(callable, list);
  switch (static_cast<PickleGlobal>(callable.integer)) {
    case kReconstruct:
      if (list.size() != 3 || !is_global(nodes_[list[0]], kNdArrayClass))
        fail("_reconstruct of something other than ndarray");
      push_new(PickleNode::Array);
      return;
    case kDTypeClass: return make_dtype(list);
    case kScalar: return make_scalar(list);
    case kFromBuffer: return make_from_buffer(list);
    case kEncode: return encode(list);
    case kBytes:
      if (!list.empty()) fail("a call of bytes with arguments is not allowed");
      push_new(PickleNode::Bytes);
      return;
    default: break;
  }
  fail("a call of numpy.ndarray is not allowed");
}

void PickleMachine::make_dtype(const std::vector<PickleId>& arguments) {
  if (arguments.empty() || nodes_[arguments[0]].kind != PickleNode::Str) fail("dtype of something other than a name");
  const std::string_view name = nodes_[arguments[0]].text;
  if (name != "O8" && pickle_item_size(name) == 0)
    fail("dtype " + in_quotes(name) + " is not allowed, expected one of f2, f4, f8, i4, i8");
  push_new(PickleNode::DType).text = name;
}

std::string_view PickleMachine::dtype_of(PickleId id) const {
  const PickleNode& dtype = nodes_[id];
  if (dtype.kind != PickleNode::DType || dtype.integer == 0) fail("an array or scalar without its dtype");
  return dtype.text;
}

void PickleMachine::make_scalar(const std::vector<PickleId>& arguments) {
  if (arguments.size() != 2 || nodes_[arguments[1]].kind != PickleNode::Bytes) fail("a numpy scalar without its bytes");
  const std::string_view dtype = dtype_of(arguments[0]), bytes = nodes_[arguments[1]].text;
  const int size = pickle_item_size(dtype);
  if (size == 0 || bytes.size() != static_cast<std::size_t>(size)) fail("a numpy scalar of the wrong size");
  std::array<char, 8> raw{};
  std::memcpy(raw.data(), bytes.data(), bytes.size());
  const auto bits = std::bit_cast<std::uint64_t>(raw);
  if (dtype[0] == 'i') {
    push_new(PickleNode::Int).integer = size == 4 ? static_cast<std::int32_t>(bits) : static_cast<std::int64_t>(bits);
    return;
  }
  push_new(PickleNode::Float).real = size == 8   ? std::bit_cast<double>(bits)
                                     : size == 4 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits))
                                                 : half_to_float(static_cast<std::uint16_t>(bits));
}

void PickleMachine::encode(const std::vector<PickleId>& arguments) {
  if (arguments.size() != 2 || nodes_[arguments[0]].kind != PickleNode::Str || nodes_[arguments[1]].text != "latin1")
    fail("_codecs.encode other than of a string to latin1");
  const std::string_view text = nodes_[arguments[0]].text;
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    const std::uint32_t code = utf8_decode(text, at, length);
    if (code > 0xff) fail("a string that is not latin1");
    bytes += static_cast<char>(code);
    at += length;
  }
  // Each string is encoded once in an honest pickle; a memo could name one a million times.
  encoded_bytes_ += bytes.size();
  if (encoded_bytes_ > pickle_.size()) fail("encodes one string many times");
  encoded_.push_back(std::move(bytes));
  push_new(PickleNode::Bytes).text = encoded_.back();
}

void PickleMachine::make_from_buffer(const std::vector<PickleId>& arguments) {
  if (arguments.size() != 4 || nodes_[arguments[3]].kind != PickleNode::Str)
    fail("_frombuffer without its four arguments");
  const std::string_view order = nodes_[arguments[3]].text;
  if (order != "C" && order != "F") fail("_frombuffer of order " + in_quotes(order) + ", expected C or F");
  if (dtype_of(arguments[1]) == "O8") fail("_frombuffer of objects");
  fill_array(push_new(PickleNode::Array), arguments[2], arguments[1], order == "F", arguments[0]);
}

void PickleMachine::build() {
  const PickleNode& state = nodes_[pop()];
  PickleNode& target = top();
  // The attributes of an OrderedDict, which no tensor depends on (a state_dict's _metadata).
  if (dialect_ == PickleDialect::torch && target.kind == PickleNode::Dict && state.kind == PickleNode::Dict) return;
  if (state.kind != PickleNode::Tuple) fail("BUILD without a tuple");
  if (target.kind == PickleNode::DType) return build_dtype(target, state.children);
  if (target.kind == PickleNode::Array && target.dtype == 0) return build_array(target, state.children);
  fail("BUILD of something other than an array or dtype");
}

void PickleMachine::build_dtype(PickleNode& target, const std::vector<PickleId>& state) {
  if (state.size() < 2 || nodes_[state[1]].kind != PickleNode::Str) fail("a dtype without its byte order");
  const std::string_view order = nodes_[state[1]].text;
  if (order != "<" && !(order == "|" && target.text == "O8"))
    fail("byte order " + in_quotes(order) + " is not allowed, expected '<' (little-endian)");
  target.integer = 1;
}

void PickleMachine::build_array(PickleNode& target, const std::vector<PickleId>& state) {
  if (state.size() != 5 || nodes_[state[3]].kind != PickleNode::Bool)
    fail("an array whose state is not (1, shape, dtype, fortran, data)");
  if (dtype_of(state[2]) != "O8")
    return fill_array(target, state[1], state[2], nodes_[state[3]].integer != 0, state[4]);
  const PickleNode& shape = nodes_[state[1]];
  const PickleNode& data = nodes_[state[4]];
  if (shape.kind != PickleNode::Tuple || !shape.children.empty() || data.kind != PickleNode::List ||
      data.children.size() != 1)
    fail("an array of objects that is not 0-dimensional");
  target.kind = PickleNode::ObjectArray;
  target.children = data.children;
}

void PickleMachine::fill_array(PickleNode& target, PickleId shape, PickleId dtype, bool fortran, PickleId data) {
  const auto item = static_cast<std::uint64_t>(pickle_item_size(dtype_of(dtype)));
  if (nodes_[shape].kind != PickleNode::Tuple || nodes_[shape].children.size() > 64) fail("an array without its shape");
  if (nodes_[data].kind != PickleNode::Bytes) fail("an array without its bytes");
  std::uint64_t bytes = item;
  for (const PickleId id : nodes_[shape].children) {
    const PickleNode& size = nodes_[id];
    if (size.kind != PickleNode::Int || size.integer < 0) fail("an array whose shape holds something other than sizes");
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size.integer), &bytes))
      fail("an array whose shape overflows");
  }
  if (bytes != nodes_[data].text.size())
    fail(message("an array of {} bytes, its shape asks for {}", nodes_[data].text.size(), bytes));
  target.text = nodes_[data].text;
  target.children = nodes_[shape].children;
  target.dtype = dtype;
  target.fortran = fortran;
}

// PickleMachine's work for torch.save's globals. None of them is called: a tensor stays a note of where its bytes
// are.
//
//   BINPERSID ('storage', torch.FloatStorage, '0', 'cpu', 6)                        a Storage: class, key, elements
//   _rebuild_tensor_v2(storage, offset, (2, 3), (3, 1), False, OrderedDict())       a Tensor
//   _rebuild_tensor_v3(storage of bytes, .., dtype)                                 the same of dtypes without a class
//   _rebuild_parameter(tensor, True, OrderedDict())                                 that Tensor

namespace {

constexpr GlobalRow kOfTorch[] = {
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
  for (const auto& row : kOfTorch)
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
