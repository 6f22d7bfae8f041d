// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/model_names.h"

#include "fp8/quant/names/readers.h"

namespace fp8::quant {
namespace {

using Text = std::string_view;

/// Names that most families share. What a row says comes first.
constexpr Text kEmbeddings =
    "embed_tokens wte wpe tok_embeddings word_embeddings token_embedding token_embeddings position_embeddings "
    "position_embedding token_type_embeddings relative_attention_bias embed_positions embed_in embeddings shared";
constexpr Text kHeads = "lm_head embed_out output_projection";
constexpr Text kRouters = "gate router shared_expert_gate router.layer router.proj router.classifier";
constexpr Text kTowers =
    "vision_tower. vision_model. vision_encoder. visual. audio_tower. audio_encoder. multi_modal_projector. "
    "mm_projector. vision_backbone. vision_adapter. audio_projector. vision_projector. connector. vision_projection. "
    "multi_modal_projector mm_projector vision_projection";
constexpr Text kKeyProjections =
    "k_proj qkv_proj query_key_value W_pack Wqkv c_attn kv_b_proj SelfAttention.k EncDecAttention.k";
constexpr Text kConv1d = "c_attn q_attn c_proj c_fc";
constexpr Text kRowParallel = "o_proj out_proj down_proj dense_4h_to_h fc2 w2 c_proj";
constexpr Text kTied =
    "lm_head=embed_tokens lm_head=wte lm_head=word_embeddings lm_head=shared lm_head=embed_in lm_head=tok_embeddings "
    "lm_head=embeddings";

/// Last parts that engines run as one product; the last is the only one whose rows may end inside a block.
constexpr std::array kFused = {
    std::array<Text, 3>{"q_proj", "k_proj", "v_proj"}, std::array<Text, 3>{"gate_proj", "up_proj", ""},
    std::array<Text, 3>{"q_a_proj", "kv_a_proj_with_mqa", ""}, std::array<Text, 3>{"w1", "w3", ""}};

/// Calls f with each of the texts between separators, until it returns true.
template <class F>
bool any_part(Text list, char separator, const F& f) {
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(separator, at), list.size());
    if (end > at && f(list.substr(at, end - at))) return true;
    at = end + 1;
  }
  return false;
}

std::vector<Text> parts_of(Text text, char separator = '.') {
  std::vector<Text> parts;
  any_part(text, separator, [&](Text part) {
    parts.push_back(part);
    return false;
  });
  return parts;
}

/// One part of a pattern against one of a name: `*` stands for any characters.
bool part_matches(Text pattern, Text part) {
  const std::size_t star = pattern.find('*');
  if (star == Text::npos) return pattern == part;
  if (part.substr(0, star) != pattern.substr(0, star)) return false;
  const Text rest = pattern.substr(star + 1);
  for (std::size_t at = star; at <= part.size(); ++at)
    if (part_matches(rest, part.substr(at))) return true;
  return false;
}

bool run_matches(const std::vector<Text>& pattern, const std::vector<Text>& name, std::size_t first) {
  for (std::size_t i = 0; i < pattern.size(); ++i)
    if (!part_matches(pattern[i], name[first + i])) return false;
  return true;
}

Text last_part(Text name) { return name.substr(name.rfind('.') + 1); }

/// `name` with its first run of whole parts equal to `from` replaced.
std::string replaced(const std::string& name, Text from, Text to) {
  const std::string dotted = "." + name + ".", wanted = "." + std::string(from) + ".";
  const auto at = dotted.find(wanted);
  if (at == std::string::npos) return name;
  const std::string middle = to.empty() ? "." : "." + std::string(to) + ".";
  const std::string out = dotted.substr(0, at) + middle + dotted.substr(at + wanted.size());
  return out.size() < 3 ? name : out.substr(1, out.size() - 2);
}

/// An entry of the cell `split`.
struct Split {
  Text module;
  std::vector<Text> parts;
  bool whole = false, by_turns = false;
};
Split split_of(Text entry) {
  Split split;
  split.whole = entry.front() == '!';
  if (split.whole) entry.remove_prefix(1);
  split.by_turns = entry.front() == '~';
  if (split.by_turns) entry.remove_prefix(1);
  const std::size_t arrow = entry.find('>');
  split.module = entry.substr(0, arrow);
  split.parts = parts_of(entry.substr(arrow + 1), '+');
  return split;
}

std::optional<Split> find_split(const std::vector<const Family*>& rows, Text module) {
  std::optional<Split> found;
  for (const auto* row : rows) {
    any_part(row->split, ' ', [&](Text entry) {
      Split split = split_of(entry);
      if (!matches_pattern(split.module, module)) return false;
      found = std::move(split);
      return true;
    });
    if (found.has_value()) break;
  }
  return found;
}

