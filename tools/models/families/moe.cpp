// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts, and what the same families do without them.

#include "fp8/tools/models/families/families.h"

namespace fp8::models::families {
namespace {

/// Every `decoder_sparse_step`th layer but those in `mlp_only_layers`.
void read_sparse_steps(const ConfigReader& reader, DecoderConfig& config) {
  const auto step = reader.integer("decoder_sparse_step", 1, kMaxLayers, 1);
  set_sparse(config, step - 1, step);
  const auto* dense = reader.find("mlp_only_layers");
  if (dense == nullptr) return;
  const std::string allowed = "a list of layers from 0 to " + std::to_string(config.shape.layers - 1);
  if (!dense->is_array()) reader.fail("mlp_only_layers", allowed);
  for (const auto& layer : *dense) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= config.kinds.size())
      reader.fail("mlp_only_layers", allowed);
    config.kinds[layer.get<std::size_t>()].sparse = false;
  }
}

/// "n_group" and "topk_group", which divide the experts.
void read_groups(const ConfigReader& reader, MoeSpec& moe, std::int64_t groups, std::int64_t top_groups) {
  moe.groups = reader.integer("n_group", 1, moe.experts, groups);
  moe.top_groups = reader.integer("topk_group", 1, moe.groups, std::min(top_groups, moe.groups));
  if (moe.experts % moe.groups != 0) reader.fail("n_group", "a divisor of the experts " + std::to_string(moe.experts));
  const std::int64_t in_groups = moe.experts / moe.groups * moe.top_groups;
  if (moe.top_k > in_groups)
    reader.fail("topk_group", "groups of at least num_experts_per_tok " + std::to_string(moe.top_k) + " experts");
}

std::int64_t read_shared(const ConfigReader& reader, const char* key, std::int64_t usual) {
  return reader.integer(key, 0, 64, usual);
}

struct SigmoidDefaults {
  std::int64_t groups, top_groups;
  double scaling;
  std::int64_t dense;  ///< first layers without experts
};

/// A router by sigmoids with correction biases, groups, a shared expert; experts are known.
void read_sigmoid_router(const ConfigReader& reader, DecoderConfig& config, const SigmoidDefaults& usual) {
  auto& moe = config.moe;
  moe.routing = Routing::sigmoid;
  moe.correction = moe.group_by_two = true;
  read_groups(reader, moe, usual.groups, usual.top_groups);
  moe.renormalize = reader.boolean("norm_topk_prob", true);
  moe.sum_floor = 1e-20, moe.sum_added = true;
  moe.scaling = reader.number("routed_scaling_factor", 0, kMaxNumber, usual.scaling);
  moe.shared_inner = moe.inner * read_shared(reader, "n_shared_experts", 1);
  set_sparse(config, reader.integer("first_k_dense_replace", 0, kMaxLayers, usual.dense));
}

void name_block_sparse_moe(DecoderNames& names) {
  names.moe = "block_sparse_moe";
  names.correction = "e_score_correction_bias";
}

}  // namespace

void read_mixtral(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 4096 * 32}, .rope = {.theta = 1e6}, .eps = 1e-5});
  read_experts(reader, config, {"num_local_experts", "num_experts_per_tok", "intermediate_size", 8, 2});
  config.moe.renormalize = true;
  set_sparse(config);
  name_block_sparse_moe(config.names);
  read_window(reader, config);
}

void read_qwen2_moe(const ConfigReader& reader, DecoderConfig& config) {
  read_qwen2(reader, config);
  set_attention_bias(config, reader.boolean("qkv_bias", true), /*also_out=*/false);
  read_experts(reader, config, {"num_experts", "num_experts_per_tok", "moe_intermediate_size", 60, 4});
  config.moe.renormalize = reader.boolean("norm_topk_prob", false);
  config.moe.shared_inner = reader.integer("shared_expert_intermediate_size", 1, kMaxWidth, 5632);
  config.moe.shared_gate = true;
  config.names.shared = "shared_expert";
  config.names.shared_gate = "shared_expert_gate";
  read_sparse_steps(reader, config);
}

