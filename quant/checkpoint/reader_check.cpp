// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reader_check.h"

#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/names/expert_weights.h"

namespace fp8::quant {
namespace {

/// The list of kept modules.
std::vector<std::string> entries_of(const CheckpointForm& form, const io::Json& config) {
  std::vector<std::string> entries;
  for (const char* key : form.ignore_keys()) {
    const io::Json::json_pointer at(key);
    if (!config.contains(at) || !config[at].is_array()) continue;
    for (const auto& entry : config[at])
      if (entry.is_string()) entries.push_back(entry.get<std::string>());
  }
  return entries;
}

class Check {
 public:
  Check(const std::filesystem::path& folder, io::Spelling spelling)
      : spelling_(spelling),
        checkpoint_(folder),
        model_config_(io::read_python_json(io::source_file(folder, io::kConfigFile))),
        config_(read_quantization_config(checkpoint_)) {
    if (config_.is_null())
      io::fail<io::Error>("{}: expected an fp8 checkpoint, found one in high precision", folder.string());
    form_ = &form_of_config(config_, folder.string());
    auto stored = read_stored(checkpoint_);
    for (auto& w : stored.weights) {
      quantized_.insert(w.spec.module);
      weights_.emplace(w.spec.module, std::move(w));
    }
    modules_ = CheckpointModules(checkpoint_, model_config_);
    entries_ = IgnoreList(*form_, entries_of(*form_, config_));
    targets_ = IgnoreList(*form_, form_->targets(config_));
    all_linears_ = targets_.holds("Linear");
    look();
    look_at_experts();
    look_outside();
    look_at_mx();
    if (!stored.kv.empty()) look_at_caches(stored.kv);
    look_at_fp8_form();
    auto incomplete = incomplete_parts(checkpoint_, model_config_, modules_);
    misread_.insert(misread_.end(), incomplete.begin(), incomplete.end());
  }

  std::vector<ReaderVerdict> verdicts() const {
    std::vector<ReaderVerdict> verdicts;
    const auto add = [&](CheckpointReader reader, const std::vector<std::string>& its_own) {
      if (!form_->is_read_by(reader)) return;
      verdicts.push_back({name_of(reader), rules_of(reader), release_of(reader), misread_,
                          why_not_known(reader, modules_.names(), model_config_)});
      auto& problems = verdicts.back().problems;
      problems.insert(problems.end(), its_own.begin(), its_own.end());
      for (const auto& [module, weight] : weights_) {
        const std::string problem =
            form_->problem_of_reader(reader, weight, place_on_load(reader, module, expert_family(model_config_)));
        if (problem.empty()) continue;
        problems.push_back(module + ": " + io::spelled(problem, spelling_));
        break;
      }
    };
    add(CheckpointReader::transformers, of_transformers_);
    add(CheckpointReader::vllm, of_vllm_);
    add(CheckpointReader::neural_compressor, {});
    return verdicts;
  }

 private:
  bool is_compressed_tensors() const { return std::string_view(form_->quant_method()) == "compressed-tensors"; }
  /// The entry that fits a module, under one of its names; null if none does.
  const std::string* kept_by(const std::string& module) const {
    for (const auto& name : modules_.names().names_on_load(module))
      if (const std::string* entry = entries_.entry_for(name)) return entry;
    return nullptr;
  }
  bool is_target(const std::string& module) const {
    const auto names = modules_.names().names_on_load(module);
    return all_linears_ ||
           std::ranges::any_of(names, [&](const auto& name) { return targets_.entry_for(name) != nullptr; });
  }

