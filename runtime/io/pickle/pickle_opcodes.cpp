// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/pickle/pickle_opcodes.h"

namespace fp8::io {
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
  constexpr char kHex[] = "0123456789abcdef";
  const std::string code = std::string(" (0x") + kHex[opcode >> 4] + kHex[opcode & 15] + ")";
  for (const auto& row : kRefused)
    if (row.opcode == opcode) return "opcode " + (row.name + code);
  return "unknown opcode" + code;
}

}  // namespace fp8::io