void read_qwen3_moe(const ConfigReader& reader, DecoderConfig& config) {
  read_qwen3(reader, config);
  // Published files have num_experts, those that transformers 5 writes num_local_experts.
  const char* experts = reader.find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  read_experts(reader, config, {experts, "num_experts_per_tok", "moe_intermediate_size", 128, 8});
  config.moe.renormalize = reader.boolean("norm_topk_prob", false);
  read_sparse_steps(reader, config);
}

void read_olmoe(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 4096}, .eps = 1e-5});
  read_experts(reader, config, {"num_experts", "num_experts_per_tok", "intermediate_size", 64, 8});
  config.moe.renormalize = reader.boolean("norm_topk_prob", false);
  set_sparse(config);
  config.attend.head_norm = HeadNorm::whole;
  if (reader.find("clip_qkv") != nullptr) config.attend.clip = reader.number("clip_qkv", 1e-6, kMaxNumber);
}

void read_granitemoe(const ConfigReader& reader, DecoderConfig& config) {
  read_granite(reader, config);
  read_experts(reader, config, {"num_local_experts", "num_experts_per_tok", "intermediate_size", 8, 2});
  config.moe.routing = Routing::top_softmax;
  set_sparse(config);
  name_block_sparse_moe(config.names);
  config.names.router = "router.layer";
}

void read_phimoe(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config, {.sizes = {.default_context = 4096 * 32}, .rope = {.theta = 1e6}, .eps = 1e-5});
  read_layer_norm(reader, config, "rms_norm_eps");
  read_experts(reader, config, {"num_local_experts", "num_experts_per_tok", "intermediate_size", 16, 2});
  if (config.moe.top_k != 2) reader.fail("num_experts_per_tok", "2 (its router makes two choices)");
  config.moe.routing = Routing::sparsemixer;
  // transformers takes the short factors whatever the length, and the long text's factor of cos and sin.
  for (auto& rope : config.ropes) rope.long_factor = rope.short_factor;
  config.moe.jitter = reader.number("router_jitter_noise", 0, 1, 0.01);
  config.head_bias = reader.boolean("lm_head_bias", false);
  set_sparse(config);
  name_block_sparse_moe(config.names);
  read_window(reader, config);
}

void read_llama4(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(
      reader, config,
      {.sizes = {.default_head_dim = 128, .default_context = 4096 * 32}, .rope = {.theta = 500000}, .eps = 1e-5});
  read_experts(reader, config, {"num_local_experts", "num_experts_per_tok", "intermediate_size", 16, 1});
  config.moe.routing = Routing::input;
  config.moe.in_out = true;
  config.moe.shared_inner = config.shape.inner;
  config.mlp.inner = reader.integer("intermediate_size_mlp", 1, kMaxWidth, 16384);
  auto& names = config.names;
  names.mlp = "feed_forward.";
  names.moe = "feed_forward";
  names.router = "router";
  names.shared = "shared_expert";
  const auto listed = reader.indices("moe_layers", config.kinds.size());
  const auto step = reader.integer("interleave_moe_layer_step", 1, kMaxLayers, 1);
  if (!listed.has_value()) set_sparse(config, step - 1, step);
  for (const auto layer : listed.value_or(std::vector<std::size_t>())) config.kinds[layer].sparse = true;
  auto& attend = config.attend;
  attend.interleaved = true;
  if (reader.boolean("use_qk_norm", true)) attend.head_norm = HeadNorm::unit;
  attend.norm_after_rotary = true;
  attend.norm.weight = false;
  const bool tuned = reader.find("attn_temperature_tuning") == nullptr ||
                     (reader.find("attn_temperature_tuning")->is_number()
                          ? reader.integer("attn_temperature_tuning", 0, kMaxPositions) != 0
                          : reader.boolean("attn_temperature_tuning", true));
  if (tuned) attend.tuning_scale = reader.number("attn_scale", 0, kMaxNumber, 0.1);
  attend.tuning_floor = reader.number("floor_scale", 1, kMaxPositions, 8192.0);
  const auto chunk = reader.integer("attention_chunk_size", 1, kMaxPositions, 8192);
  const auto* list = reader.find("no_rope_layers");
  std::optional<std::vector<std::size_t>> turning;
  if (list == nullptr || *list != io::Json::array())
    turning = read_each_layer(reader, config, "no_rope_layers", {0, 1});
  const auto chunked = read_each_layer(reader, config, "layer_types", {"full_attention", "chunked_attention"});
  const auto interval = reader.integer("no_rope_layer_interval", 1, kMaxLayers, 4);
  for (std::size_t i = 0; i < config.kinds.size(); ++i) {
    const bool turns = turning.has_value() ? (*turning)[i] == 1 : (static_cast<std::int64_t>(i) + 1) % interval != 0;
    config.kinds[i].rope = turns ? 0 : -1;
    config.kinds[i].chunk = (chunked.has_value() ? (*chunked)[i] == 1 : turns) ? chunk : 0;
  }
}

