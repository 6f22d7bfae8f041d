// SPDX-License-Identifier: Apache-2.0
// The parts of a decoder. A family (families/) fills this in from config.json; attention.h, mlp.h and
// decoder.h run whatever it says.
//
//   h = embed(ids)
//   per layer   serial     h += attention(norm(h));  h += mlp(norm(h))     each sum's second term may pass a norm too
//               parallel   h += attention(norm(h)) + mlp(norm(h))
//   logits = head(norm(h))
//
// Shapes: hidden H, heads A, key/value heads K (A a multiple of K), head_dim D, inner F, vocabulary V; E experts.
#pragma once

#include "fp8/tools/models/base/model_config.h"

namespace fp8::models {

struct NormSpec {
  enum class Kind : std::uint8_t {
    rms,    ///< x / sqrt(mean(x^2) + eps)
    layer,  ///< (x - mean(x)) / sqrt(var(x) + eps)
  };
  Kind kind = Kind::rms;
  double eps = 1e-6;
  bool weight = true, bias = false;
  bool plus_one = false;  ///< the checkpoint holds weight - 1
  bool wide = false;      ///< rms: the product with the weight in f32 too, before the cast
};

/// How the rotary frequencies f_i = theta^(-2i/d), i < d/2, are stretched. Formulas: decoder_math.h.
struct RopeSpec {
  enum class Kind : std::uint8_t { none, linear, dynamic, llama3, yarn, longrope };
  Kind kind = Kind::none;
  double theta = 10000;
  std::int64_t dims = 0;  ///< d: the first d elements of a head turn
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;         ///< llama3
  std::int64_t original_max_position_embeddings = 0;        ///< all but linear; dynamic: max_position_embeddings
  double beta_fast = 32, beta_slow = 1;                     ///< yarn
  bool truncate = true;                                     ///< yarn
  std::vector<double> short_factor = {}, long_factor = {};  ///< longrope, [d / 2]
  double attention_factor = 1;                              ///< multiplies cos and sin
  double long_attention_factor = 0;                         ///< longrope: where long_factor is taken; 0: the same
};

enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, relu, relu2, tanh };

