// SPDX-License-Identifier: Apache-2.0

#include "fp8/quant/names/model_stacks.h"

namespace fp8::quant {
namespace {

/// Families whose files are known to be so; those of tools/models.
constexpr std::string_view kModelTypes =
    " bart bert bloom cohere cohere2 deberta-v2 deepseek_v2 deepseek_v3 distilbert electra ernie4_5 ernie4_5_moe "
    "exaone4 falcon gemma gemma2 gemma3 gemma3_text glm glm4 glm4_moe gpt2 gpt_neox gpt_oss gptj granite granitemoe "
    "hunyuan_v1_dense hunyuan_v1_moe llama llama4 llama4_text llava llava_next minimax_m2 mistral mistral3 mixtral "
    "mllama modernbert mpt mt5 nemotron olmo olmo2 olmoe opt phi phi3 phimoe qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 "
    "qwen3_moe roberta seed_oss smollm3 stablelm starcoder2 t5 xlm-roberta ";
/// Whose heads have a size of their own where "head_dim" is missing.
constexpr std::string_view kOwnHeadDim =
    " ernie4_5 gemma gemma2 gemma3_text glm glm4 gpt_oss llama4_text minimax_m2 mt5 qwen3 qwen3_moe seed_oss t5 ";

/// The shape of a matrix of such a name, [rows, columns]: sizes of Promises, "?" for any. The first row that matches
/// counts.
struct Rule {
  std::string_view patterns, rows, columns;
};
constexpr Rule kRules[] = {
    {"embed_tokens wte word_embeddings embed_in tok_embeddings ^shared model.shared", "words", "width"},
    {"lm_head embed_out vocab_projector generator_lm_head lm_head.decoder predictions.decoder", "vocab", "width"},
    {"wpe embeddings.position_embeddings", "positions", "?"},
    {"self_attn.q_proj attn.q_proj self.query self.query_proj attention.q_lin encoder_attn.q_proj SelfAttention.q "
     "EncDecAttention.q",
     "queries", "hidden"},
    {"self_attn.k_proj self_attn.v_proj attn.k_proj attn.v_proj self.key self.value self.key_proj self.value_proj "
     "attention.k_lin attention.v_lin encoder_attn.k_proj encoder_attn.v_proj SelfAttention.k SelfAttention.v "
     "EncDecAttention.k EncDecAttention.v",
     "keys", "hidden"},
    {"self_attn.o_proj self_attn.out_proj attn.out_proj attention.output.dense attention.out_lin self_attn.dense "
     "attention.dense self_attention.dense attn.Wo attn.c_proj encoder_attn.out_proj SelfAttention.o EncDecAttention.o",
     "hidden", "queries"},
    {"self_attn.qkv_proj query_key_value attn.Wqkv attn.c_attn", "qkv", "hidden"},
    {"feed_forward.shared_expert.gate_proj feed_forward.shared_expert.up_proj", "expert", "hidden"},
    {"encoder.layers.*.fc1", "encoder's inner", "hidden"},
    {"encoder.layers.*.fc2", "hidden", "encoder's inner"},
    {"mlp.gate_proj mlp.up_proj feed_forward.gate_proj feed_forward.up_proj mlp.fc1 mlp.fc_in mlp.c_fc layers.*.fc1 "
     "mlp.dense_h_to_4h intermediate.dense ffn.lin1 DenseReluDense.wi DenseReluDense.wi_0 DenseReluDense.wi_1",
     "inner", "hidden"},
    {"mlp.down_proj feed_forward.down_proj mlp.fc2 mlp.fc_out mlp.c_proj layers.*.fc2 mlp.dense_4h_to_h ffn.lin2 "
     "mlp.Wo output.dense DenseReluDense.wo",
     "hidden", "inner"},
    {"mlp.gate_up_proj mlp.Wi", "two inner", "hidden"},
    {"experts.*.gate_proj experts.*.up_proj experts.*.w1 experts.*.w3", "expert", "hidden"},
    {"experts.*.down_proj experts.*.w2", "hidden", "expert"},
    {"mlp.gate mlp.gate.wg mlp.router block_sparse_moe.gate block_sparse_moe.router.layer feed_forward.router",
     "experts", "hidden"},
};
/// Stacks of experts, [experts, ...], one of the next two sizes being gate's and up's rows together.
constexpr std::string_view kStacks = "experts.gate_up_proj experts.gate_up_proj_blocks block_sparse_moe.input_linear";

/// The sizes by their names in kRules; one that config.json leaves open has none.
class Promises {
 public:
  explicit Promises(const io::Json& config) : config_(config) {
    const auto set = [&](const char* name, std::optional<std::int64_t> value) {
      if (value.has_value()) sizes_[name] = *value;
    };
    set("hidden", first({"hidden_size", "n_embd", "d_model", "dim", "n_embed"}));
    set("vocab", first({"vocab_size"}));
    if (!has("cross_attention_layers")) set("words", first({"vocab_size"}));  // mllama has rows for images too
    set("width",
        first({"word_embed_proj_dim", "embedding_size", "hidden_size", "n_embd", "d_model", "dim", "n_embed"}));
    if (model_type() != "opt") set("positions", first({"n_positions", "max_position_embeddings"}));
    set("inner", first({"intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "hidden_dim",
                        "ffn_hidden_size", "d_ff", "decoder_ffn_dim"}));
    set("encoder's inner", first({"encoder_ffn_dim"}));
    if (has("inner", sizes_)) sizes_["two inner"] = 2 * sizes_["inner"];
    set("expert", first({"moe_intermediate_size", "intermediate_size"}));
    set("experts", first({"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}));
    set("layers", first({"num_hidden_layers", "n_layer", "n_layers"}));
    set("layers of the encoder", first({"encoder_layers", "num_layers"}));
    set("layers of the decoder", first({"decoder_layers", "num_decoder_layers", "num_layers"}));
    set_heads();
  }

  std::optional<std::int64_t> size(std::string_view name) const {
    const auto found = sizes_.find(name);
    return found == sizes_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string model_type() const {
    const auto type = config_.find("model_type");
    return type != config_.end() && type->is_string() ? type->get<std::string>() : "";
  }

 private:
  bool has(const char* key) const { return config_.contains(key) && !config_[key].is_null(); }
  static bool has(const char* name, const std::map<std::string, std::int64_t, std::less<>>& sizes) {
    return sizes.contains(name);
  }

  /// Of the first key that is there; none if that is no size. Such a config is refused where the model runs.
  std::optional<std::int64_t> first(std::initializer_list<const char*> keys) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;  // a product of two does not overflow
    for (const char* key : keys) {
      if (!has(key)) continue;
      const auto& value = config_[key];
      const bool size = value.is_number_unsigned() && value.get<std::uint64_t>() <= kMost;
      return size ? std::optional(value.get<std::int64_t>()) : std::nullopt;
    }
    return std::nullopt;
  }

  void set_heads() {
    const auto heads = first({"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"}),
               hidden = size("hidden");
    if (!heads.has_value() || *heads == 0 || has("kv_lora_rank")) return;
    auto head_dim = first({"head_dim", "d_kv"});
    const bool own = kOwnHeadDim.find(" " + model_type() + " ") != std::string_view::npos;
    if (!head_dim.has_value() && !own && hidden.has_value() && *hidden % *heads == 0) head_dim = *hidden / *heads;
    if (!head_dim.has_value()) return;
    sizes_["queries"] = *heads * *head_dim;
    if (model_type() == "falcon") return;  // which counts keys by three other keys
    const auto kv_heads = has("num_key_value_heads") ? first({"num_key_value_heads"}) : heads;
    if (!kv_heads.has_value()) return;
    sizes_["keys"] = *kv_heads * *head_dim;
    sizes_["qkv"] = (*heads + 2 * *kv_heads) * *head_dim;
  }

  const io::Json& config_;
  std::map<std::string, std::int64_t, std::less<>> sizes_;
};

[[noreturn]] void fail(const io::Checkpoint& checkpoint, const std::string& message) {
  io::fail<io::Error>("{}: {}", checkpoint.folder().string(), message);
}

void check(const io::Checkpoint& checkpoint, const io::TensorInfo& info, const Promises& promises, const Rule& rule,
           bool turned) {
  const auto rows = promises.size(rule.rows), columns = promises.size(rule.columns);
  const auto fits = [&](std::size_t row, std::size_t column) {
    return (!rows.has_value() || info.shape[row] == *rows) && (!columns.has_value() || info.shape[column] == *columns);
  };
  const bool codes = io::size_of(info.dtype) == 1;  // INC's stand transposed
  if (fits(turned ? 1 : 0, turned ? 0 : 1) || (codes && fits(1, 0))) return;
  std::vector<std::int64_t> asked = info.shape;
  asked[turned ? 1 : 0] = rows.value_or(asked[turned ? 1 : 0]);
  asked[turned ? 0 : 1] = columns.value_or(asked[turned ? 0 : 1]);
  fail(checkpoint, io::message("tensor '{}': found shape {}, config.json asks for {}", info.name,
                               io::shape_text(info.shape), io::shape_text(asked)));
}

void check_stack(const io::Checkpoint& checkpoint, const io::TensorInfo& info, const Promises& promises) {
  const auto experts = promises.size("experts"), inner = promises.size("expert");
  const bool counted = !experts.has_value() || info.shape[0] == *experts;
  const bool sized = !inner.has_value() || info.shape[1] == 2 * *inner || info.shape[2] == 2 * *inner;
  if (counted && sized) return;
  fail(checkpoint, io::message("tensor '{}': found shape {}, config.json asks for {} experts of {}", info.name,
                               io::shape_text(info.shape), experts.value_or(info.shape[0]), inner.value_or(0)));
}

/// Layers that are there, of all or of one of two stacks.
struct Layers {
  std::string before;  ///< "model.layers."
  std::int64_t last = -1;
};

/// Their names in Promises: a stack's where it has a number of its own.
std::string layers_of(const std::string& before, const Promises& promises) {
  for (const std::string stack : {"encoder", "decoder"})
    if (const std::string own = "layers of the " + stack;
        promises.size(own).has_value() && ("." + before).find("." + stack + ".") != std::string::npos)
      return own;
  return "layers";
}

/// True if `sizes` [rows, columns], of which one may be unknown, are those of `shape`, and not the other way round too.
std::optional<bool> stands_upright(const std::vector<std::int64_t>& shape, std::optional<std::int64_t> rows,
                                   std::optional<std::int64_t> columns) {
  const auto fits = [&](std::int64_t r, std::int64_t c) {
    return (!rows.has_value() || *rows == r) && (!columns.has_value() || *columns == c);
  };
  const bool upright = fits(shape[0], shape[1]), transposed = fits(shape[1], shape[0]);
  return upright == transposed ? std::nullopt : std::optional(upright);
}

}  // namespace

Orientation codes_orientation(const io::Checkpoint& checkpoint, const io::Json& whole) {
  const ModelNames names(whole);
  const Promises promises(language_config(whole));
  const bool known = kModelTypes.find(" " + names.model_type() + " ") != std::string_view::npos;
  bool upright = false, transposed = false;
  const auto note = [&](std::optional<bool> found) {
    if (found.has_value()) (*found ? upright : transposed) = true;
  };
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    if (io::size_of(info.dtype) != 1 || info.shape.size() != 2 || !info.name.ends_with(".weight")) continue;
    const std::string module = info.name.substr(0, info.name.size() - std::string_view(".weight").size());
    if (checkpoint.contains(module + ".bias") && checkpoint.info(module + ".bias").shape.size() == 1)
      note(stands_upright(info.shape, checkpoint.info(module + ".bias").shape[0], std::nullopt));
    if (!known || is_tower_name(module) || !names.tower_of(module).empty()) continue;
    const auto rule = std::ranges::find_if(kRules, [&](const Rule& r) { return matches_any(r.patterns, module); });
    if (rule != std::end(kRules) && !names.says(&Family::transposed, module))
      note(stands_upright(info.shape, promises.size(rule->rows), promises.size(rule->columns)));
  }
  return upright && transposed ? Orientation::mixed
         : upright             ? Orientation::upright
         : transposed          ? Orientation::transposed
                               : Orientation::unknown;
}

void require_promised_shapes(const io::Checkpoint& checkpoint, const io::Json& whole) {
  if (!whole.is_object()) return;
  const ModelNames names(whole);
  if (kModelTypes.find(" " + names.model_type() + " ") == std::string_view::npos) return;
  const Promises promises(language_config(whole));
  std::map<std::string, Layers> found;
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    constexpr std::string_view kWeight = ".weight";
    const bool weight = info.name.ends_with(kWeight);
    const std::string module = info.name.substr(0, info.name.size() - (weight ? kWeight.size() : 0));
    if (is_tower_name(module) || !names.tower_of(module).empty()) continue;
    if (const auto [before, layer] = block_of_name(info.name); !before.empty()) {
      auto& layers = found[layers_of(std::string(before), promises)];
      if (layer > layers.last) layers = {std::string(before), layer};
    }
    if (info.shape.size() > 2 && matches_any(kStacks, module)) check_stack(checkpoint, info, promises);
    if (!weight || info.shape.size() != 2) continue;
    const bool turned = names.says(&Family::transposed, module);
    const auto rule = std::ranges::find_if(kRules, [&](const Rule& r) { return matches_any(r.patterns, module); });
    if (rule != std::end(kRules)) check(checkpoint, info, promises, *rule, turned);
  }
  for (const auto& [what, layers] : found) {
    const auto promised = promises.size(what);
    if (promised.has_value() && layers.last + 1 < *promised)
      fail(checkpoint, io::message("tensors of '{}{}' are missing (config.json: {} {})", layers.before, *promised - 1,
                                   *promised, what));
  }
}

}  // namespace fp8::quant