void read_glm4_moe(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config,
                  {.sizes = {.default_context = 131072}, .rope = {.partial = 0.5, .takes_partial = true}, .eps = 1e-5});
  config.attend.out_bias = false;
  if (reader.boolean("use_qk_norm", false)) config.attend.head_norm = HeadNorm::head;
  read_experts(reader, config, {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", 128, 8});
  read_sigmoid_router(reader, config, {.groups = 1, .top_groups = 1, .scaling = 1.0, .dense = 1});
}

void read_gpt_oss(const ConfigReader& reader, DecoderConfig& config) {
  read_llama_like(reader, config,
                  {.sizes = {.default_head_dim = 64, .default_context = 131072},
                   .rope = {.theta = 150000},
                   .eps = 1e-5,
                   .attention_bias = true});
  if (reader.find("rope_scaling") == nullptr && reader.find("rope_parameters") == nullptr) {
    const io::Json usual = {
        {"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}, {"original_max_position_embeddings", 4096}};
    const double theta = config.ropes[0].theta;
    config.ropes = {read_rope_object(reader.below("rope_scaling", usual), config, {.theta = theta})};
  }
  read_experts(reader, config, {"num_local_experts", "num_experts_per_tok", "intermediate_size", 128, 4});
  config.norm.wide = true;
  config.moe.routing = Routing::top_softmax;
  config.moe.biased = config.moe.router_bias = true;
  config.moe.swiglu_alpha = reader.number("swiglu_alpha", 0, kMaxNumber, 1.702);
  config.moe.swiglu_limit = reader.number("swiglu_limit", 1e-6, kMaxNumber, 7.0);
  set_sparse(config);
  config.names.router = "router";
  config.attend.sinks = true;
  read_layer_types(reader, config, 128, [](std::int64_t layer, std::int64_t) { return layer % 2 == 0; });
}

void read_hunyuan_moe(const ConfigReader& reader, DecoderConfig& config) {
  read_hunyuan_dense(reader, config);
  auto& moe = config.moe;
  const auto same = [&](const char* key, std::int64_t most, std::int64_t usual) {
    const auto* list = reader.find(key);
    if (list == nullptr || !list->is_array()) return reader.integer(key, 1, most, usual);
    if (list->empty() || !std::all_of(list->begin(), list->end(), [&](const auto& item) {
          return item.is_number_integer() && item == list->front();
        }))
      reader.fail(key, "one integer, or a list of equal ones");
    const io::Json one = {{key, list->front()}};
    return ConfigReader(one, reader.name()).integer(key, 1, most);
  };
  moe.experts = same("num_experts", kMaxExperts, 1);
  moe.top_k = same("moe_topk", moe.experts, 1);
  moe.inner = same("moe_intermediate_size", kMaxWidth, config.shape.inner);
  if (moe.inner != config.shape.inner)
    reader.fail("moe_intermediate_size", "intermediate_size " + std::to_string(config.shape.inner));
  moe.renormalize = true;
  moe.shared_inner = config.shape.inner;
  config.names.router = "gate.wg";
  config.names.shared = "shared_mlp";
  set_sparse(config);
}

void read_ernie4_5_moe(const ConfigReader& reader, DecoderConfig& config) {
  read_ernie4_5(reader, config);
  read_experts(reader, config, {"moe_num_experts", "moe_k", "moe_intermediate_size", 64, 6});
  auto& moe = config.moe;
  moe.correction = moe.correction_matrix = moe.renormalize = true;
  moe.sum_floor = reader.number("moe_norm_min", 0, 1, 1e-12);
  moe.shared_inner = moe.inner * read_shared(reader, "moe_num_shared_experts", 2);
  config.names.correction = "moe_statics.e_score_correction_bias";
  const auto last = config.shape.layers - 1, start = reader.integer("moe_layer_start_index", 0, kMaxLayers, 1);
  const auto given = reader.integer("moe_layer_end_index", -1, kMaxLayers, -1);
  const auto end = given == -1 ? last : given, step = reader.integer("moe_layer_interval", 1, kMaxLayers, 1);
  for (std::int64_t i = start; i <= std::min(end, last); ++i)
    config.kinds[static_cast<std::size_t>(i)].sparse = (i + 1) % step == 0;
}

void read_minimax_m2(const ConfigReader& reader, DecoderConfig& config) {
  const std::int64_t head_dim = reader.integer("head_dim", 1, kMaxHeadDim, 128);
  const std::int64_t dims = reader.integer("rotary_dim", 0, head_dim, 0);
  read_llama_like(reader, config,
                  {.sizes = {.default_head_dim = 128, .default_context = 196608},
                   .rope = {.theta = 5e6, .takes_partial = true, .dims = dims}});
  config.attend.head_norm = HeadNorm::whole;
  read_experts(reader, config, {"num_local_experts", "num_experts_per_tok", "intermediate_size", 256, 8});
  config.moe.routing = Routing::sigmoid;
  config.moe.correction = config.moe.renormalize = true;
  set_sparse(config);
  name_block_sparse_moe(config.names);
}

void read_deepseek_v2(const ConfigReader& reader, DecoderConfig& config) {
  read_sizes(reader, config, {.head_dim = ""});
  read_rms_norm(reader, config);
  read_tied(reader, config);
  read_activation(reader, config);
  LatentSpec latent;
  const bool direct = reader.find("q_lora_rank") == nullptr && (reader.is_null("q_lora_rank"));
  latent.q_rank = direct ? 0 : reader.integer("q_lora_rank", 1, kMaxWidth, 1536);
  latent.kv_rank = reader.integer("kv_lora_rank", 1, kMaxWidth, 512);
  latent.nope = reader.integer("qk_nope_head_dim", 1, kMaxHeadDim, 128);
  latent.rope = reader.integer("qk_rope_head_dim", 2, kMaxHeadDim, 64);
  latent.value = reader.integer("v_head_dim", 1, kMaxHeadDim, 128);
  auto& attend = config.attend;
  attend.latent = latent;
  attend.head_dim = latent.nope + latent.rope;
  attend.norm.eps = 1e-6;  // whatever rms_norm_eps says
  config.shape.kv_heads = config.shape.heads;
  set_attention_bias(config, reader.boolean("attention_bias", false));
  attend.interleaved = reader.boolean("rope_interleave", true);
  read_rope(reader, config, {.dims = latent.rope});
  attend.scale = 1 / std::sqrt(static_cast<double>(attend.head_dim));
  const char* key = reader.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  if (config.ropes[0].kind != RopeSpec::Kind::none) {
    const double all = reader.object(key).number("mscale_all_dim", 0, kMaxNumber, 0.0), factor = config.ropes[0].factor;
    const double magnitude = all == 0 || factor <= 1 ? 1 : 0.1 * all * std::log(factor) + 1;
    attend.scale *= magnitude * magnitude;
  }
  config.mlp.up_bias = config.mlp.down_bias = reader.boolean("mlp_bias", false);
  read_experts(reader, config, {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", 64, 6});
  auto& moe = config.moe;
  const auto method = reader.word("topk_method", {"greedy", "group_limited_greedy", "noaux_tc"}, "greedy");
  if (method == "group_limited_greedy") read_groups(reader, moe, 1, 1);
  if (config.type == "DeepseekV2" && method == "noaux_tc") reader.fail("topk_method", "greedy, group_limited_greedy");
  moe.scaling = reader.number("routed_scaling_factor", 0, kMaxNumber, 1.0);
  moe.shared_inner = moe.inner * read_shared(reader, "n_shared_experts", 2);
  set_sparse(config, reader.integer("first_k_dense_replace", 0, kMaxLayers, 0));
}

void read_deepseek_v3(const ConfigReader& reader, DecoderConfig& config) {
  read_deepseek_v2(reader, config);
  for (auto& kind : config.kinds) kind.sparse = false;
  read_sigmoid_router(reader, config, {.groups = 8, .top_groups = 4, .scaling = 2.5, .dense = 3});
}

}  // namespace fp8::models::families
