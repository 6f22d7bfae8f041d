// SPDX-License-Identifier: Apache-2.0
// Names of pickle's opcodes (Python's pickletools), for the messages that refuse one. No torch here.
#pragma once
#include <cstdint>
#include <string>

namespace fp8::io {

/// "opcode NEWOBJ (0x81)"; "unknown opcode (0x..)" for a byte that is none.
std::string opcode_name(std::uint8_t opcode);

}  // namespace fp8::io
