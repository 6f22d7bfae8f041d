// SPDX-License-Identifier: Apache-2.0
// The one table of QUANT_CONFIG's keys: how each is read, and what is shown of it. Inside of configs only.
#pragma once

#include "fp8/configs/quant_config.h"

namespace fp8::configs::detail {

/// Its reader needs the values of other keys.
constexpr const char* kScaleMethodKey = "scale_method";

/// A key's value and where it stands: "FILE: key 'mode'".
struct KeyValue {
  const io::Json& json;
  std::string where;
  const ParseOptions* options = nullptr;  ///< set where a key's reader is called
};

struct Key {
  const char* name;
  KeyStatus status;
  const char* note;                             ///< the effect of the key; for ignored keys: why it has none
  const char* default_text;                     ///< shown if the file does not have the key and there is no `show`
  void (*read)(const KeyValue&, QuantConfig&);  ///< throws io::Error
  std::string (*show)(const QuantConfig&);      ///< nullptr: the file's text
};

const std::vector<Key>& keys();

/// Other spellings: {"whitelist", "allowlist"}, {"blacklist", "blocklist"}, {"separate_...", "seperate_..."}.
struct Alias {
  const char *name, *key;
};
const std::vector<Alias>& aliases();

/// "allowlist" for "whitelist"; every other name is its own.
std::string canonical_name(const std::string& name);

/// One value as messages show it: short text in JSON's spelling, or "an object", "an array".
std::string found_text(const io::Json& json);

using io::upper;

/// The value, or the number that its text is: Python's tools take "50" for 50, and files that people publish say so.
io::Json number_in(const io::Json& json);

/// Throws io::Error: "WHERE: found X, allowed: Y".
[[noreturn]] void reject(const KeyValue& value, const std::string& allowed);

/// The value of a name, in any case. Throws io::Error that lists the names.
template <class E>
E choose(const KeyValue& value, const EnumChoice<E>& among = choice_of<E>()) {
  const std::string word = value.json.is_string() ? upper(value.json.get<std::string>()) : "";
  for (const auto& row : among)
    if (word == upper(row.name)) return row.value;
  reject(value, allowed_names(among));
}

/// A number above 0, up to 1. Throws io::Error.
float backoff(const KeyValue& value);

}  // namespace fp8::configs::detail