/// The model_types below `config` in the order of the file, that of parts of parts after their own.
void add_rows(const io::Json& config, int depth, std::vector<const Family*>& rows) {
  if (!config.is_object() || depth > 3) return;
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string()) {
    const Family* row = family_of(type->get_ref<const std::string&>());
    if (row != nullptr && std::ranges::find(rows, row) == rows.end()) rows.push_back(row);
  }
  for (const auto& [key, value] : config.items())
    if (value.is_object() && (key.ends_with("_config") || key == "encoder" || key == "decoder"))
      add_rows(value, depth + 1, rows);
}

}  // namespace

const Family* family_of(Text model_type) {
  for (const auto& row : model_families())
    if (any_part(row.model_types, ' ', [&](Text type) { return type == model_type; })) return &row;
  return nullptr;
}

bool matches_pattern(Text pattern, Text name) {
  const bool from_start = !pattern.empty() && pattern.front() == '^', below = !pattern.empty() && pattern.back() == '.';
  if (from_start) pattern.remove_prefix(1);
  if (!below && !pattern.empty() && pattern.find('*') == Text::npos) {  // nearly all, of a hundred thousand names
    if (from_start || name.size() <= pattern.size()) return name == pattern;
    return name.ends_with(pattern) && name[name.size() - pattern.size() - 1] == '.';
  }
  if (name.find(pattern.substr(0, pattern.find('*'))) == Text::npos) return false;
  const auto wanted = parts_of(pattern), parts = parts_of(name);
  if (wanted.empty() || parts.size() < wanted.size() + (below ? 1 : 0)) return false;
  const std::size_t last = parts.size() - wanted.size() - (below ? 1 : 0);
  if (from_start) return (below || last == 0) && run_matches(wanted, parts, 0);
  if (!below) return run_matches(wanted, parts, last);
  for (std::size_t first = 0; first <= last; ++first)
    if (run_matches(wanted, parts, first)) return true;
  return false;
}

