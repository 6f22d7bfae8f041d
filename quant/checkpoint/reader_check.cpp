// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reader_check.h"

#include <algorithm>
#include <map>
#include <set>

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {
namespace {

/// The list of kept modules.
std::vector<std::string> entries_of(const CheckpointForm& form, const io::Json& config) {
  std::vector<std::string> entries;
  for (const char* key : form.ignore_keys()) {
    const io::Json::json_pointer at(key);
    if (!config.contains(at) || !config[at].is_array()) continue;
    for (const auto& entry : config[at]) {
      if (entry.is_string()) entries.push_back(entry.get<std::string>());
    }
  }
  return entries;
}

class Check {
 public:
  explicit Check(const std::filesystem::path& folder)
      : checkpoint_(folder),
        model_config_(io::read_python_json(io::source_file(folder, io::kConfigFile))),
        config_(read_quantization_config(checkpoint_)) {
    if (config_.is_null())
      throw io::Error(folder.string() + ": expected an fp8 checkpoint, found one in high precision");
    form_ = &form_of_config(config_, folder.string());
    for (auto& w : read_stored(checkpoint_).weights) schemes_.emplace(w.spec.module, std::move(w.spec.scheme));
    for (const auto& [module, scheme] : schemes_) quantized_.insert(module);
    modules_ = CheckpointModules(checkpoint_, model_config_);
    entries_ = IgnoreList(*form_, entries_of(*form_, config_));
    targets_ = IgnoreList(*form_, form_->targets(config_));
    all_linears_ = targets_.holds("Linear");
    look();
    look_at_experts();
    look_outside();
    auto incomplete = incomplete_parts(checkpoint_, model_config_, modules_);
    misread_.insert(misread_.end(), incomplete.begin(), incomplete.end());
  }

  std::vector<ReaderVerdict> verdicts() const {
    std::vector<ReaderVerdict> verdicts;
    const auto add = [&](CheckpointReader reader, const std::vector<std::string>& its_own) {
      if (!form_->is_read_by(reader)) return;
      verdicts.push_back({name_of(reader), misread_, modules_.names().known()});
      auto& problems = verdicts.back().problems;
      problems.insert(problems.end(), its_own.begin(), its_own.end());
      for (const auto& [module, scheme] : schemes_) {
        const std::string problem = form_->problem_of_reader(reader, scheme);
        if (problem.empty()) continue;
        problems.push_back(module + ": " + problem);
        break;
      }
    };
    add(CheckpointReader::transformers, of_transformers_);
    add(CheckpointReader::vllm, of_vllm_);
    add(CheckpointReader::neural_compressor, {});
    return verdicts;
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
                                     [](const auto& module) { return has_part(module, "experts"); });
    if (family != nullptr && !family->unread.empty()) of_transformers_.emplace_back(family->unread);
    if (family != nullptr && !family->note.empty() && single != quantized_.end())
      of_transformers_.push_back(*single + ": " + std::string(family->note));
    if (family != nullptr && !family->spellings.front().down.empty() && !family->listed && single != quantized_.end())
      look_at_joined(*single, schemes_.at(*single));
    for (const auto& layer : StackedExperts(checkpoint_, model_config_, ExpertForm::keep, {}).kept()) {
      if (kept_by(layer) == nullptr && kept_by(layer + ".0.down_proj") == nullptr)
        of_vllm_.push_back(layer +
                           ": a stack of experts in high precision, and no entry of the list of kept modules fits it");
    }
  }

  /// Experts that a file has one by one and transformers joins: with scales per tensor or row alone (5.23:
  /// core_model_loading.py).
  void look_at_joined(const std::string& module, const Scheme& scheme) {
    if (std::string_view(form_->quant_method()) != "compressed-tensors") return;
    if (scheme.weights == WeightGranularity::block)
      of_transformers_.push_back(module + ": transformers can't join experts with scales per block");
    if (scheme.activations == ActivationScaling::static_tensor)
      of_transformers_.push_back(module + ": transformers has no place for the input scales of experts");
  }

  /// Modules in fp8 that no block of the language model has: not those of draft layers that are like its own.
  void look_outside() {
    const auto& stacks = modules_.stacks();
    if (!stacks.known() || !modules_.names().known()) return;
    std::set<std::string> inside;
    for (const auto& m : modules_.all()) {
      if (stacks.holds(m.name)) inside.insert(below_block(m.name));
    }
    for (const auto& module : quantized_) {
      const auto* m = modules_.find(module);
      if (m == nullptr || m->role != Role::other || stacks.holds(module)) continue;
      if (inside.count(below_block(module)) == 0)
        of_vllm_.push_back(module +
                           ": in fp8, outside of the language model's blocks: vLLM builds a plain module there");
    }
  }
  static std::string below_block(const std::string& module) {
    const auto [before, number] = block_of_name(module);
    return before.empty() ? "" : module.substr(before.size() + std::to_string(number).size() + 1);
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
  const CheckpointForm* form_ = nullptr;
  std::map<std::string, Scheme> schemes_;
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
