// SPDX-License-Identifier: Apache-2.0
// Typed access to one JSON object with messages that name the file and the key.
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"

namespace fp8::models {

class ConfigReader {
 public:
  /// name: the file; prefix: path of this object in it ("" or "rope_scaling."). Throws io::Error if json is not an
  /// object.
  ConfigReader(const io::Json& json, std::string name, std::string prefix = "");

  /// nullptr: absent or null.
  const io::Json* find(const std::string& key) const;
  /// There, and null.
  bool is_null(const std::string& key) const;
  /// An integer in [low, high]; without a fallback the key must be there.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {}) const;
  /// A finite number in [low, high].
  double number(const std::string& key, double low, double high, std::optional<double> fallback = {}) const;
  bool boolean(const std::string& key, bool fallback) const;
  /// One of the allowed words.
  std::string word(const std::string& key, std::initializer_list<const char*> allowed,
                   const char* fallback = nullptr) const;
  /// An integer >= 0 or a list of at most 256 of them; empty if absent.
  std::vector<std::int64_t> token_ids(const std::string& key) const;
  /// A list of integers in [0, count); empty: absent.
  std::optional<std::vector<std::size_t>> indices(const std::string& key, std::size_t count) const;
  ConfigReader object(const std::string& key) const;
  /// Reads `object`, which must outlive it, as if it stood at `key`.
  ConfigReader below(const std::string& key, const io::Json& object) const;
  const std::string& name() const { return name_; }  ///< of the file
  const io::Json& json() const { return json_; }
  /// "dtype" or "torch_dtype"; empty: neither is there.
  std::optional<c10::ScalarType> dtype() const;

  /// "[models] FILE: key 'KEY': found VALUE, allowed: ALLOWED", thrown as io::Error.
  [[noreturn]] void fail(const std::string& key, const std::string& allowed) const;
  [[noreturn]] void fail_with(const std::string& message) const;

 private:
  const io::Json& json_;
  std::string name_, prefix_;
};

}  // namespace fp8::models
