// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/modules.h"

#include "fp8/configs/name_patterns.h"
#include "fp8/quant/names/folded_names.h"

namespace fp8::quant {
namespace {

using configs::NamePatterns;

constexpr std::string_view kWeight = ".weight";
/// The keys of a config, at any depth, that count rows of a table.
constexpr std::string_view kCounts[] = {"vocab_size",
                                        "max_position_embeddings",
                                        "n_positions",
                                        "max_source_positions",
                                        "max_target_positions",
                                        "type_vocab_size",
                                        "relative_attention_num_buckets",
                                        "num_buckets",
                                        "max_2d_position_embeddings",
                                        "n_ctx",
                                        "codebook_size",
                                        "num_embeddings"};
/// Words that the last part of a table's name contains.
constexpr std::string_view kTableWords[] = {"embed",  "position",   "codebook", "relative_attention",
                                            "lookup", "token_type", "norm"};
/// Words that it contains if the module is a product all the same.
constexpr std::string_view kProductWords[] = {"proj", "mapping", "linear", "dense"};

bool ends_with_weight(const std::string& tensor) { return tensor.size() > kWeight.size() && tensor.ends_with(kWeight); }
std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }
std::string parent_of(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot + 1);
}

/// "layers.0.mlp.up_proj": some part in the middle is a number.
bool in_numbered_layer(const std::string& name) { return !block_of_name(name).first.empty(); }

void collect_counts(const io::Json& config, int depth, std::map<std::int64_t, std::string>& counts) {
  if (!config.is_object() || depth > 4) return;
  for (const auto& [key, value] : config.items()) {
    if (value.is_object()) collect_counts(value, depth + 1, counts);
    if (!value.is_number_integer()) continue;
    const bool named = std::ranges::any_of(kCounts, [&](std::string_view name) {
      return key == name || (key.ends_with(name) && key[key.size() - name.size() - 1] == '_');
    });
    const std::int64_t n = named ? value.get<std::int64_t>() : 0;
    if (n > 1) counts.try_emplace(n, key);
  }
}

/// True if config.json names a class with another head than that of a language model: "Qwen2ForTokenClassification".
/// Classes without "For" have no head at all, or one that their family's row knows.
bool names_labels(const io::Json& config) {
  constexpr std::string_view kLanguage[] = {"ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "ForPreTraining"};
  if (!config.is_object() || !config.contains("architectures") || !config["architectures"].is_array()) return false;
  return std::ranges::any_of(config["architectures"], [&](const io::Json& name) {
    if (!name.is_string()) return false;
    const auto& text = name.get_ref<const std::string&>();
    return text.find("For") != std::string::npos &&
           std::ranges::none_of(kLanguage, [&](std::string_view kind) { return text.find(kind) != std::string::npos; });
  });
}

}  // namespace

/// Decides a module's role.
class CheckpointModules::Judge {
 public:
  Judge(const io::Checkpoint& checkpoint, const io::Json& config, const ModelNames& names, const ModelStacks& stacks,
        const ModuleChoice& choice)
      : checkpoint_(checkpoint),
        names_(names),
        stacks_(stacks),
        towers_(choice.towers && !names.towers_stay()),
        tower_{Role::tower, names.towers_stay() ? kTowerStays : kTower, names.towers_stay()},
        scale_rows_(choice.scale_rows),
        linear_(choice.linear, io::option("linear")),
        keep_(choice.keep, io::option("keep")) {
    collect_counts(config, 0, counts_);
    labels_ = names_labels(config);
    for (const auto& tensor : checkpoint.names()) gpt2_ = gpt2_ || shows_conv1d(tensor);
  }

  void require_used_patterns() const {
    if (linear_.empty() && keep_.empty()) return;
    std::vector<std::string> names;
    for (const auto& tensor : checkpoint_.names())
      if (ends_with_weight(tensor)) names.push_back(tensor.substr(0, tensor.size() - kWeight.size()));
    linear_.require_used(names);
    keep_.require_used(names);
  }

  void decide(CheckpointModule& m) const {
    const Verdict verdict = verdict_on(m);
    m.role = verdict.role;
    m.why = verdict.why;
    m.final = verdict.final;
    m.certain = verdict.certain;
  }

