// SPDX-License-Identifier: Apache-2.0
// A part's arguments as who makes it asks for them.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/parts/part_spec.h"

namespace fp8::trainer {

/// The values that every part may use.
struct PartContext {
  std::filesystem::path root = ".";  ///< trainer.default_root_dir: where it writes unless told
  c10::Device device = c10::kCPU;    ///< where the network is
  std::uint64_t seed = 0;
  bool checks_only = false;  ///< a part that would write something makes nothing, once its arguments are read
};

/// The arguments of a part, each asked for by name; null counts as not given. All throw io::Error "PLACE: ARGUMENT:
/// found ..., allowed: ...".
class PartArguments {
 public:
  PartArguments(const Part& part, PartContext context) : part_(part), context_(std::move(context)) {}

  const PartContext& context() const { return context_; }
  /// Null: not given.
  const io::Json* find(const std::string& name);
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t low = INT64_MIN,
                       std::int64_t high = INT64_MAX);
  double number(const std::string& name, double fallback);
  std::optional<double> number(const std::string& name);
  bool flag(const std::string& name, bool fallback);
  std::string text(const std::string& name, const std::string& fallback);
  std::optional<std::string> text(const std::string& name);
  /// The name of a file or folder that is made below another: not a path, which may lead anywhere.
  std::optional<std::string> file_name(const std::string& name);
  std::string choice(const std::string& name, const std::vector<std::string>& allowed, const std::string& fallback);

  /// An argument that changes nothing here, whatever it is.
  void accept(const std::string& name) { known_.insert(name); }
  /// An argument that may only be `only` (or null) here. why: a sentence.
  void only(const std::string& name, const io::Json& only, const std::string& why);

  /// An argument that the part did not read is an error that names the nearest.
  void finish() const;
  [[noreturn]] void fail(const std::string& name, const std::string& allowed) const;
  std::string place(const std::string& name) const;

 private:
  const Part& part_;
  PartContext context_;
  std::set<std::string> known_;
};

}  // namespace fp8::trainer
