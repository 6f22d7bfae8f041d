// SPDX-License-Identifier: Apache-2.0
// The stack machine of read_pickle and of TorchFile: opcodes in, a graph of nodes out. Internal to runtime/io; no torch
// here.
//
// Nodes, not PyValues, because a pickle may name one object many times (and even within itself): the graph stays as
// small as the pickle, and pickle.cpp unfolds it under a limit.
#pragma once
#include <bit>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::io {

using PickleId = std::uint32_t;  // index of a node

struct PickleNode {
  enum Kind : std::uint8_t {
    None,
    Bool,
    Int,
    Float,
    Str,
    Bytes,
    List,
    Tuple,
    Dict,
    Global,
    DType,
    Array,
    ObjectArray,
    Storage,
    Tensor
  };
  Kind kind = None;
  bool fortran = false;      // Array: columns first
  std::int64_t integer = 0;  // Bool, Int; Global: its PickleGlobal; DType: 1 once its byte order is known to be little
  double real = 0;           // Float
  std::string_view text;     // Str, Bytes; DType "f4"; Array: its bytes; Global: of a torch class or dtype "BF16"
  // List, Tuple; Dict: key, value, ..; Array: its sizes (Int); ObjectArray: the one object;
  // Storage: class, key, number of elements; Tensor: storage, offset, sizes, strides and perhaps dtype
  std::vector<PickleId> children;
  PickleId dtype = 0;  // Array
};

enum PickleGlobal : std::int64_t {
  kReconstruct,
  kNdArrayClass,
  kDTypeClass,
  kScalar,
  kFromBuffer,
  kEncode,
  kBytes,  // numpy's
  kOrderedDict,
  kRebuildTensor,
  kRebuildParameter,
  kSize,
  kStorageClass,
  kTorchDType  // torch's
};

/// Whose globals a pickle may ask for.
enum class PickleDialect : std::uint8_t { numpy, torch };

/// Bytes of an item of "f2", "f4", "f8", "i4" or "i8", 0 for any other dtype.
int pickle_item_size(std::string_view dtype);

/// IEEE binary16 to float, exact. s eeeee mmmmmmmmmm, bias 15; e = 31 is Inf or NaN, e = 0 is m * 2^-24.
inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t biased = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | biased << 23 | mantissa << 13);
}

class PickleMachine {
 public:
  PickleMachine(std::string_view pickle, const std::string& name, PickleDialect dialect = PickleDialect::numpy)
      : pickle_(pickle), name_(name), dialect_(dialect) {}

  PickleId run();  ///< the node of the result
  const PickleNode& node(PickleId id) const { return nodes_[id]; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void step(std::uint8_t opcode);
  bool step_scalar(std::uint8_t opcode);
  bool step_container(std::uint8_t opcode);
  bool step_memo(std::uint8_t opcode);

  std::string_view take(std::uint64_t size);
  std::uint64_t take_int(int bytes);
  std::string_view take_line();
  std::int64_t take_long();
  double take_double();

  PickleNode& push_new(PickleNode::Kind kind);
  void push(PickleId id);
  PickleId pop();
  std::vector<PickleId> pop_several(std::size_t count);
  std::vector<PickleId> pop_to_mark();
  PickleNode& top();
  bool put(std::uint64_t index);  // true, as those below
  bool get(std::uint64_t index);
  void push_text(PickleNode::Kind kind, std::uint64_t size);
  bool append_to_list(const std::vector<PickleId>& items);
  bool append_to_dict(const std::vector<PickleId>& pairs);

  void global(std::string_view module, std::string_view name);
  void torch_global(std::string_view module, std::string_view name);
  void reduce();
  void torch_reduce(const PickleNode& callable, const std::vector<PickleId>& arguments);
  void make_ordered_dict(const std::vector<PickleId>& arguments);
  void make_tensor(const std::vector<PickleId>& arguments);
  void persistent_id();
  void make_dtype(const std::vector<PickleId>& arguments);
  void make_scalar(const std::vector<PickleId>& arguments);
  void make_from_buffer(const std::vector<PickleId>& arguments);
  void encode(const std::vector<PickleId>& arguments);
  void build();
  void build_dtype(PickleNode& target, const std::vector<PickleId>& state);
  void build_array(PickleNode& target, const std::vector<PickleId>& state);
  void fill_array(PickleNode& target, PickleId shape, PickleId dtype, bool fortran, PickleId data);
  std::string_view dtype_of(PickleId id) const;

  std::string_view pickle_;
  const std::string& name_;
  PickleDialect dialect_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::deque<PickleNode> nodes_;  // references stay valid while it grows
  std::vector<PickleId> stack_, memo_;
  std::vector<std::size_t> marks_;
  std::deque<std::string> encoded_;
  std::size_t encoded_bytes_ = 0;
};

// Names of pickle's opcodes (Python's pickletools), for the messages that refuse one. No torch here.

/// "opcode NEWOBJ (0x81)"; "unknown opcode (0x..)" for a byte that is none.
std::string opcode_name(std::uint8_t opcode);

}  // namespace fp8::io
