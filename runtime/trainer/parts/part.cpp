// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/parts/part.h"

#include <algorithm>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::trainer {

const io::Json* PartArguments::find(const std::string& name) {
  known_.insert(name);
  const auto found = part_.init_args.find(name);
  return found == part_.init_args.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t PartArguments::integer(const std::string& name, std::int64_t fallback, std::int64_t low,
                                    std::int64_t high) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  const bool fits =
      value->is_number_integer() && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX);
  if (!fits || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high)
    fail(name, low == INT64_MIN    ? "an integer"
               : high == INT64_MAX ? "an integer, at least " + std::to_string(low)
                                   : "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return value->get<std::int64_t>();
}

std::optional<double> PartArguments::number(const std::string& name) {
  const io::Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(name, "a number");
  return value->get<double>();
}

double PartArguments::number(const std::string& name, double fallback) { return number(name).value_or(fallback); }

bool PartArguments::flag(const std::string& name, bool fallback) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(name, "true, false");
  return value->get<bool>();
}

std::optional<std::string> PartArguments::text(const std::string& name) {
  const io::Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, "a text");
  return value->get<std::string>();
}

std::string PartArguments::text(const std::string& name, const std::string& fallback) {
  return text(name).value_or(fallback);
}

std::optional<std::string> PartArguments::file_name(const std::string& name) {
  auto value = text(name);
  if (value && !io::is_file_name(*value)) fail(name, "a name without '/' that is not '..'");
  return value;
}

std::string PartArguments::choice(const std::string& name, const std::vector<std::string>& allowed,
                                  const std::string& fallback) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string() || std::ranges::find(allowed, value->get<std::string>()) == allowed.end())
    fail(name, io::joined(allowed));
  return value->get<std::string>();
}

void PartArguments::only(const std::string& name, const io::Json& only, const std::string& why) {
  const io::Json* value = find(name);
  if (value != nullptr && *value != only) fail(name, (only.is_null() ? "nothing" : only.dump()) + ": " + why);
}

void PartArguments::finish() const {
  for (const auto& [name, value] : part_.init_args.items())
    if (!known_.contains(name)) {
      const std::vector<std::string> names(known_.begin(), known_.end());
      throw io::Error(place(name) + ": found an argument that " + part_.class_path +
                      " does not have, allowed: " + (names.empty() ? "none" : io::joined(names)) +
                      (names.empty() ? "" : "; " + io::the_nearest(name, names)));
    }
}

void PartArguments::fail(const std::string& name, const std::string& allowed) const {
  throw io::Error(place(name) + ": found " + io::printable(part_.init_args.at(name).dump()) + ", allowed: " + allowed);
}

std::string PartArguments::place(const std::string& name) const {
  const auto found = part_.places.find(name);
  return (found != part_.places.end() ? found->second
          : part_.place.empty()       ? part_.class_path
                                      : part_.place) +
         (found != part_.places.end() ? "" : ": " + name);
}

}  // namespace fp8::trainer