 private:
  struct Verdict {
    Role role = Role::linear;
    std::string why = {};
    bool final = false, certain = false;
  };
  using Maybe = std::optional<Verdict>;

  Verdict verdict_on(const CheckpointModule& m) const {
    if (keep_.matches(m.name)) return {Role::other, "kept by " + io::option("keep"), true};
    if (m.shape.size() != 2) return {Role::other};
    if (linear_.matches(m.name)) return {};
    if (const Maybe said = by_row(m)) return *said;
    if (const Maybe proven = by_evidence(m)) return *proven;
    if (const Maybe called = by_name(m)) return *called;
    if (const Maybe looks = by_looks(m)) return *looks;
    return by_place(m).value_or(Verdict{});
  }

  Maybe by_row(const CheckpointModule& m) const {
    const auto says = [&](std::string_view Family::*cell) { return names_.says(cell, m.name); };
    const auto [parts, whole, by_turns] = names_.parts_on_load(m.name);
    if (parts > 0 && (scale_rows_ == 0 || m.shape[0] % (parts * scale_rows_) != 0 || (by_turns && scale_rows_ != 1))) {
      if (whole)
        io::fail<io::Error>(
            "{}: {}: transformers splits its {} rows into {} modules, and can do so in fp8 only with a scale per row, "
            "or with blocks that fit; {} channel writes these",
            checkpoint_.folder().string(), m.name, m.shape[0], parts, io::option("weights"));
      return Verdict{Role::cut, "readers split or join it by rows: its scales do not fit the parts", true};
    }
    if (whole) return Verdict{};
    if (says(&Family::cut))
      return Verdict{Role::cut, "readers cut it, merge it or use it without its module: its scale would be lost", true};
    if (says(&Family::transposed)) return Verdict{Role::transposed, "stored transposed, [in, out] (Conv1D)", true};
    if (says(&Family::embeddings)) return Verdict{Role::embedding, kDefault, false, true};
    if (says(&Family::heads)) return Verdict{Role::head, kDefault};
    if (says(&Family::routers)) return Verdict{Role::router, kRouter};
    if (says(&Family::others)) return Verdict{Role::other, "no Linear to readers", true};
    if (!towers_ && says(&Family::towers))
      return Verdict{Role::tower, tower_.why, tower_.final, is_embedding_name(m.name) && !has_bias(m, 0)};
    if (says(&Family::linears)) return Verdict{};
    return std::nullopt;
  }

  /// The role that the tensors beside it prove.
  Maybe by_evidence(const CheckpointModule& m) const {
    if (last_part(m.name) == "out_proj" && checkpoint_.contains(parent_of(m.name) + "in_proj_weight"))
      return Verdict{Role::cut, "torch's attention uses its weight without the module: its scale would be lost", true};
    if ((has_bias(m, 1) && !has_bias(m, 0)) || (gpt2_ && is_conv1d_name(m.name)))
      return Verdict{Role::transposed, "stored transposed, [in, out] (Conv1D)", true};
    return std::nullopt;
  }

  Maybe by_name(const CheckpointModule& m) const {
    if (is_head_name(m.name)) return Verdict{Role::head, kDefault};
    if (is_router_name(m.name)) return Verdict{Role::router, kRouter};
    if (is_embedding_name(m.name)) return Verdict{Role::embedding, kDefault, false, !has_bias(m, 0)};
    if (!towers_ && is_tower_name(m.name)) return tower_;
    return std::nullopt;
  }

  /// Words in the name, size and place.
  Maybe by_looks(const CheckpointModule& m) const {
    const std::string last = last_part(m.name);
    const auto has = [&](std::string_view word) { return last.find(word) != std::string::npos; };
    const bool bias = has_bias(m, 0), product = std::ranges::any_of(kProductWords, has);
    const bool table = std::ranges::any_of(kTableWords, has) || last == "emb" || last.ends_with("_emb");
    if (!bias && !product && table) return Verdict{Role::embedding, "a table by its name, kept in high precision"};
    if (m.shape[0] <= 1 || m.shape[1] <= 1)
      return Verdict{Role::other, "a single row or column, kept in high precision"};
    if (in_numbered_layer(m.name) || product) return std::nullopt;
    for (const std::int64_t padding : {0, 2}) {  // some tables of positions have two rows more
      const auto count = counts_.find(m.shape[0] - padding);
      if (count == counts_.end() || (padding != 0 && bias)) continue;
      return Verdict{bias ? Role::head : Role::embedding,
                     "its rows are the config's " + count->second + ", kept in high precision"};
    }
    return std::nullopt;
  }

