// SPDX-License-Identifier: Apache-2.0
// Opcodes, stack and memo; what numpy's and torch's globals do is in pickle_globals.cpp.
#include "fp8/runtime/io/pickle/pickle_machine.h"

#include <limits>

#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

// A measurement of 45 000 expert weights has some 5 million opcodes and 2 million objects.
constexpr std::size_t kMaxOpcodes = std::size_t{1} << 25;
constexpr std::size_t kMaxNodes = std::size_t{1} << 23;
constexpr PickleId kNotStored = std::numeric_limits<PickleId>::max();

}  // namespace

void PickleMachine::fail(const std::string& what) const {
  io::fail<Error>("{}: pickle byte {}: {}", printable(name_, 4096), opcode_at_, what);
}

PickleId PickleMachine::run() {
  for (std::size_t count = 0;; ++count) {
    opcode_at_ = at_;
    const auto opcode = static_cast<std::uint8_t>(take(1)[0]);
    if (count == 0 && opcode != 0x80) fail("does not start with PROTO (0x80), expected a pickle of protocol 2 to 5");
    if (count == kMaxOpcodes) fail(message("more than {} opcodes", kMaxOpcodes));
    if (opcode == '.') break;
    step(opcode);
  }
  const PickleId result = pop();
  if (!stack_.empty() || !marks_.empty()) fail("STOP with objects left on the stack");
  if (at_ != pickle_.size()) fail(message("{} bytes after STOP", pickle_.size() - at_));
  return result;
}

void PickleMachine::step(std::uint8_t opcode) {
  if (step_scalar(opcode) || step_container(opcode) || step_memo(opcode)) return;
  switch (opcode) {
    case 0x80: {  // PROTO
      const std::uint64_t version = take_int(1);
      if (version < 2 || version > 5) fail(message("protocol {}, expected 2 to 5", version));
      return;
    }
    case 0x95:  // FRAME: a hint for readers of streams
      take_int(8);
      return;
    case 'c': {  // GLOBAL
      const std::string_view module = take_line();
      return global(module, take_line());
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleNode& name = nodes_[pop()];
      const PickleNode& module = nodes_[pop()];
      if (name.kind != PickleNode::Str || module.kind != PickleNode::Str)
        fail("STACK_GLOBAL of something other than two strings");
      return global(module.text, name.text);
    }
    case 'R': return reduce();
    case 'b': return build();
    case 'Q':
      if (dialect_ == PickleDialect::torch) return persistent_id();
      [[fallthrough]];
    default:
      fail(message("{} is not allowed, expected dict, list, tuple, str, int, float, bool, None and {} only",
                   opcode_name(opcode), dialect_ == PickleDialect::torch ? "tensors" : "numpy arrays"));
  }
}

// clang-format off: tables of opcodes
bool PickleMachine::step_scalar(std::uint8_t opcode) {
  const auto number = [&](PickleNode::Kind kind, std::int64_t value) {
    push_new(kind).integer = value;
    return true;
  };
  const auto text = [&](PickleNode::Kind kind, int length_bytes) {
    push_text(kind, take_int(length_bytes));
    return true;
  };
  switch (opcode) {
    case 'N':  return number(PickleNode::None, 0);
    case 0x88: return number(PickleNode::Bool, 1);  // NEWTRUE
    case 0x89: return number(PickleNode::Bool, 0);  // NEWFALSE
    case 'K':  return number(PickleNode::Int, static_cast<std::int64_t>(take_int(1)));
    case 'M':  return number(PickleNode::Int, static_cast<std::int64_t>(take_int(2)));
    case 'J':  return number(PickleNode::Int, static_cast<std::int32_t>(take_int(4)));
    case 0x8a: return number(PickleNode::Int, take_long());
    case 'G':  push_new(PickleNode::Float).real = take_double(); return true;
    case 0x8c: return text(PickleNode::Str, 1);    // SHORT_BINUNICODE
    case 'X':  return text(PickleNode::Str, 4);    // BINUNICODE
    case 0x8d: return text(PickleNode::Str, 8);    // BINUNICODE8
    case 'C':  return text(PickleNode::Bytes, 1);  // SHORT_BINBYTES
    case 'B':  return text(PickleNode::Bytes, 4);  // BINBYTES
    case 0x8e: return text(PickleNode::Bytes, 8);  // BINBYTES8
    case 0x96: return text(PickleNode::Bytes, 8);  // BYTEARRAY8
    default:   return false;
  }
}

bool PickleMachine::step_container(std::uint8_t opcode) {
  const auto made = [&](PickleNode::Kind kind, std::vector<PickleId> items) {
    push_new(kind).children = std::move(items);
    return true;
  };
  switch (opcode) {
    case '(':  marks_.push_back(stack_.size()); return true;
    case ']':  return made(PickleNode::List, {});
    case '}':  return made(PickleNode::Dict, {});
    case ')':  return made(PickleNode::Tuple, {});
    case 't':  return made(PickleNode::Tuple, pop_to_mark());
    case 0x85: return made(PickleNode::Tuple, pop_several(1));  // TUPLE1
    case 0x86: return made(PickleNode::Tuple, pop_several(2));  // TUPLE2
    case 0x87: return made(PickleNode::Tuple, pop_several(3));  // TUPLE3
    case 'l':  return made(PickleNode::List, pop_to_mark());
    case 'd': {  // DICT
      const std::vector<PickleId> pairs = pop_to_mark();
      push_new(PickleNode::Dict);
      return append_to_dict(pairs);
    }
    case 'a':  return append_to_list(pop_several(1));       // APPEND
    case 'e':  return append_to_list(pop_to_mark());        // APPENDS
    case 's':  return append_to_dict(pop_several(2));       // SETITEM
    case 'u':  return append_to_dict(pop_to_mark());        // SETITEMS
    default:   return false;
  }
}

