// SPDX-License-Identifier: Apache-2.0
// fp8 config explain: keys, environment, and the modules of a model as the config sees them.

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/tools/commands/config/config.h"

namespace fp8::commands {
namespace {

using configs::QuantConfig;
using recipes::ScaleMethod;

/// "PTS MAXABS POW2 0.25"; the backoff where there is something to back off from.
std::string text_of(const ScaleMethod& m) {
  std::string text = std::string(name_of(m.granularity, recipes::inc_granularities())) + " " + name_of(m.value) + " " +
                     name_of(m.rounding);
  if (m.value == recipes::ScaleValue::MAXABS || m.value == recipes::ScaleValue::OPT)
    text += " " + io::Json(m.backoff).dump();
  return text;
}

/// The activation's method as it acts: scales of each call have a backoff of their own.
std::string activation_text(const QuantConfig& config, ScaleMethod m) {
  if (!config.dynamic_quantization) return text_of(m);
  m.backoff = 0.5f;
  return text_of(m) + ", at each call";
}

/// Types without weights that this model does not have are other code's (vLLM's caches, say): nothing can be said about
/// them.
bool is_foreign(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  return known != nullptr && !configs::info_of(known->kind).weight;
}

constexpr std::string_view kLayerTypes = "layer_types.";

/// Entries of scale_method that no module takes.
std::vector<std::string> unused_methods(const QuantConfig& config, const std::set<std::string>& used) {
  std::vector<std::string> messages;
  for (const auto& [entry, method] : config.scale_methods.all()) {
    if (entry == "default" || used.count(entry) != 0 ||
        (entry.starts_with(kLayerTypes) && is_foreign(entry.substr(kLayerTypes.size()))))
      continue;
    messages.push_back(
        io::message("{}: key 'scale_method.{}': no selected module takes it", config.source, io::printable(entry)));
  }
  return messages;
}

/// The modules or nodes that the config selects, for the report.
class Selection {
 public:
  /// report: gets an entry of "modules" or "nodes", and a row, of each.
  Selection(const QuantConfig& config, Report& report)
      : config_(config), filter_(configs::module_filter(config)), report_(report) {}

  void weight(const std::string& name, const std::string& type) {
    io::Json& module = one("modules", name, type, "");
    if (module["selected"].get<bool>()) module["weight"] = text_of(method_of(name, type).weight);
  }

  /// kept: none of a checkpoint's forms holds its scales. Returns whether it is selected.
  bool node(const quant::NodeInfo& n, bool kept) {
    std::string note = n.way.empty() ? "" : "--attention " + n.way;
    if (kept) note += (note.empty() ? "" : ", ") + std::string("in memory only");
    io::Json& module = one("nodes", n.name, n.type, note);
    module["attention"] = n.way.empty() ? io::Json(nullptr) : io::Json(n.way);
    module["in_checkpoint"] = !kept;
    return module["selected"].get<bool>();
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> messages;
    for (const auto& entry : filter_.unused_entries()) {
      const bool type = entry.key == "allowlist.types" || entry.key == "blocklist.types";
      if (!type || !is_foreign(entry.entry)) messages.push_back(entry.message);
    }
    for (auto& message : unused_methods(config_, used_)) messages.push_back(std::move(message));
    return messages;
  }

 private:
  const recipes::NamedScaleMethod& method_of(const std::string& name, const std::string& type) const {
    return config_.scale_methods.for_module(name, type);
  }

  io::Json& one(const char* list, const std::string& name, const std::string& type, const std::string& note) {
    const std::string reason = quant::reason_against(config_, filter_, name, type);
    io::Json& module =
        report_.json[list].emplace_back(io::Json{{"name", name}, {"type", type}, {"selected", reason.empty()}});
    if (!reason.empty()) {
      module["reason"] = reason;
      report_.row({io::printable(name), io::printable(type), "-", reason});
      return module;
    }
    const auto& method = method_of(name, type);
    const std::string from = config_.scale_methods.source_of(name, type),
                      entry = from == "default" ? "" : io::printable(from);
    used_.insert(from);
    module["method"] = method.name;
    module["method_from"] = from;
    module["activation"] = activation_text(config_, method.activation);
    report_.row({io::printable(name), io::printable(type), method.name,
                 entry + (entry.empty() || note.empty() ? "" : ", ") + note});
    return module;
  }

