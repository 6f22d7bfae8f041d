// SPDX-License-Identifier: Apache-2.0
// fp8 config explain: keys, environment, and the modules of a model as the config sees them.
#include <algorithm>
#include <map>
#include <set>

#include "fp8/configs/module_types.h"
#include "fp8/runtime/io/error.h"
#include "fp8/tools/commands/config.h"
#include "fp8/tools/commands/output.h"
#include "fp8/tools/commands/table.h"

namespace fp8::commands {
namespace {

using configs::QuantConfig;
using recipes::ScaleMethod;

/// "PTS MAXABS POW2 0.25"; the backoff where there is something to back off from.
std::string text_of(const ScaleMethod& m) {
  std::string text = std::string(name_of(m.granularity)) + " " + name_of(m.value) + " " + name_of(m.rounding);
  if (m.value == recipes::ScaleValue::MAXABS || m.value == recipes::ScaleValue::OPT) text += " " + io::Json(m.backoff).dump();
  return text;
}

/// The activation's method as it acts: scales of each call have a backoff of their own.
std::string activation_text(const QuantConfig& config, ScaleMethod m) {
  if (!config.dynamic_quantization) return text_of(m);
  m.backoff = 0.5f;
  return text_of(m) + ", at each call";
}

/// Why a module that is asked for stays as it is; "" if it does not.
std::string reason_against(const QuantConfig& config, const std::string& type, bool selected) {
  const auto* known = configs::find_module_type(type);
  const bool embedding = known != nullptr && known->kind == configs::ModuleKind::embedding && !known->in_inc;
  if (known == nullptr || known->kind == configs::ModuleKind::no_quantize || embedding) return "type " + type + " is not quantized";
  if (!selected) return "not selected by allowlist and blocklist";
  if (config.dynamic_quantization && !known->dynamic) return "type " + type + " has no dynamic quantization";
  return "";
}

/// Entries of scale_method that no module takes. A checkpoint shows modules with weights only.
std::vector<std::string> unused_methods(const QuantConfig& config, const std::set<std::string>& used) {
  std::vector<std::string> messages;
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (entry == "default" || used.count(entry) != 0) continue;
    messages.push_back(config.source + ": key 'scale_method." + io::printable(entry) + "': no selected module takes it");
  }
  return messages;
}

/// Types without weights are not in a checkpoint, so nothing can be said about them.
bool is_invisible(const configs::UnusedEntry& entry) {
  if (entry.key != "allowlist.types" && entry.key != "blocklist.types") return false;
  const auto* type = configs::find_module_type(entry.entry);
  return type != nullptr && !configs::info_of(type->kind).weight;
}

struct Selection {
  io::Json modules = io::Json::array();
  std::set<std::string> used;                 ///< entries of scale_method
  std::map<std::string, std::size_t> skipped; ///< reason -> number
  std::size_t selected = 0;
};

Selection select(const QuantConfig& config, const Modules& modules, configs::ModuleFilter& filter, Table& table) {
  Selection s;
  for (const auto& [name, type] : modules) {
    const std::string reason = reason_against(config, type, filter.selects(type, name));
    io::Json module = {{"name", name}, {"type", type}, {"selected", reason.empty()}};
    if (reason.empty()) {
      const auto& method = config.scale_methods.for_module(name, type);
      const std::string from = config.scale_methods.source_of(name, type);
      s.used.insert(from);
      ++s.selected;
      module["method"] = method.name;
      module["method_from"] = from;
      module["weight"] = text_of(method.weight);
      module["activation"] = activation_text(config, method.activation);
      table.row({io::printable(name), io::printable(type), method.name, from == "default" ? "" : io::printable(from)});
    } else {
      ++s.skipped[reason];
      module["reason"] = reason;
      table.row({io::printable(name), io::printable(type), "-", reason});
    }
    s.modules.push_back(std::move(module));
  }
  return s;
}

}  // namespace

Explanation explain(const QuantConfig& config, const configs::Environment& environment, const std::vector<std::string>& problems) {
  Explanation result;
  io::Json keys = io::Json::array(), variables = io::Json::array();
  Table table({"key", "value", "from", "effect"});
  for (const auto& key : configs::describe(config)) {
    const bool ignored = key.status == configs::KeyStatus::ignored;
    if (ignored && key.origin == "default") continue;  // keys of other tools that nobody set
    keys.push_back({{"key", key.key}, {"value", key.value}, {"origin", key.origin}, {"status", name_of(key.status)}, {"note", key.note}});
    table.row({key.key, io::printable(key.value), key.origin == "default" ? "default" : "file", (ignored ? "none: " : "") + key.note});
  }
  for (const auto& v : environment.report) {
    variables.push_back({{"name", v.name}, {"value", v.value}, {"in_effect", v.in_effect}, {"note", v.effect}});
    table.row({v.name, v.value, "environment", (v.in_effect ? "" : "none: ") + v.effect});
  }
  result.json = {{"file", config.source}, {"mode", name_of(config.mode)}, {"keys", keys}, {"environment", variables}, {"problems", problems}};
  result.text = table.text();
  for (const auto& [entry, method] : config.scale_methods.all()) {
    result.text += "scale_method " + io::printable(entry) + " is " + method->name + ": weight " + text_of(method->weight) + "; activation " +
                   activation_text(config, method->activation) + "\n";
  }
  for (const auto& problem : problems) result.text += "problem: " + problem + "\n";
  return result;
}

Explanation explain_modules(const QuantConfig& config, const Modules& modules) {
  Explanation result;
  Table table({"module", "type", "method", "from"});
  auto filter = configs::module_filter(config);
  const Selection s = select(config, modules, filter, table);
  std::vector<std::string> unused;
  for (const auto& entry : filter.unused_entries()) {
    if (!is_invisible(entry)) unused.push_back(entry.message);
  }
  for (auto& message : unused_methods(config, s.used)) unused.push_back(std::move(message));
  result.json = {{"modules", s.modules}, {"selected", s.selected}, {"unused", unused}};
  result.text = table.text() + std::to_string(s.selected) + " of " + std::to_string(modules.size()) + " modules with weights are selected\n";
  for (const auto& [reason, count] : s.skipped) result.text += std::to_string(count) + ": " + reason + "\n";
  for (const auto& message : unused) result.text += "unused: " + message + "\n";
  return result;
}

}  // namespace fp8::commands