  /// Of a model whose blocks are known, what stands outside of them is built by its own rules: bridges of draft layers,
  /// projectors, heads. Of others, at least the heads of a class that is no language model stay.
  Maybe by_place(const CheckpointModule& m) const {
    if (names_.says(&Family::outside, m.name) || (towers_ && is_of_tower(m.name))) return std::nullopt;
    if (stacks_.known() && !stacks_.holds(m.name)) return Verdict{Role::other, kOutside};
    if (!stacks_.known() && labels_ && !in_numbered_layer(m.name)) return Verdict{Role::head, kLabels};
    return std::nullopt;
  }
  bool is_of_tower(const std::string& module) const {
    return is_tower_name(module) || names_.says(&Family::towers, module);
  }

  /// A model that does not say what it is shows Conv1D by a c_attn three times as wide as tall, a c_fc wider than tall.
  bool shows_conv1d(const std::string& tensor) const {
    if (!ends_with_weight(tensor) || !is_conv1d_name(tensor.substr(0, tensor.size() - kWeight.size()))) return false;
    const auto& shape = checkpoint_.info(tensor).shape;
    if (shape.size() != 2) return false;
    return (tensor.ends_with("c_attn.weight") && shape[1] == 3 * shape[0]) ||
           (tensor.ends_with("c_fc.weight") && shape[1] > shape[0]);
  }

  bool has_bias(const CheckpointModule& m, std::size_t side) const {
    const std::string bias = m.name + ".bias";
    return checkpoint_.contains(bias) && checkpoint_.info(bias).shape == std::vector<std::int64_t>{m.shape[side]};
  }

  static constexpr char kDefault[] = "kept in high precision by default",
                        kRouter[] = "a router, kept in high precision",
                        kTower[] = "part of an audio or vision tower, kept in high precision",
                        kTowerStays[] = "part of a tower that no reader loads in fp8",
                        kOutside[] = "outside of the language model's blocks, kept in high precision",
                        kLabels[] = "a head of a class that is no language model, kept in high precision";

  const io::Checkpoint& checkpoint_;
  const ModelNames& names_;
  const ModelStacks& stacks_;
  const bool towers_;
  const Verdict tower_;
  const std::int64_t scale_rows_;
  bool gpt2_ = false, labels_ = false;
  const NamePatterns linear_, keep_;
  std::map<std::int64_t, std::string> counts_;
};

CheckpointModules::CheckpointModules(const io::Checkpoint& checkpoint, const io::Json& config,
                                     const ModuleChoice& choice)
    : names_(config), stacks_(checkpoint, config, names_) {
  const io::Json tie = config.is_object() ? config.value("tie_word_embeddings", io::Json(false)) : io::Json(false);
  if (!tie.is_boolean() && !tie.is_null())
    io::fail<io::Error>("{}: key 'tie_word_embeddings': found {}, allowed: true, false",
                        (checkpoint.folder() / io::kConfigFile).string(), io::printable(tie.dump(-1, ' ', true), 60));
  tied_ = tie == io::Json(true);
  const Judge judge(checkpoint, config, names_, stacks_, choice);
  judge.require_used_patterns();
  for (const auto& tensor : checkpoint.names()) {
    const auto& info = checkpoint.info(tensor);
    if (!ends_with_weight(tensor) || info.shape.size() < 2) continue;
    CheckpointModule m;
    m.name = tensor.substr(0, tensor.size() - kWeight.size());
    m.tensor = tensor;
    m.shape = info.shape;
    judge.decide(m);
    modules_.push_back(std::move(m));
  }
  take_lonely_towers();
  add_tied_heads(checkpoint, config.is_object() && config.contains("tie_word_embeddings") && !tied_);
  for (std::size_t i = 0; i < modules_.size(); ++i) by_name_.emplace(modules_[i].name, i);
}

