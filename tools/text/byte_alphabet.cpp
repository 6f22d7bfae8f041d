// SPDX-License-Identifier: Apache-2.0
// See byte_alphabet.h.
#include "fp8/tools/text/byte_alphabet.h"

#include <array>

#include "fp8/runtime/io/base/text.h"

namespace fp8::text {
namespace {

constexpr std::uint32_t kLetters = 0x144;  // code points 0..0x143 can stand for a byte

struct Alphabet {
  std::array<std::string, 256> letter;
  std::array<int, kLetters> byte;

  Alphabet() {
    byte.fill(-1);
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const std::uint32_t code_point = printable ? b : next++;
      io::utf8_append(letter[b], code_point);
      byte[code_point] = static_cast<int>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

void append_byte_letters(std::string& text, std::string_view bytes) {
  const Alphabet& table = alphabet();
  for (const char byte : bytes) text += table.letter[static_cast<unsigned char>(byte)];
}

int byte_of_letter(std::uint32_t code_point) { return code_point < kLetters ? alphabet().byte[code_point] : -1; }

}  // namespace fp8::text