  void look() {
    std::vector<std::string> kept;
    for (const auto& module : quantized_) look_at_codes(module);
    for (const auto& m : modules_.all()) {
      if (quantized_.contains(m.name)) continue;
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
    const auto single =
        std::ranges::find_if(quantized_, [](const auto& module) { return has_part(module, "experts"); });
    if (family != nullptr && !family->unread.empty()) of_transformers_.emplace_back(family->unread);
    if (family != nullptr && family->vllm_only && single != quantized_.end())
      of_transformers_.push_back(*single + ": " + io::spelled(family->note(), spelling_));
    if (family != nullptr && family->listed && !is_compressed_tensors() && single != quantized_.end())
      of_transformers_.push_back(*single +
                                 ": transformers has single experts of this family in compressed-tensors alone");
    for (const auto& layer : StackedExperts(checkpoint_, model_config_, ExpertForm::keep, {}).kept())
      if (kept_by(layer) == nullptr && kept_by(layer + ".0.down_proj") == nullptr)
        of_vllm_.push_back(layer +
                           ": a stack of experts in high precision, and no entry of the list of kept modules fits it");
  }

  /// transformers runs the model in the dtype that its config names, else in that of its first tensor, and decodes
  /// MXFP8 to bfloat16 whatever that is (compressed-tensors 0.20: compressors/mx_utils.py).
  void look_at_mx() {
    const auto mx = std::ranges::find_if(weights_, [](const auto& w) { return w.second.spec.scheme.is_mx(); });
    if (mx == weights_.end() || !is_compressed_tensors()) return;
    std::string dtype;
    for (const auto& config : {std::cref(model_config_), std::cref(language_config(model_config_))}) {
      for (const char* key : {"dtype", "torch_dtype"}) {
        const auto said = config.get().find(key);
        if (dtype.empty() && said != config.get().end() && said->is_string()) dtype = said->get<std::string>();
      }
    }
    for (const auto& tensor : checkpoint_.names()) {
      const auto type = checkpoint_.info(tensor).dtype;
      if (dtype.empty() && is_float(type)) dtype = type == io::DType::BF16 ? "bfloat16" : io::name_of(type);
    }
    if (dtype != "bfloat16")
      of_transformers_.push_back(mx->first + ": transformers decodes MXFP8 to bfloat16, the model is " +
                                 io::printable(dtype) + ", and products of the two fail; expected a model in bfloat16");
  }

  /// transformers has scales of caches in compressed-tensors alone, which gives them to every attention that takes a
  /// cache and has a projection of one of these names (lifecycle/initialize.py).
  void look_at_caches(const std::vector<KvScales>& kv) {
    if (!is_compressed_tensors()) {
      of_transformers_.push_back(kv.front().attention + ": transformers has no scales of caches in this form");
      return;
    }
    if (has_cached_towers(modules_.names()))
      of_transformers_.push_back("kv_cache_scheme: transformers asks for scales of the tower's attention, too");
    if (lacks_kv_heads(modules_.names(), model_config_))
      of_transformers_.emplace_back("kv_cache_scheme: transformers has no scales of caches in this family");
    constexpr const char* kProjections[] = {"k_proj", "v_proj", "qkv_proj", "kv_b_proj"};
    const auto lost = std::ranges::find_if(kv, [&](const KvScales& scales) {
      return std::ranges::none_of(kProjections, [&](const char* projection) {
        return modules_.find(scales.attention + "." + projection) != nullptr;
      });
    });
    if (lost != kv.end())
      of_transformers_.push_back(lost->attention +
                                 ": transformers takes scales of caches beside k_proj, v_proj, qkv_proj or kv_b_proj");
  }

  /// In compressed-tensors alone transformers splits modules with their scales, and has weights in their own types.
  void look_at_fp8_form() {
    if (is_compressed_tensors()) return;
    if (mixes_floats(modules_.names()))
      of_transformers_.emplace_back("config.json: transformers mixes float32 with bfloat16 in this family and form");
    const auto split = std::ranges::find_if(
        quantized_, [&](const auto& module) { return modules_.names().parts_on_load(module).count > 1; });
    if (split != quantized_.end())
      of_transformers_.push_back(*split +
                                 ": transformers splits it on load, which it can't do with scales in this form");
  }

  /// Modules in fp8 that no block of the language model has: not those of draft layers that are like its own.
  void look_outside() {
    const auto& stacks = modules_.stacks();
    if (!stacks.known() || !modules_.names().known()) return;
    std::set<std::string> inside;
    for (const auto& m : modules_.all())
      if (stacks.holds(m.name)) inside.insert(below_block(m.name));
    for (const auto& module : quantized_) {
      const auto* m = modules_.find(module);
      if (m == nullptr || m->role != Role::other || stacks.holds(module)) continue;
      if (!inside.contains(below_block(module)))
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
      misread_.push_back(io::message("{}: in fp8, and the entry {} keeps it: its codes would be read as values", module,
                                     io::in_quotes(*entry)));
    else if (!is_target(module))
      misread_.push_back(module + ": in fp8, and no target of the config fits it: its codes would be read as values");
    const auto* known = modules_.find(module);
    if (known != nullptr && known->certain)
      misread_.push_back(module +
                         ": in fp8, and readers have no Linear of this name: its codes would be read as values");
  }

  io::Spelling spelling_;
  io::Checkpoint checkpoint_;
  io::Json model_config_, config_;
  const CheckpointForm* form_ = nullptr;
  std::map<std::string, StoredWeight> weights_;
  std::set<std::string> quantized_;
  CheckpointModules modules_;
  IgnoreList entries_, targets_;
  bool all_linears_ = true;
  std::vector<std::string> misread_, of_transformers_, of_vllm_;
};

using NameSet = std::set<std::string>;
constexpr std::string_view kWeightEnd = ".weight";

/// A part of a name that some wrapper leaves there, and what takes it away.
struct Wrapper {
  std::string_view part, advice;
};
constexpr std::string_view kUnmerged = "an adapter's that was not merged; save peft's model.merge_and_unload()";
constexpr Wrapper kWrappers[] = {
    {"_orig_mod", "torch.compile's; save model._orig_mod.state_dict()"},
    {"_fsdp_wrapped_module", "FSDP's; save its full state dict (torch.distributed.checkpoint.state_dict)"},
    {"_checkpoint_wrapped_module", "checkpoint_wrapper()'s; save the state dict of the module that it wraps"},
    {"_forward_module", "a strategy's; save the state dict of the module that it wraps"},
    {"base_layer", kUnmerged},
    {"lora_A", kUnmerged},
    {"lora_B", kUnmerged},
    {"modules_to_save", kUnmerged}};
constexpr Wrapper kDataParallel = {"module", "DataParallel's; save model.module.state_dict()"};

/// Weights of a block, by their names below it. Scales are a form's matter, tables one block's own (T5's biases).
struct Blocks {
  std::string before;
  std::int64_t count = 0;
  std::map<std::int64_t, NameSet> names;
};

std::vector<Blocks> read_blocks(const io::Checkpoint& checkpoint, const ModelStacks& stacks) {
  std::vector<Blocks> all;
  for (const auto& stack : stacks.stacks()) all.push_back({stack.before, stack.count, {}});
  for (const auto& tensor : checkpoint.names()) {
    if (!tensor.ends_with(kWeightEnd)) continue;
    const auto [before, number] = block_of_name(tensor);
    for (auto& blocks : all) {
      if (before != blocks.before) continue;
      std::string name = tensor.substr(before.size() + std::to_string(number).size() + 1);
      const auto module = std::string_view(name).substr(0, name.size() - kWeightEnd.size());
      if (!is_embedding_name(module)) blocks.names[number].insert(std::move(name));
    }
  }
  return all;
}

/// The entries for one layer of the config's lists per layer, as text: layers that differ in it are no sisters.
std::vector<std::string> kinds_of_layers(const io::Json& config, std::int64_t count) {
  std::vector<std::string> kinds(static_cast<std::size_t>(count));
  for (const auto& [key, value] : config.items()) {
    if (!value.is_array() || std::ssize(value) != count) continue;
    for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] += value[i].dump() + "\n";
  }
  const auto shared = config.find("num_kv_shared_layers");
  if (shared == config.end() || !shared->is_number_integer()) return kinds;
  const auto first = count - std::clamp<std::int64_t>(shared->get<std::int64_t>(), 0, count);
  for (std::int64_t i = first; i < count; ++i) kinds[static_cast<std::size_t>(i)] += "shared";
  return kinds;
}

/// Blocks that lack something which as many sisters or more have beside all of theirs. What the first block alone has
/// or has not may be its own (a norm before all, a table that the others share), unless it is a product.
void look_at_sisters(const Blocks& blocks, const std::vector<std::string>& kinds, const CheckpointModules& modules,
                     std::vector<std::string>& found) {
  const auto is_product = [&](const std::string& name) {
    const auto module = name.substr(0, name.size() - kWeightEnd.size());
    return std::ranges::any_of(blocks.names, [&](const auto& block) {
      const auto* m = modules.find(blocks.before + std::to_string(block.first) + "." + module);
      return m != nullptr && m->role == Role::linear;
    });
  };
  std::map<std::string, std::map<NameSet, std::vector<std::int64_t>>> by_kind;
  for (const auto& [number, names] : blocks.names)
    if (number < blocks.count) by_kind[kinds[static_cast<std::size_t>(number)]][names].push_back(number);
  for (const auto& [kind, sets] : by_kind) {
    for (const auto& [names, members] : sets) {
      const NameSet* whole = nullptr;
      std::size_t most = members.size();
      bool first_alone = false;
      for (const auto& [others, sisters] : sets) {
        if (others.size() <= names.size() || sisters.size() < most) continue;
        if (!std::includes(others.begin(), others.end(), names.begin(), names.end())) continue;
        whole = &others;
        most = sisters.size();
        first_alone = most == 1 && sisters.front() == 0;
      }
      if (whole == nullptr) continue;
      NameSet lacking;
      std::set_difference(whole->begin(), whole->end(), names.begin(), names.end(),
                          std::inserter(lacking, lacking.end()));
      const bool of_first = first_alone || (members.size() == 1 && members.front() == 0);
      if (of_first && std::ranges::none_of(lacking, is_product)) continue;
      found.push_back(blocks.before + std::to_string(members.front()) + "." + *lacking.begin() + ": missing" +
                      (lacking.size() > 1 ? " with " + std::to_string(lacking.size() - 1) + " more" : "") + ", " +
                      std::to_string(most) + (most == 1 ? " block like it has" : " blocks like it have") + " it");
    }
  }
}

/// A block behind the last one that is like the others is no draft layer, which has a bridge besides.
void look_behind(const Blocks& blocks, std::vector<std::string>& found) {
  for (auto at = blocks.names.lower_bound(blocks.count); at != blocks.names.end(); ++at) {
    const bool like = std::any_of(blocks.names.begin(), blocks.names.lower_bound(blocks.count),
                                  [&](const auto& block) { return block.second == at->second; });
    if (!like) continue;
    found.push_back(
        io::message("{}{}: left over, config.json counts {} blocks", blocks.before, at->first, blocks.count));
    return;
  }
}

/// The modules around the blocks of a decoder.
struct Surroundings {
  const io::Checkpoint& checkpoint;
  const io::Json& config;
  const CheckpointModules& modules;