/// Takes the tower as the model if nothing else is Linear.
void CheckpointModules::take_lonely_towers() {
  const auto is_linear = [](const CheckpointModule& m) { return m.role == Role::linear; };
  if (std::ranges::any_of(modules_, is_linear)) return;
  for (auto& m : modules_) {
    if (m.role != Role::tower) continue;
    if (m.certain) {
      m.role = Role::embedding;
      continue;
    }
    m.role = Role::linear;
    m.why.clear();
    m.final = false;
  }
}

/// Heads that readers build of the embedding. Most configs leave out that they do.
void CheckpointModules::add_tied_heads(const io::Checkpoint& checkpoint, bool untied) {
  std::set<std::string> heads;
  std::vector<CheckpointModule> found;
  for (const auto& [head, embedding] : names_.tied()) {
    if (checkpoint.contains(head + ".weight") || heads.contains(head)) continue;
    const auto at = std::ranges::find_if(modules_, [&, &pattern = embedding](const auto& m) {
      return matches_pattern(pattern, m.name) && m.role != Role::linear;
    });
    if (at == modules_.end() || (untied && at->name == kTiedEmbedding)) continue;
    heads.insert(head);
    CheckpointModule m;
    m.name = head;
    m.tensor = at->tensor;
    m.shape = at->shape;
    m.role = Role::head;
    m.why = "kept in high precision by default";
    m.tied = true;
    found.push_back(std::move(m));
  }
  modules_.insert(modules_.end(), found.begin(), found.end());
}

const CheckpointModule* CheckpointModules::find(const std::string& module) const {
  const auto found = by_name_.find(module);
  return found == by_name_.end() ? nullptr : &modules_[found->second];
}

std::map<std::string, std::string> CheckpointModules::halved_by(const std::vector<std::string>& quantized) const {
  const std::set<std::string_view> in_fp8(quantized.begin(), quantized.end());
  std::vector<std::string> kept;
  for (const auto& m : modules_)
    if (may_be_linear(m) && !in_fp8.contains(m.name)) kept.push_back(m.name);
  return halved_groups(names_, quantized, kept);
}

std::string CheckpointModules::type_of(const CheckpointModule& m) {
  if (m.shape.size() != 2) return "Conv" + std::to_string(m.shape.size() - 2) + "d";
  return m.role == Role::embedding ? "Embedding" : m.role == Role::transposed ? "Conv1D" : "Linear";
}

std::vector<std::pair<std::string, std::string>> CheckpointModules::guesses() const {
  std::vector<std::pair<std::string, std::string>> out;
  if (names_.known()) return out;
  std::vector<std::string> all;
  std::map<std::string, std::vector<std::string>> alike;  // by what they were taken for
  std::map<std::string, std::size_t> order;
  for (const auto& m : modules_) {
    if (m.shape.size() != 2) continue;
    order.emplace(m.name, all.size());
    all.push_back(m.name);
    alike[m.role == Role::linear ? name_of(m.role) : m.why].push_back(m.name);
  }
  const NameFolder folder(all);
  std::map<std::size_t, std::pair<std::string, std::string>> in_order;
  for (const auto& [what, names] : alike)
    for (const auto& folded : folder.fold(names)) in_order[order.at(folded.modules.front())] = {folded.name, what};
  for (auto& [place, guess] : in_order) out.push_back(std::move(guess));
  return out;
}

std::string CheckpointModules::notice() const {
  if (names_.known()) return "";
  std::vector<std::string> linear, others;
  for (const auto& [name, what] : guesses()) (what == name_of(Role::linear) ? linear : others).push_back(name);
  const auto linears = std::ranges::count_if(modules_, [](const auto& m) { return m.role == Role::linear; });
  const auto weights = std::ranges::count_if(modules_, [](const auto& m) { return m.shape.size() == 2; });
  return io::message(
      "unknown family {}: these {} weights were taken for Linear ({}), these {} were not ({}); {} and {} decide "
      "otherwise",
      io::in_quotes(names_.model_type()), linears, io::joined_first(linear), weights - linears,
      io::joined_first(others), io::option("linear"), io::option("keep"));
}

}  // namespace fp8::quant