bool has_part(Text name, Text part) {
  for (std::size_t at = name.find(part); at != Text::npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

bool matches_any(Text patterns, Text name) {
  return any_part(patterns, ' ', [&](Text pattern) { return matches_pattern(pattern, name); });
}

ModelNames::ModelNames(const io::Json& config) {
  if (!config.is_object()) return;
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string()) model_type_ = type->get<std::string>();
  known_ = family_of(model_type_) != nullptr;
  add_rows(config, 0, rows_);
}

std::vector<std::pair<std::string, std::string>> ModelNames::tied() const {
  std::vector<std::pair<std::string, std::string>> pairs;
  const auto add = [&](Text pair) {
    const std::size_t equal = pair.find('=');
    pairs.emplace_back(pair.substr(0, equal), pair.substr(equal + 1));
    return false;
  };
  for (const auto* row : rows_) any_part(row->tied, ' ', add);
  if (pairs.empty()) any_part(kTied, ' ', add);
  return pairs;
}

std::string mixture_of(const std::string& module) {
  constexpr Text kExperts = ".experts.";
  const auto at = module.find(kExperts), number = at + kExperts.size();
  const bool single =
      at != std::string::npos && number < module.size() && module[number] >= '0' && module[number] <= '9';
  return single ? module.substr(0, number - 1) : "";
}

std::string ModelNames::product_group_of(const std::string& module) const {
  if (std::string mixture = mixture_of(module); !mixture.empty()) return mixture;
  const Text last = last_part(module);
  std::string first;
  const auto holds = [&](Text group) {
    const auto members = parts_of(group, '+');
    if (std::ranges::find(members, last) == members.end()) return false;
    first = members.front();
    return true;
  };
  for (const auto* row : rows_)
    if (any_part(row->fused, ' ', holds)) return module.substr(0, module.size() - last.size()) + first;
  return fuse_group_of(module);
}

PartsOnLoad ModelNames::parts_on_load(Text module) const {
  const auto split = find_split(rows_, module);
  if (!split.has_value()) return {};
  return {static_cast<std::int64_t>(split->parts.size()), split->whole, split->by_turns};
}

std::vector<std::string> ModelNames::built() const {
  std::vector<std::string> names;
  for (const auto* row : rows_)
    for (const Text name : parts_of(row->built, ' ')) names.emplace_back(name);
  return names;
}

bool ModelNames::unties() const {
  return any_part(untied_types(), ' ', [&](Text type) { return type == model_type_; });
}

bool ModelNames::towers_stay() const {
  return std::ranges::any_of(rows_, [](const Family* row) { return row->towers_stay; });
}

std::string ModelNames::refused(const std::vector<std::string>& modules) const {
  const auto lacks = [&](Text pattern) {
    return std::ranges::none_of(modules, [&](const auto& name) { return matches_pattern(pattern, name); });
  };
  for (const auto* row : rows_) {
    if (!row->refused.empty()) return std::string(row->refused);
    for (const Text entry : parts_of(row->split, ' ')) {
      const Split split = split_of(entry);
      if (split.whole && lacks(split.module))
        return io::message(
            "transformers asks every quantized file of this family for the scales of {} and fails to load one without "
            "that module ({}: quantizers/base.py:375, core_model_loading.py:1247)",
            split.module, release_of(CheckpointReader::transformers));
    }
  }
  return "";
}

bool ModelNames::says(Text Family::*cell, Text module) const {
  return std::ranges::any_of(rows_, [&](const Family* row) { return matches_any(row->*cell, module); });
}

std::string ModelNames::tower_of(Text module) const {
  const auto parts = parts_of(module);
  std::string tower;
  const auto find = [&](Text pattern) {
    const auto wanted = parts_of(pattern.front() == '^' ? pattern.substr(1) : pattern);
    if (pattern.back() != '.' || !matches_pattern(pattern, module)) return false;
    std::size_t first = 0;
    while (!run_matches(wanted, parts, first)) ++first;
    for (std::size_t i = first; i < first + wanted.size(); ++i)
      tower += (i == first ? "" : ".") + std::string(parts[i]);
    return true;
  };
  for (const auto* row : rows_)
    if (any_part(row->towers, ' ', find)) return tower;
  any_part(kTowers, ' ', find);
  return tower;
}

std::vector<std::string> ModelNames::names_on_load(const std::string& module) const {
  std::vector<std::string> names{module};
  std::string name = module;
  for (const auto* row : rows_) {
    any_part(row->renamed, ' ', [&](Text change) {
      const std::size_t arrow = change.find('>');
      name = replaced(name, change.substr(0, arrow), change.substr(arrow + 1));
      return false;
    });
  }
  if (name != module) names.push_back(name);
  if (const auto split = find_split(rows_, module))
    for (const Text part : split->parts) names.push_back(replaced(name, split->module, part));
  return names;
}

bool is_embedding_name(Text module) { return matches_any(kEmbeddings, module); }
bool is_head_name(Text module) { return matches_any(kHeads, module); }
bool is_router_name(Text module) { return matches_any(kRouters, module); }
bool is_tower_name(Text module) { return matches_any(kTowers, module); }
bool is_conv1d_name(Text module) { return matches_any(kConv1d, module); }
bool is_key_projection(Text module) { return matches_any(kKeyProjections, module); }
bool is_row_parallel_name(Text module) { return matches_any(kRowParallel, module); }
std::array<int, 3> place_in_layer(Text module) {
  const bool attends = any_part(
      module, '.', [](Text part) { return part.find("attn") != Text::npos || part.find("ttention") != Text::npos; });
  int within = 0;
  for (const auto& group : kFused) {
    const auto found = std::ranges::find(group, last_part(module));
    if (found != group.end()) within = static_cast<int>(found - group.begin());
  }
  return {attends ? 0 : 1, is_router_name(module) ? 0 : is_row_parallel_name(module) ? 2 : 1, within};
}
bool is_adapter_name(Text module) {
  return any_part(module, '.', [](Text part) { return part.starts_with("lora_"); });
}

std::string fuse_group_of(const std::string& module) {
  const Text last = last_part(module);
  for (const auto& group : kFused) {
    if (std::ranges::find(group, last) == group.end()) continue;
    const auto dot = module.rfind('.');
    return (dot == std::string::npos ? "" : module.substr(0, dot)) + "." + std::string(group[0]);
  }
  return "";
}

bool is_last_of_group(Text module) {
  const Text last = last_part(module);
  return std::ranges::any_of(kFused,
                             [&](const auto& group) { return last == (group[2].empty() ? group[1] : group[2]); });
}

std::map<std::string, std::string> halved_groups(const ModelNames& names, const std::vector<std::string>& quantized,
                                                 const std::vector<std::string>& kept) {
  std::map<std::string, std::string> groups, halved;
  for (const auto& module : kept)
    if (const std::string group = names.product_group_of(module); !group.empty()) groups.emplace(group, module);
  if (groups.empty()) return halved;
  for (const auto& module : quantized)
    if (const auto group = groups.find(names.product_group_of(module)); group != groups.end())
      halved.emplace(module, group->second);
  return halved;
}

}  // namespace fp8::quant