  const QuantConfig& config_;
  configs::ModuleFilter filter_;
  Report& report_;
  std::set<std::string> used_;  ///< entries of scale_method
};

/// "2 of 30 modules with weights are selected", and why the others are not.
std::size_t count_selected(const io::Json& modules, const std::string& what, std::string& text) {
  std::map<std::string, std::size_t> skipped;
  std::size_t selected = 0;
  for (const auto& m : modules) m["selected"].get<bool>() ? ++selected : ++skipped[m["reason"].get<std::string>()];
  if (modules.empty()) return 0;
  text += std::to_string(selected) + " of " + std::to_string(modules.size()) + " " + what + " are selected\n";
  for (const auto& [reason, count] : skipped) text += std::to_string(count) + ": " + reason + "\n";
  return selected;
}

}  // namespace

Report explain(const QuantConfig& config, const configs::Environment& environment,
               const std::vector<std::string>& problems) {
  Report result({"key", "value", "from", "effect"});
  result.json = {{"file", config.source},
                 {"mode", name_of(config.mode)},
                 {"keys", io::Json::array()},
                 {"environment", io::Json::array()},
                 {"problems", problems}};
  for (const auto& key : configs::describe(config)) {
    const bool ignored = key.status == configs::KeyStatus::ignored;
    if (ignored && key.origin == "default") continue;  // keys of other tools, not set
    result.add_entry("keys",
                     {{"key", key.key},
                      {"value", key.value},
                      {"origin", key.origin},
                      {"status", name_of(key.status)},
                      {"note", key.note}},
                     {key.key, io::printable(key.value), key.origin == "default" ? "default" : "file",
                      (ignored ? "none: " : "") + key.note});
  }
  for (const auto& v : environment.report)
    result.add_entry("environment",
                     {{"name", v.name}, {"value", v.value}, {"in_effect", v.in_effect}, {"note", v.effect}},
                     {v.name, v.value, "environment", (v.in_effect ? "" : "none: ") + v.effect});
  std::string below;
  for (const auto& [entry, method] : config.scale_methods.all())
    below += "scale_method " + io::printable(entry) + " is " + method->name + ": weight " + text_of(method->weight) +
             "; activation " + activation_text(config, method->activation) + "\n";
  for (const auto& problem : problems) below += "problem: " + problem + "\n";
  result.below = wrapped(below, output_width());
  return result;
}

Report explain_modules(const QuantConfig& config, const ModelModules& model) {
  Report result({"module", "type", "method", "from"});
  auto& json = result.json;
  json = {{"modules", io::Json::array()}, {"selected", 0}, {"nodes", io::Json::array()}};
  Selection selection(config, result);
  std::size_t in_memory = 0;
  for (const auto& [name, type] : model.weights) selection.weight(name, type);
  for (const auto& n : model.nodes) {
    const bool kept = model.checkpoint && !n.way.empty();
    in_memory += selection.node(n, kept) && kept ? 1 : 0;
  }
  std::string counts;
  json["selected"] = count_selected(json["modules"], "modules with weights", counts);
  json["nodes_selected"] = count_selected(json["nodes"], "modules without weights", counts);
  if (in_memory > 0)
    counts += std::to_string(in_memory) +
              " of these run in fp8 in memory (QUANT_CONFIG with evaluate, generate) only: no form of checkpoint holds "
              "their scales\n";
  const auto unused = selection.unused();
  json["unused"] = unused;
  for (const auto& message : unused) counts += "unused: " + message + "\n";
  result.below = wrapped(counts, output_width());
  return result;
}

// The modules that fp8 config explain --model shows: from a checkpoint's header, or from a TorchScript file.

namespace {

namespace fs = std::filesystem;

/// DIR/config.json; an empty object without one.
io::Json config_of(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / io::kConfigFile, ignored)) return io::Json::object();
  return io::read_python_json(io::source_file(folder, io::kConfigFile));
}

/// By the names that modules have in memory: there the experts of a layer are one module each, whatever a file calls
/// or stacks.
ModelModules modules_of_checkpoint(const fs::path& folder) {
  const io::Checkpoint checkpoint(folder);
  const io::Json config = config_of(folder);
  const quant::CheckpointModules found(checkpoint, config);
  const quant::StackedExperts stacked(checkpoint, config, quant::ExpertForm::each, {});
  ModelModules model;
  model.checkpoint = true;
  std::vector<std::string> names;
  std::set<std::string> experts;
  std::vector<quant::NodeInfo> mixtures;
  const auto add = [&](const std::string& name, const std::string& type) {
    names.push_back(name);
    const auto expert = quant::expert_in_memory(name);
    if (!expert.has_value()) return void(model.weights.emplace_back(name, type));
    if (experts.insert(expert->name).second) model.weights.emplace_back(expert->name, quant::kExpertType);
    if (experts.insert(expert->mixture).second) mixtures.push_back({expert->mixture, quant::kMixtureType});
  };
  for (const auto& m : found.all())
    if (!stacked.is_stack(m.tensor)) add(m.name, quant::CheckpointModules::type_of(m));
  for (const auto& m : stacked.modules()) add(m.name, m.type);
  model.nodes = quant::attention_nodes(quant::attention_modules(names));
  model.nodes.insert(model.nodes.end(), mixtures.begin(), mixtures.end());
  return model;
}

}  // namespace

decltype(modules_of_script) modules_of_script;

ModelModules modules_of(const fs::path& model) {
  std::error_code ignored;
  if (!fs::exists(model, ignored)) io::fail<io::Error>("{}: no such file or folder", model.string());
  return fs::is_directory(model, ignored) ? modules_of_checkpoint(model) : modules_of_script(model);
}

}  // namespace fp8::commands