  void look(const Blocks& blocks, std::vector<std::string>& found) const {
    const std::string parent = blocks.before.substr(0, blocks.before.rfind('.', blocks.before.size() - 2) + 1);
    const bool head = has(Role::head), words = has(Role::embedding);
    if (!words)
      found.push_back(io::message("{}embed_tokens.weight: missing, {}", parent,
                                  head && ties()
                                      ? "and the head is tied to it; rename the head's tensor, which has its values"
                                      : "no embedding of words"));
    if (has_norms(blocks) && !has_norm_outside())
      found.push_back(parent + "norm.weight: missing, blocks have norms and nothing behind them has");
    if (is_language_model() && !head) found.emplace_back("lm_head.weight: missing, and not tied to the embedding");
  }

  bool has(Role role) const {
    const auto& all = modules.all();
    return std::ranges::any_of(all, [&](const CheckpointModule& m) {
      return m.role == role && (!m.tied || ties()) && block_of_name(m.name).first.empty();
    });
  }
  bool ties() const {
    for (const io::Json* part : {&config, &language_config(config)}) {
      const auto tie = part->find("tie_word_embeddings");
      if (tie != part->end() && tie->is_boolean()) return tie->get<bool>();
    }
    return !modules.names().unties();
  }
  bool has_norms(const Blocks& blocks) const {
    const auto& first = blocks.names.begin()->second;
    return std::ranges::any_of(first, [&](const std::string& name) {
      return is_vector(blocks.before + std::to_string(blocks.names.begin()->first) + "." + name);
    });
  }
  bool has_norm_outside() const {
    const auto& names = checkpoint.names();
    return std::ranges::any_of(names, [&](const std::string& tensor) {
      return tensor.ends_with(kWeightEnd) && is_vector(tensor) && block_of_name(tensor).first.empty();
    });
  }
  bool is_vector(const std::string& tensor) const { return checkpoint.info(tensor).shape.size() == 1; }
  bool is_language_model() const {
    const auto classes = config.find("architectures");
    return classes != config.end() && classes->is_array() && classes->size() == 1 && classes->front().is_string() &&
           classes->front().get_ref<const std::string&>().ends_with("ForCausalLM");
  }
};

}  // namespace

std::vector<ReaderVerdict> check_readers(const std::filesystem::path& checkpoint, io::Spelling spelling) {
  return Check(checkpoint, spelling).verdicts();
}

std::vector<std::string> incomplete_parts(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules) {
  std::vector<std::string> found;
  if (!config.is_object()) return found;
  const auto& stacks = modules.stacks();
  if (!stacks.missing().empty() && modules.names().stable())
    found.push_back(stacks.missing() + ": missing, of the blocks that config.json counts; a draft of another class?");
  for (const auto& blocks : read_blocks(checkpoint, stacks)) {
    if (blocks.names.empty()) continue;
    look_at_sisters(blocks, kinds_of_layers(language_config(config), blocks.count), modules, found);
    look_behind(blocks, found);
    if (modules.names().stable()) Surroundings{checkpoint, config, modules}.look(blocks, found);
  }
  return found;
}

void require_plain_names(const io::Checkpoint& checkpoint) {
  const auto fail = [&](const std::string& tensor, const Wrapper& wrapper) {
    io::fail<io::Error>("{}: tensor {}: no model has '{}' in its names: it is {}", checkpoint.folder().string(),
                        io::in_quotes(tensor), wrapper.part, wrapper.advice);
  };
  bool parallel = !checkpoint.names().empty();
  for (const auto& tensor : checkpoint.names()) {
    parallel = parallel && tensor.starts_with("module.");
    for (const auto& wrapper : kWrappers)
      if (has_part(tensor, wrapper.part)) fail(tensor, wrapper);
  }
  if (parallel) fail(checkpoint.names()[0], kDataParallel);
}

std::vector<std::string> require_complete(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules) {
  require_plain_names(checkpoint);
  auto found = incomplete_parts(checkpoint, config, modules);
  if (!found.empty() && modules.names().known())
    io::fail<io::Error>("{}: {}", checkpoint.folder().string(), found.front());
  if (found.size() > 1) found.resize(1);
  return found;
}

}  // namespace fp8::quant
