// SPDX-License-Identifier: Apache-2.0
// The source of a template as tokens, with what trim_blocks, lstrip_blocks and the signs - and + take away already
// gone.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::text::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    data,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    real,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string text;  ///< of data and strings what they stand for; of the others as written
  int line = 1;
  std::int64_t integer = 0;
  double real = 0;

  bool is_symbol(std::string_view what) const { return kind == Kind::symbol && text == what; }
  bool is_name(std::string_view what) const { return kind == Kind::name && text == what; }
};

/// The last is Kind::end. name: of the file, in messages. Throws io::Error "NAME:LINE: ...".
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

}  // namespace fp8::text::jinja
