// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {
namespace {

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
    return std::any_of(blocks.names.begin(), blocks.names.end(), [&](const auto& block) {
      const auto* m = modules.find(blocks.before + std::to_string(block.first) + "." + module);
      return m != nullptr && m->role == Role::linear;
    });
  };
  std::map<std::string, std::map<NameSet, std::vector<std::int64_t>>> by_kind;
  for (const auto& [number, names] : blocks.names) {
    if (number < blocks.count) by_kind[kinds[static_cast<std::size_t>(number)]][names].push_back(number);
  }
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
      if (of_first && std::none_of(lacking.begin(), lacking.end(), is_product)) continue;
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
    found.push_back(blocks.before + std::to_string(at->first) + ": left over, config.json counts " +
                    std::to_string(blocks.count) + " blocks");
    return;
  }
}

/// The modules around the blocks of a decoder.
class Surroundings {
 public:
  Surroundings(const io::Checkpoint& checkpoint, const io::Json& config, const CheckpointModules& modules)
      : checkpoint_(checkpoint), config_(config), modules_(modules) {}

  void look(const Blocks& blocks, std::vector<std::string>& found) const {
    const std::string parent = blocks.before.substr(0, blocks.before.rfind('.', blocks.before.size() - 2) + 1);
    const bool head = has(Role::head), words = has(Role::embedding);
    if (!words)
      found.push_back(parent + "embed_tokens.weight: missing, " +
                      (head && ties() ? "and the head is tied to it; rename the head's tensor, which has its values"
                                      : "no embedding of words"));
    if (has_norms(blocks) && !has_norm_outside())
      found.push_back(parent + "norm.weight: missing, blocks have norms and nothing behind them has");
    if (is_language_model() && !head) found.emplace_back("lm_head.weight: missing, and not tied to the embedding");
  }

 private:
  bool has(Role role) const {
    const auto& all = modules_.all();
    return std::any_of(all.begin(), all.end(), [&](const CheckpointModule& m) {
      return m.role == role && (!m.tied || ties()) && block_of_name(m.name).first.empty();
    });
  }
  bool ties() const {
    for (const io::Json* part : {&config_, &language_config(config_)}) {
      const auto tie = part->find("tie_word_embeddings");
      if (tie != part->end() && tie->is_boolean()) return tie->get<bool>();
    }
    return !modules_.names().unties();
  }
  bool has_norms(const Blocks& blocks) const {
    const auto& first = blocks.names.begin()->second;
    return std::any_of(first.begin(), first.end(), [&](const std::string& name) {
      return is_vector(blocks.before + std::to_string(blocks.names.begin()->first) + "." + name);
    });
  }
  bool has_norm_outside() const {
    const auto& names = checkpoint_.names();
    return std::any_of(names.begin(), names.end(), [&](const std::string& tensor) {
      return tensor.ends_with(kWeightEnd) && is_vector(tensor) && block_of_name(tensor).first.empty();
    });
  }
  bool is_vector(const std::string& tensor) const { return checkpoint_.info(tensor).shape.size() == 1; }
  bool is_language_model() const {
    const auto classes = config_.find("architectures");
    return classes != config_.end() && classes->is_array() && classes->size() == 1 && classes->front().is_string() &&
           classes->front().get_ref<const std::string&>().ends_with("ForCausalLM");
  }

  const io::Checkpoint& checkpoint_;
  const io::Json& config_;
  const CheckpointModules& modules_;
};

}  // namespace

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
    if (modules.names().stable()) Surroundings(checkpoint, config, modules).look(blocks, found);
  }
  return found;
}

void require_plain_names(const io::Checkpoint& checkpoint) {
  const auto fail = [&](const std::string& tensor, const Wrapper& wrapper) {
    throw io::Error(checkpoint.folder().string() + ": tensor " + io::in_quotes(tensor) + ": no model has '" +
                    std::string(wrapper.part) + "' in its names: it is " + std::string(wrapper.advice));
  };
  bool parallel = !checkpoint.names().empty();
  for (const auto& tensor : checkpoint.names()) {
    parallel = parallel && tensor.starts_with("module.");
    for (const auto& wrapper : kWrappers) {
      if (has_part(tensor, wrapper.part)) fail(tensor, wrapper);
    }
  }
  if (parallel) fail(checkpoint.names()[0], kDataParallel);
}

std::vector<std::string> require_complete(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules) {
  require_plain_names(checkpoint);
  auto found = incomplete_parts(checkpoint, config, modules);
  if (!found.empty() && modules.names().known()) throw io::Error(checkpoint.folder().string() + ": " + found.front());
  if (found.size() > 1) found.resize(1);
  return found;
}

}  // namespace fp8::quant
