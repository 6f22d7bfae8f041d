// SPDX-License-Identifier: Apache-2.0
// The keys that configs of decoders have in common: keys of config.json -> DecoderConfig, ranges checked, before
// anything is allocated. Defaults are those of transformers.
//
// Two spellings of the rotary embedding are met: "rope_theta" + "rope_scaling" (transformers 4) and "rope_parameters"
// (5), which may have an object for each kind of layer.
#pragma once

#include "fp8/tools/models/decoder/description.h"

namespace fp8::models::families {

// Wide enough for any published model, narrow enough that no product of two overflows and no list gets large.
inline constexpr std::int64_t kMaxVocabulary = 1 << 24;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxHeadDim = 1 << 14;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxExperts = 4096;
inline constexpr std::int64_t kMaxPositions = 1 << 30;
inline constexpr double kMaxNumber = 1e6;  ///< of multipliers, caps and clips

/// The first of "architectures"; "": none.
std::string first_architecture(const ConfigReader& reader);

/// How a family calls its sizes; "": it has no such key.
struct SizeKeys {
  std::string hidden = "hidden_size", inner = "intermediate_size", layers = "num_hidden_layers";
  std::string heads = "num_attention_heads", kv_heads = "num_key_value_heads", context = "max_position_embeddings";
  std::string head_dim = "head_dim";
  std::int64_t default_head_dim = 0;  ///< 0: hidden / heads
  std::int64_t default_context = 2048;
};

/// vocab, hidden, layers, heads, kv_heads, head_dim, scale = 1 / sqrt(head_dim), context, inner (4 hidden where the key
/// is "" or null), one kind for all layers.
void read_sizes(const ConfigReader& reader, DecoderConfig& config, const SizeKeys& keys = {});

void read_rms_norm(const ConfigReader& reader, DecoderConfig& config, double eps = 1e-6,
                   const char* key = "rms_norm_eps");
/// With weight and bias.
void read_layer_norm(const ConfigReader& reader, DecoderConfig& config, const char* key = "layer_norm_epsilon",
                     double eps = 1e-5);

void read_activation(const ConfigReader& reader, DecoderConfig& config, const char* key = "hidden_act",
                     const char* fallback = "silu");

struct RopeKeys {
  double theta = 10000;
  double partial = 1;          ///< default of partial_rotary_factor
  bool takes_partial = false;  ///< else a factor other than 1 is refused
  std::int64_t dims = 0;       ///< that turn; 0: head_dim * partial_rotary_factor
};
/// One rotary embedding for all layers.
void read_rope(const ConfigReader& reader, DecoderConfig& config, const RopeKeys& keys = {});
/// Of one spelling: the keys of `rope`, whatever it is called. shape.context and attend.head_dim are read.
RopeSpec read_rope_object(const ConfigReader& rope, const DecoderConfig& config, const RopeKeys& keys);

/// Sets the window of sliding layers: those that "layer_types" calls so, or, where the key is missing, those that
/// `slides` says. window: 0 where "sliding_window" is missing or null. Throws for another kind of layer.
void read_layer_types(const ConfigReader& reader, DecoderConfig& config, std::int64_t default_window,
                      bool (*slides)(std::int64_t layer, std::int64_t pattern), std::int64_t pattern = 0);
/// Returns the choice of each layer in a list, as places in `choices` (values of its elements); empty: the key is
/// missing. Throws for a list that is too short, or has another element.
std::optional<std::vector<std::size_t>> read_each_layer(const ConfigReader& reader, const DecoderConfig& config,
                                                        const char* key, const std::vector<io::Json>& choices);
/// "sliding_window" of all layers: missing means `fallback` (0: none), null none.
void read_window(const ConfigReader& reader, DecoderConfig& config, std::int64_t fallback = 0);

/// Keys that transformers reads for every family, whatever its class says (5.23: masking_utils.py,
/// configuration_utils.py), and that no family computes otherwise than it is; names of one size that contradict.
void refuse_shared_keys(const ConfigReader& reader, bool causal);

void read_tied(const ConfigReader& reader, DecoderConfig& config, bool fallback = false);

/// q, k, v and (also_out) out.
void set_attention_bias(DecoderConfig& config, bool bias, bool also_out = true);

/// Llama's keys, whose values all descend from it share: sizes, norm, activation, rope, biases, tied.
struct LlamaKeys {
  SizeKeys sizes = {};
  RopeKeys rope = {};
  double eps = 1e-6;
  const char* activation = "silu";
  const char* activation_key = "hidden_act";
  bool tied = false, attention_bias = false;
};
void read_llama_like(const ConfigReader& reader, DecoderConfig& config, const LlamaKeys& keys = {});

/// "num_experts" and the like: experts, top_k, inner.
struct ExpertKeys {
  const char *experts, *top_k, *inner;
  std::int64_t default_experts, default_top_k;
};
void read_experts(const ConfigReader& reader, DecoderConfig& config, const ExpertKeys& keys);
/// Layers [first, end) step by step become sparse.
void set_sparse(DecoderConfig& config, std::int64_t first = 0, std::int64_t step = 1);

}  // namespace fp8::models::families