/// The settings in which a layer differs from the others.
struct LayerKind {
  std::int64_t window = 0;  ///< a token sees itself and window - 1 before it (encoders: and after it); 0: all
  std::int64_t chunk = 0;   ///< a token sees what is in its chunk of so many positions; 0: all
  int rope = 0;             ///< index into DecoderConfig::ropes; -1: none
  bool sparse = false;      ///< a mixture of experts in the place of the MLP
  bool absent = false;      ///< passes its input on unchanged: the layer looks at images

  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

/// How one projection holds q, k and v: rows of its weight.
enum class QkvLayout : std::uint8_t {
  separate,  ///< three projections
  stacked,   ///< [A D, K D, K D]
  per_head,  ///< [K, (A / K queries, key, value), D]
};

enum class HeadNorm : std::uint8_t {
  none,
  head,      ///< over D, one weight [D] for all heads
  per_head,  ///< over D, a weight [A, D]; [K, D]
  modules,   ///< as per_head, a module for each head
  whole,     ///< over all heads at once, a weight [A D]; [K D]
  unit,      ///< over D, no weight: llama4's norm of length
};

/// Multi-head latent attention: k and v come from a vector of kv_rank (+ rope elements that all heads share).
struct LatentSpec {
  std::int64_t q_rank = 0;  ///< 0: q is projected directly
  std::int64_t kv_rank = 0, nope = 0, rope = 0, value = 0;
};

struct AttentionSpec {
  std::int64_t head_dim = 0;
  double scale = 0;  ///< of q k^T
  bool q_bias = false, k_bias = false, v_bias = false, out_bias = false;
  QkvLayout layout = QkvLayout::separate;
  HeadNorm head_norm = HeadNorm::none;
  NormSpec norm = {};              ///< of head_norm
  bool norm_after_rotary = false;  ///< else before
  bool interleaved = false;        ///< element 2i turns with 2i + 1, not i with i + d/2
  double clip = 0;                 ///< q, k and v are held in [-clip, clip]; 0: not
  double soft_cap = 0;             ///< scores become cap tanh(score / cap); 0: not
  bool sinks = false;              ///< a score per head that takes part in the softmax and has no value
  bool by_layer = false;           ///< scores are divided by the layer's number, from 1
  double alibi_max = 0;            ///< scores get slope * key position, slopes 2^(-alibi_max i / A); 0: not
  double alibi_scale = 1;
  bool alibi_bf16 = false;  ///< slopes and their products with positions are rounded to bf16, whatever is computed in
  double tuning_scale = 0,
         tuning_floor = 1;  ///< q of layers without rotary: 1 + scale ln(1 + floor((pos + 1) / floor))
  std::optional<LatentSpec> latent;
};

/// Scores get a bias of each head for how far the key is from the query (T5's): one for each distance up to half the
/// buckets, then one for ever longer stretches, up to `reach`. Of an encoder half of the buckets are for keys behind
/// the query.
struct BucketSpec {
  std::int64_t count = 32, reach = 128;
};

/// Scores get products of q and k with a table of distances (DeBERTa's, attention.h).
struct DistanceSpec {
  std::int64_t span = 0;                ///< S: the table has a row for each of [-S, S)
  std::int64_t buckets = 0, reach = 0;  ///< far distances share rows, up to `reach`; buckets 0: each has its own
  bool c2p = false, p2c = false;        ///< content to position: q's; position to content: k's
  bool own_projections = false, normed = false;  ///< of the table: by its own, and through a norm first
};

/// Beside the first layer (attention.h).
struct ConvolutionSpec {
  std::int64_t kernel = 0, groups = 1;  ///< kernel: odd
  Activation activation = Activation::tanh;
};

struct MlpSpec {
  bool gated = true;  ///< down(act(gate(x)) * up(x)); else down(act(up(x)))
  Activation activation = Activation::silu;
  bool up_bias = false, down_bias = false;  ///< up_bias: of the gate too
  std::int64_t inner = 0;
};

/// How the router's logits choose top_k experts and weigh them.
enum class Routing : std::uint8_t {
  softmax,      ///< p = softmax(logits); the largest p
  top_softmax,  ///< the largest logits; softmax of them
  sigmoid,      ///< p = sigmoid(logits); chosen by p + correction bias, weighed by p
  sparsemixer,  ///< Phi-MoE's two choices, each with a softmax of what is near the largest
  input,        ///< sigmoid of the largest logits, multiplied with the expert's input
};

struct MoeSpec {
  std::int64_t experts = 0, top_k = 0, inner = 0;
  Routing routing = Routing::softmax;
  bool renormalize = false;  ///< the chosen weights are divided by their sum
  double sum_floor = 0;      ///< that sum is at least this; added where sum_added
  bool sum_added = false;
  double scaling = 1;                       ///< of the weights
  bool correction = false;                  ///< a bias for the choice, [E]
  bool correction_matrix = false;           ///< stored [1, E]
  std::int64_t groups = 1, top_groups = 1;  ///< of experts: others than the top_groups best are not chosen
  bool group_by_two = false;                ///< a group is as good as its two best; else as its best
  double jitter = 0;                        ///< sparsemixer
  std::int64_t shared_inner = 0;            ///< of the MLP that all tokens pass too; 0: none
  bool shared_gate = false;                 ///< whose output is weighed by sigmoid(gate(x))
  bool in_out = false;                      ///< stacks are [E, in, out]
  bool biased = false;                      ///< experts as GPT-OSS has them: biases, gate and up by turns
  bool router_bias = false;
  double swiglu_alpha = 1.702, swiglu_limit = 7;  ///< biased
};

/// The steps between the last layer and the head, beside projections: norm(act(dense(pool(h)))), each where it is
/// there.
struct HeadSpec {
  enum class Pool : std::uint8_t { none, first, mean };  ///< one hidden state of a text: the first one's, or the mean
  Pool pool = Pool::none;
  bool dense_bias = true;
  std::int64_t width = 0;  ///< of what dense gives; 0: H
  Activation activation = Activation::gelu;
  NormSpec norm = {};
};

/// The point at which words of another width than H are projected to it.
enum class WordProjection : std::uint8_t {
  first,   ///< before anything is added to them
  summed,  ///< after positions and types are, before the norm
  last,    ///< after the norm, with a bias
};

/// Names of modules, below the model or (of what is in a layer) below the layer; "": there is none.
struct DecoderNames {
  std::string words = "model.embed_tokens", positions, types, words_norm, project_in, rotary = "model.rotary_emb";
  std::string layers = "model.layers", project_out, norm = "model.norm", head = "lm_head";
  std::string own_head;  ///< a head that is not the word table, where it is called otherwise
  std::string head_dense, head_norm;
  std::string before_attention = "input_layernorm", after_attention;
  std::string before_mlp = "post_attention_layernorm", after_mlp;
  std::string attention = "self_attn", q = "q_proj", k = "k_proj", v = "v_proj", qkv, out = "o_proj";
  std::string q_norm = "q_norm", k_norm = "k_norm";
  std::string cross, before_cross, after_cross;  ///< attention to a source text, between attention and MLP
  std::string mlp = "mlp.", gate = "gate_proj", up = "up_proj", gate_up, down = "down_proj";  ///< mlp ends in a dot
  std::string moe = "mlp", router = "gate", correction = "gate.e_score_correction_bias";
  std::string shared = "shared_experts", shared_gate;
  std::string distances, distance_norm, distance_key, distance_query;  ///< the first two of the model
  std::string convolution;
};

struct DecoderConfig : ModelConfig {
  DecoderConfig() { shape.context = 2048; }
  void fit(const io::Checkpoint& checkpoint) override;
  void check(const io::Checkpoint& checkpoint) const override;
  const std::string& own_head() const { return names.own_head.empty() ? names.head : names.own_head; }
  const std::string& head() const { return tied ? names.head : own_head(); }

