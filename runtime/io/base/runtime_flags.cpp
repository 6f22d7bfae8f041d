// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/runtime_flags.h"

#include <map>
#include <mutex>

namespace fp8::io {
namespace {

/// Names are those of rows: they live as long as the table.
struct Overrides {
  std::mutex mutex;
  std::map<std::string_view, FlagSetting> said;
  std::map<std::string_view, FlagOwner::Ask> owners;
};

Overrides& overrides() {
  static auto& all = *new Overrides;  // not destroyed: threads may outlive main()
  return all;
}

/// Owners are asked without the lock: they may know it from their own reader.
std::optional<FlagSetting> override_of(std::string_view name) {
  Overrides& o = overrides();
  FlagOwner::Ask ask = nullptr;
  std::optional<FlagSetting> said;
  {
    const std::lock_guard lock(o.mutex);
    if (const auto owner = o.owners.find(name); owner != o.owners.end()) ask = owner->second;
    if (const auto found = o.said.find(name); found != o.said.end()) said = found->second;
  }
  std::optional<FlagSetting> answer = ask != nullptr ? ask() : std::nullopt;
  return answer.has_value() ? answer : said;
}

Flag flag_of(const Variable& row) {
  if (auto setting = override_of(row.name); setting.has_value())
    return {&row, std::move(setting->value), setting->source, std::move(setting->by)};
  if (is_family(row)) {
    if (std::string members = members_of_process(row); !members.empty())
      return {&row, std::move(members), FlagSource::environment, ""};
  } else if (const char* value = environment_value(row.name); value != nullptr) {
    return {&row, is_secret(row) ? "set" : value, FlagSource::environment, ""};
  }
  return {&row, row.fallback, FlagSource::default_value, ""};
}

}  // namespace

void override_flag(std::string_view name, std::optional<FlagSetting> setting) {
  const Variable& row = variable(name);
  Overrides& o = overrides();
  const std::lock_guard lock(o.mutex);
  if (setting.has_value())
    o.said.insert_or_assign(row.name, std::move(*setting));
  else
    o.said.erase(row.name);
}

FlagOwner::FlagOwner(const char* name, Ask ask) {
  const Variable& row = variable(name);
  Overrides& o = overrides();
  const std::lock_guard lock(o.mutex);
  o.owners.insert_or_assign(row.name, ask);
}

std::string Flag::source_text() const { return name_of(source) + (by.empty() ? "" : ": " + by); }

RuntimeFlags RuntimeFlags::from_env() {
  RuntimeFlags flags;
  for (const Variable& row : variables()) flags.flags_.push_back(flag_of(row));
  return flags;
}

const Flag& RuntimeFlags::operator[](std::string_view name) const {
  return flags_[static_cast<std::size_t>(&variable(name) - variables().data())];
}

}  // namespace fp8::io