bool PickleMachine::step_memo(std::uint8_t opcode) {
  switch (opcode) {
    case 'q':  return put(take_int(1));   // BINPUT
    case 'r':  return put(take_int(4));   // LONG_BINPUT
    case 0x94: return put(memo_.size());  // MEMOIZE
    case 'h':  return get(take_int(1));   // BINGET
    case 'j':  return get(take_int(4));   // LONG_BINGET
    default:   return false;
  }
}
// clang-format on

std::string_view PickleMachine::take(std::uint64_t size) {
  if (size > pickle_.size() - at_) fail("ends within an opcode (cut short?)");
  const std::string_view bytes = pickle_.substr(at_, size);
  at_ += size;
  return bytes;
}

std::uint64_t PickleMachine::take_int(int bytes) {
  const std::string_view text = take(static_cast<std::uint64_t>(bytes));
  std::uint64_t value = 0;
  for (std::size_t i = text.size(); i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(text[i]);
  return value;
}

// LONG1: n bytes of two's complement.
std::int64_t PickleMachine::take_long() {
  const auto size = static_cast<int>(take_int(1));
  if (size > 8) fail(message("integer of {} bytes, allowed at most 8", size));
  std::uint64_t bits = take_int(size);
  const bool negative = size > 0 && (bits >> (8 * size - 1) & 1) != 0;
  if (negative && size < 8) bits |= ~std::uint64_t{0} << (8 * size);
  return static_cast<std::int64_t>(bits);
}

// BINFLOAT: big-endian.
double PickleMachine::take_double() {
  std::uint64_t bits = 0;
  for (const char c : take(8)) bits = bits << 8 | static_cast<std::uint8_t>(c);
  return std::bit_cast<double>(bits);
}

std::string_view PickleMachine::take_line() {
  constexpr std::size_t kLongest = 256;
  const std::size_t end = pickle_.substr(at_, kLongest).find('\n');
  if (end == std::string_view::npos) fail("GLOBAL without the end of its name");
  const std::string_view line = pickle_.substr(at_, end);
  at_ += end + 1;
  return line;
}

PickleNode& PickleMachine::push_new(PickleNode::Kind kind) {
  if (nodes_.size() == kMaxNodes) fail(message("more than {} objects", kMaxNodes));
  nodes_.emplace_back().kind = kind;
  push(static_cast<PickleId>(nodes_.size() - 1));
  return nodes_.back();
}

void PickleMachine::push(PickleId id) { stack_.push_back(id); }

PickleId PickleMachine::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("takes an object from an empty stack");
  const PickleId id = stack_.back();
  stack_.pop_back();
  return id;
}

std::vector<PickleId> PickleMachine::pop_several(std::size_t count) {
  std::vector<PickleId> items(count);
  for (std::size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

std::vector<PickleId> PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("no MARK before it");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<PickleId> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

PickleNode& PickleMachine::top() {
  const PickleId id = pop();
  push(id);
  return nodes_[id];
}

// The pickler numbers its memo from 0 without gaps.
bool PickleMachine::put(std::uint64_t index) {
  const PickleId id = pop();
  push(id);
  if (index > memo_.size()) fail(message("memo entry {}, expected at most {}", index, memo_.size()));
  if (index == memo_.size()) memo_.push_back(kNotStored);
  memo_[index] = id;
  return true;
}

bool PickleMachine::get(std::uint64_t index) {
  if (index >= memo_.size()) fail(message("memo entry {} was never stored", index));
  push(memo_[index]);
  return true;
}

void PickleMachine::push_text(PickleNode::Kind kind, std::uint64_t size) {
  const std::string_view text = take(size);
  if (kind == PickleNode::Str && !is_utf8(text)) fail("a string that is not UTF-8");
  push_new(kind).text = text;
}

bool PickleMachine::append_to_list(const std::vector<PickleId>& items) {
  PickleNode& list = top();
  if (list.kind != PickleNode::List) fail("APPEND to something other than a list");
  list.children.insert(list.children.end(), items.begin(), items.end());
  return true;
}

bool PickleMachine::append_to_dict(const std::vector<PickleId>& pairs) {
  PickleNode& dict = top();
  if (dict.kind != PickleNode::Dict) fail("SETITEM on something other than a dict");
  if (pairs.size() % 2 != 0) fail("a key without its value");
  dict.children.insert(dict.children.end(), pairs.begin(), pairs.end());
  return true;
}

namespace {

struct OpcodeRow {
  std::uint8_t opcode;
  const char* name;
};
// Those that read_pickle refuses.
constexpr OpcodeRow kRefused[] = {
    {0x30, "POP"},
    {0x31, "POP_MARK"},
    {0x32, "DUP"},
    {0x46, "FLOAT"},
    {0x49, "INT"},
    {0x4c, "LONG"},
    {0x50, "PERSID"},
    {0x51, "BINPERSID"},
    {0x53, "STRING"},
    {0x54, "BINSTRING"},
    {0x55, "SHORT_BINSTRING"},
    {0x56, "UNICODE"},
    {0x67, "GET"},
    {0x69, "INST"},
    {0x6f, "OBJ"},
    {0x70, "PUT"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x8b, "LONG4"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

}  // namespace

std::string opcode_name(std::uint8_t opcode) {
  std::string code = " (0x";
  append_hex(code, opcode, 2);
  code += ")";
  for (const auto& row : kRefused)
    if (row.opcode == opcode) return "opcode " + (row.name + code);
  return "unknown opcode" + code;
}

}  // namespace fp8::io
