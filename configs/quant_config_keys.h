// SPDX-License-Identifier: Apache-2.0
// The one table of QUANT_CONFIG's keys: how each is read, and what is shown of it. Inside of configs only.
#pragma once
#include <string>
#include <vector>

#include "fp8/configs/quant_config.h"

namespace fp8::configs::detail {

/// A key's value and where it stands: "FILE: key 'mode'".
struct KeyValue {
  const io::Json& json;
  std::string where;
};

struct Key {
  const char* name;
  KeyStatus status;
  const char* note;                              ///< for ignored keys: why
  const char* default_text;                      ///< shown if the file does not have the key and there is no `show`
  void (*read)(const KeyValue&, QuantConfig&);   ///< throws io::Error
  std::string (*show)(const QuantConfig&);       ///< nullptr: the file's text
};

const std::vector<Key>& keys();

/// "allowlist" for "whitelist"; every other name is its own.
std::string canonical_name(const std::string& name);

/// One value as messages show it: short text in JSON's spelling, or "an object", "an array".
std::string found_text(const io::Json& json);

/// Throws io::Error: "WHERE: found X, allowed: Y".
[[noreturn]] void reject(const KeyValue& value, const std::string& allowed);

/// Throws io::Error: "WHERE: found X, which is not built yet, allowed: Y".
[[noreturn]] void reject_unbuilt(const KeyValue& value, const std::string& allowed);

}  // namespace fp8::configs::detail
