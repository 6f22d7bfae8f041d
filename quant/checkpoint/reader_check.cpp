// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reader_check.h"

#include <algorithm>
#include <set>

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/forms/form.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/names/expert_families.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file_names.h"

namespace fp8::quant {
namespace {

/// The list of kept modules, under whatever key the form has it.
std::vector<std::string> entries_of(const io::Json& config) {
  std::vector<std::string> entries;
  const auto take = [&](const io::Json& list) {
    if (!list.is_array()) return;
    for (const auto& entry : list) {
      if (entry.is_string()) entries.push_back(entry.get<std::string>());
    }
  };
  for (const char* key : {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude"}) {
    if (config.contains(key)) take(config[key]);
  }
  if (const auto list = config.find("blocklist"); list != config.end() && list->is_object() && list->contains("names"))
    take((*list)["names"]);
  return entries;
}

/// What compressed-tensors' groups are for; "Linear" stands for every Linear.
std::vector<std::string> targets_of(const io::Json& config) {
  std::vector<std::string> targets;
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) return {"Linear"};
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object() || !group.contains("targets") || !group["targets"].is_array()) continue;
    for (const auto& target : group["targets"]) {
      if (target.is_string()) targets.push_back(target.get<std::string>());
    }
  }
  return targets;
}

bool is_compressed_tensors(CheckpointFormat format) {
  return format == CheckpointFormat::compressed_tensors || format == CheckpointFormat::inc_vllm;
}

class Check {
 public:
  explicit Check(const std::filesystem::path& folder)
      : checkpoint_(folder),
        model_config_(io::read_json(folder / io::kConfigFile)),
        config_(read_quantization_config(folder)) {
    if (config_.is_null())
      throw io::Error(folder.string() + ": expected an fp8 checkpoint, found one in high precision");
    format_ = form_of_config(config_, folder.string()).format();
    for (const auto& w : read_stored(checkpoint_).weights) quantized_.insert(w.spec.module);
    modules_ = CheckpointModules(checkpoint_, model_config_);
    entries_ = IgnoreList(format_, entries_of(config_));
    targets_ = IgnoreList(format_, is_compressed_tensors(format_) ? targets_of(config_) : std::vector<std::string>{});
    all_linears_ = !is_compressed_tensors(format_) || targets_.holds("Linear");
    look();
    look_at_experts();
  }

  std::vector<ReaderVerdict> verdicts() const {
    const auto with = [&](const std::vector<std::string>& more) {
      auto all = misread_;
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    switch (format_) {
      case CheckpointFormat::inc:
        return {{"neural-compressor", misread_}};
      case CheckpointFormat::modelopt:
      case CheckpointFormat::quark:
        return {{"vLLM", with(of_vllm_)}};
      default:
        return {{"transformers", with(of_transformers_)}, {"vLLM", with(of_vllm_)}};
    }
  }

 private:
  /// The entry that fits a module, under one of its names; null if none does.
  const std::string* kept_by(const std::string& module) const {
    for (const auto& name : modules_.names().names_on_load(module)) {
      if (const std::string* entry = entries_.entry_for(name)) return entry;
    }
    return nullptr;
  }
  bool is_target(const std::string& module) const {
    const auto names = modules_.names().names_on_load(module);
    return all_linears_ || std::any_of(names.begin(), names.end(),
                                       [&](const auto& name) { return targets_.entry_for(name) != nullptr; });
  }

  void look() {
    std::vector<std::string> kept;
    for (const auto& module : quantized_) look_at_codes(module);
    for (const auto& m : modules_.all()) {
      if (quantized_.count(m.name) != 0) continue;
      kept.push_back(m.name);
      const bool unnamed = CheckpointModules::may_be_linear(m) && kept_by(m.name) == nullptr && is_target(m.name);
      if (unnamed)
        misread_.push_back(
            m.name +
            ": in high precision, and no entry of the list of kept modules fits it: its reader would look for a scale");
    }
    for (const auto& [module, other] : halved_groups(modules_.names(), {quantized_.begin(), quantized_.end()}, kept))
      of_vllm_.push_back(module + ": in fp8, and " + other + ", which runs as one product with it, is not");
  }

  void look_at_experts() {
    const ExpertFamily* family = expert_family(model_config_);
    const auto single = std::find_if(quantized_.begin(), quantized_.end(),
                                     [](const auto& module) { return module.find(".experts.") != std::string::npos; });
    if (family != nullptr && !family->unread.empty()) of_transformers_.emplace_back(family->unread);
    if (family != nullptr && !family->note.empty() && single != quantized_.end())
      of_transformers_.push_back(*single + ": " + std::string(family->note));
    for (const auto& layer : StackedExperts(checkpoint_, model_config_, ExpertForm::keep, {}).kept()) {
      if (kept_by(layer) == nullptr && kept_by(layer + ".0.down_proj") == nullptr)
        of_vllm_.push_back(layer +
                           ": a stack of experts in high precision, and no entry of the list of kept modules fits it");
    }
  }

  void look_at_codes(const std::string& module) {
    if (const std::string* entry = kept_by(module))
      misread_.push_back(module + ": in fp8, and the entry " + io::in_quotes(*entry) +
                         " keeps it: its codes would be read as values");
    else if (!is_target(module))
      misread_.push_back(module + ": in fp8, and no target of the config fits it: its codes would be read as values");
    const auto* known = modules_.find(module);
    if (known != nullptr && known->certain)
      misread_.push_back(module +
                         ": in fp8, and readers have no Linear of this name: its codes would be read as values");
  }

  io::Checkpoint checkpoint_;
  io::Json model_config_, config_;
  CheckpointFormat format_ = CheckpointFormat::compressed_tensors;
  std::set<std::string> quantized_;
  CheckpointModules modules_;
  IgnoreList entries_, targets_;
  bool all_linears_ = true;
  std::vector<std::string> misread_, of_transformers_, of_vllm_;
};

}  // namespace

std::vector<ReaderVerdict> check_readers(const std::filesystem::path& checkpoint) {
  return Check(checkpoint).verdicts();
}

}  // namespace fp8::quant