  std::string type = "Llama";  ///< first part of class names: LlamaForCausalLM, LlamaAttention
  std::string head_type = "ForCausalLM";
  DecoderNames names;
  NormSpec norm;
  AttentionSpec attend;
  std::vector<RopeSpec> ropes;
  MlpSpec mlp;
  MoeSpec moe;
  HeadSpec last;
  std::optional<BucketSpec> buckets;  ///< their table is in the first layer's attention, for all layers
  std::optional<DistanceSpec> distances;
  std::optional<ConvolutionSpec> convolution;
  std::vector<LayerKind> kinds;  ///< one per layer

  bool tied = false;  ///< the head is the word table, unless a checkpoint has another one
  bool head_bias = false;
  bool causal = true;               ///< else an encoder: a token sees those after it too
  bool of_images = false;           ///< the language part of a model of text and images
  bool parallel = false;            ///< attention and MLP take the same h
  bool norm_sums = false;           ///< after_attention and after_mlp are norms of the sums, not of what is added
  bool residual_is_normed = false;  ///< attention and MLP are added to their own input, which is normed
  bool transposed = false;          ///< weights of projections are stored [in, out] (Conv1D)
  std::int64_t word_width = 0;      ///< of the word table where it is not H
  std::int64_t extra_words = 0;     ///< rows of the word table beyond V
  std::int64_t token_types = 0;     ///< rows of a table whose first one is added to all words; 0: none
  WordProjection projection = WordProjection::first;
  bool first_norm = true;            ///< the first layer has its norm before attention
  std::int64_t position_offset = 0;  ///< of the table of positions
  double word_scale = 1, residual_scale = 1, logit_scale = 1, logit_cap = 0;
};

}  // namespace fp8::models
