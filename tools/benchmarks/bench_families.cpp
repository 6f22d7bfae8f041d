// SPDX-License-Identifier: Apache-2.0
// Each family beside Llama, of equal widths: two layers (of an encoder and of a decoder, where it has both), hidden
// 2048, inner 5632, 32 heads of 64, 8 experts of which 2 are chosen; random weights in fp8 with dynamic scales,
// activations in bf16.
//
//   prefill    128 tokens at once, with logits of all; of models that answer a source text: 128 of each
//   decode     one more token, over a cache of 128; encoders have none
//   per_flop   (time / multiply-adds of its matrices) over the same of llama: 1 is as fast for what it computes
//
// A whole model, token by token (decode, after a context of 128) and 128 tokens at once (prefill): fp8 weights with
// dynamic scales of tokens beside the same model in bf16. Llama of random weights:
//
//   name    hidden   inner   layers   heads, kv heads   vocabulary
//   0.1B       768    2048       12     12, 4             32000
//   1.1B      2048    5632       22     32, 4             32000      TinyLlama's shape
//   3B        3200    8640       26     32, 32            32000      Open Llama's shape; 12 GB of memory
//
// Without a filter the smallest alone. bytes: of all weights.
#include <ATen/ops/arange.h>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"

namespace fp8::bench::families_cases {
namespace {

constexpr std::int64_t kContext = 128;
/// Of the logits, relative: the rounding of two layers, and experts that change where two are nearly as likely.
constexpr double kMostError = 0.5;

/// The sizes in all spellings: a family reads its own, the language parts of models of text and images in an object.
io::Json sizes_of(const std::string& model_type) {
  io::Json json = {{"vocab_size", 8192}, {"tie_word_embeddings", model_type == "bart"}};
  const auto set = [&](std::int64_t value, std::initializer_list<const char*> keys) {
    for (const char* key : keys) json[key] = value;
  };
  set(2048, {"hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "dim", "embedding_size"});
  set(5632, {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp", "hidden_dim",
             "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"});
  set(2, {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"});
  set(32, {"num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "num_kv_heads", "num_heads",
           "encoder_attention_heads", "decoder_attention_heads"});
  set(64, {"head_dim", "rotary_dim", "qk_nope_head_dim", "v_head_dim", "query_pre_attn_scalar"});
  set(2048, {"max_position_embeddings", "n_positions", "max_seq_len"});
  set(8, {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"});
  set(2, {"num_experts_per_tok", "moe_k", "moe_topk"});
  if (model_type.starts_with("hunyuan"))
    json["moe_intermediate_size"] = nullptr;
  else
    set(2816, {"moe_intermediate_size", "shared_expert_intermediate_size"});
  set(32, {"qk_rope_head_dim"});
  set(256, {"kv_lora_rank", "q_lora_rank"});
  set(1, {"n_group", "topk_group", "first_k_dense_replace", "moe_layer_start_index", "moe_num_shared_experts"});
  json["new_decoder_architecture"] = model_type == "falcon";  // else all heads share one key
  json["multi_query"] = false;
  json["cross_attention_layers"] = io::Json::array();
  json.update({{"relative_attention", true},  // of DeBERTa's third version
               {"pos_att_type", "p2c|c2p"},
               {"position_buckets", 256},
               {"share_att_key", true},
               {"norm_rel_ebd", "layer_norm"},
               {"position_biased_input", false}});
  return json;
}

/// Encoders are those of masked language models.
models::FamilyConfig config_of(const std::string& model_type) {
  auto json = sizes_of(model_type);
  json["text_config"] = json;
  json["model_type"] = model_type;
  auto config = models::parse_config(json, model_type);
  if (config.values->shape.task != models::Task::embed) return config;
  json["architectures"] = {"ForMaskedLM"};
  return models::parse_config(json, model_type);
}

/// The work of one forward.
struct Work {
  double tokens = 0, macs = 0;
};

/// Multiply-adds of a token with the matrices that `counts` lets through: all but tables of embeddings. active: the
/// part of the experts that is chosen.
double macs_of(const torch::nn::Module& model, double active,
               const std::function<bool(const std::string& parameter)>& counts) {
  std::set<std::string> tables;
  for (const auto& item : model.named_modules())
    if (item.value()->as<torch::nn::Embedding>() != nullptr) tables.insert(item.key() + ".weight");
  double macs = 0;
  for (const auto& item : model.named_parameters()) {
    const auto& name = item.key();
    if (item.value().dim() < 2 || name.ends_with("bias") || tables.contains(name) || !counts(name)) continue;
    macs += static_cast<double>(item.value().numel()) * (name.find(".experts.") != std::string::npos ? active : 1);
  }
  return macs;
}

double all_macs_of(const torch::nn::Module& model, double active = 1) {
  return macs_of(model, active, [](const std::string&) { return true; });
}

/// Of a forward of kContext tokens. DeBERTa's layers also project the rows of the distances in it.
Work prefill_of(const torch::nn::Module& model, const models::ModelConfig& values) {
  const double tokens = kContext;
  if (values.shape.task == models::Task::answer) return {2 * tokens, tokens * all_macs_of(model)};
  const auto& config = dynamic_cast<const models::DecoderConfig&>(values);
  const auto& moe = config.moe;
  const double active = moe.experts > 0 ? static_cast<double>(moe.top_k) / static_cast<double>(moe.experts) : 0;
  double macs = tokens * all_macs_of(model, active);
  if (const auto& distances = config.distances) {
    const auto projections = config.shape.layers * (distances->c2p + distances->p2c);
    macs += static_cast<double>(projections * (2 * kContext - 1) * config.shape.hidden * config.shape.hidden);
  }
  return {tokens, macs};
}

/// Of one more token. An answer's: its source was read, keys and values of it are known.
Work decode_of(const torch::nn::Module& model, const models::ModelConfig& values, const Work& prefill) {
  const auto* config = dynamic_cast<const models::EncoderDecoderConfig*>(&values);
  if (config == nullptr) return {1, prefill.macs / prefill.tokens};
  const auto& names = config->decoder.names;
  const auto is_known = [&](const std::string& parameter) {
    return parameter.ends_with(names.cross + "." + names.k + ".weight") ||
           parameter.ends_with(names.cross + "." + names.v + ".weight");
  };
  return {1, macs_of(model, 1, [&](const std::string& parameter) {
            return !parameter.starts_with(config->encoder.names.layers + ".") && !is_known(parameter);
          })};
}

/// T5 does not scale its scores: the weights of its queries are small.
void shrink_queries(const torch::nn::Module& model, const models::ModelConfig& values) {
  const auto* config = dynamic_cast<const models::EncoderDecoderConfig*>(&values);
  if (config == nullptr || config->decoder.attend.scale != 1) return;
  for (auto& item : model.named_parameters())
    if (item.key().ends_with("." + config->decoder.names.q + ".weight"))
      item.value().mul_(1 / std::sqrt(static_cast<double>(config->decoder.attend.head_dim)));
}

/// A model, with a cache (but for encoders) that holds kContext tokens, and is put back to that after each step.
class Subject {
 public:
  /// name: in messages. most_error: of the logits in fp8, relative.
  Subject(const models::FamilyConfig& config, const std::string& name, double most_error, bool fp8 = true) {
    const auto& shape = config.values->shape;
    if (shape.task == models::Task::answer) source_ = kContext;
    tokens_ = (at::arange(source_ + kContext, at::kLong) * 7919 % shape.vocab).unsqueeze(0);
    tokens_ = tokens_.to(at::Device(at::kHPU, 0));
    model_ = config.make();
    of_prefill = prefill_of(*model_, *config.values);
    if (shape.task != models::Task::masked) of_decode = decode_of(*model_, *config.values, of_prefill);
    models::initialize(*model_, 0.02, 1, at::Device(at::kHPU, 0));
    shrink_queries(*model_, *config.values);
    model_->to(at::kBFloat16);
    model_->eval();
    const at::Tensor expected = read(nullptr).to(at::kCPU).to(at::kFloat);
    if (fp8) {
      quant::convert(*model_, quant::PlanOptions{});
      quant::serve(*model_);
    }
    if (shape.task != models::Task::masked) cache_ = model_->make_cache(kContext + 1);
    const at::Tensor found = read(cache_.get()).to(at::kCPU).to(at::kFloat);
    require(((found - expected).norm() / expected.norm()).item<double>() < most_error, name);
  }
  void prefill() { read(nullptr); }
  void decode() {
    model_->forward(tokens_.narrow(1, source_, 1), cache_.get());
    cache_->advance(-1);
  }
  double bytes() const { return static_cast<double>(models::weights_bytes(*model_)); }

  Work of_prefill, of_decode;  ///< no tokens: it does not do that

 private:
  at::Tensor read(models::Cache* cache) {
    return model_->forward(tokens_, cache, models::CausalLM::Logits::all, source_);
  }

  std::shared_ptr<models::CausalLM> model_;
  std::int64_t source_ = 0;  ///< the first so many tokens are a source text
  at::Tensor tokens_;
  std::unique_ptr<models::Cache> cache_;
};

struct Phase {
  const char* name;
  void (Subject::*run)();
  Work Subject::*work;
};
constexpr Phase kPhases[] = {{"decode", &Subject::decode, &Subject::of_decode},
                             {"prefill", &Subject::prefill, &Subject::of_prefill}};

void bench_families(Runner& runner) {
  const at::NoGradGuard no_grad;
  if (runner.options().filter.empty()) return;  // minutes
  runtime::init();
  std::unique_ptr<Subject> llama;
  for (const auto& family : models::model_families()) {
    const auto& type = family.model_type;
    const auto wants = [&](const Phase& phase) { return runner.wants(std::string(phase.name) + " " + type); };
    if (std::ranges::none_of(kPhases, wants)) continue;
    if (llama == nullptr) llama = std::make_unique<Subject>(config_of("llama"), "families llama", kMostError);
    Subject subject(config_of(type), "families " + type, kMostError);
    for (const auto& phase : kPhases) {
      const auto &work = subject.*phase.work, &of_llama = (*llama).*phase.work;
      if (!wants(phase) || work.tokens == 0) continue;
      const auto ns = runner.medians({[&] { (subject.*phase.run)(); }, [&] { ((*llama).*phase.run)(); }});
      runner.print({.name = std::string(phase.name) + " " + type,
                    .ns = ns[0],
                    .macs = work.macs,
                    .extra = {{"tokens_per_second", 1e9 * work.tokens / ns[0]},
                              {"per_flop", ns[0] / work.macs / (ns[1] / of_llama.macs)}}});
    }
  }
}

const Registration kFamilies("families", bench_families);

struct Size {
  const char* name;
  std::int64_t hidden, inner, layers, heads, kv_heads;
};
constexpr Size kSizes[] = {
    {"0.1B", 768, 2048, 12, 12, 4}, {"1.1B", 2048, 5632, 22, 32, 4}, {"3B", 3200, 8640, 26, 32, 32}};

models::FamilyConfig llama_of(const Size& size) {
  const io::Json json = {{"model_type", "llama"},
                         {"vocab_size", 32000},
                         {"hidden_size", size.hidden},
                         {"intermediate_size", size.inner},
                         {"num_hidden_layers", size.layers},
                         {"num_attention_heads", size.heads},
                         {"num_key_value_heads", size.kv_heads}};
  return models::parse_config(json, size.name);
}

void bench_model(Runner& runner) {
  const at::NoGradGuard no_grad;
  for (const auto& size : kSizes) {
    const auto wants = [&](const Phase& phase) { return runner.wants(std::string(phase.name) + " " + size.name); };
    if (std::ranges::none_of(kPhases, wants) || (runner.options().filter.empty() && size.hidden > 1000)) continue;
    runtime::init();
    // Each half of a layer adds the rounding of three operands or so, 2^-4 / sqrt(6) each, to what it is given.
    const double bound = 0.08 * std::sqrt(2.0 * static_cast<double>(size.layers));
    Subject fp8(llama_of(size), std::string("model ") + size.name, bound);
    Subject bf16(llama_of(size), std::string("model in bf16 ") + size.name, bound, /*fp8=*/false);
    for (const auto& phase : kPhases) {
      if (!wants(phase)) continue;
      const auto ns = runner.medians({[&] { (fp8.*phase.run)(); }, [&] { (bf16.*phase.run)(); }});
      const double tokens = (fp8.*phase.work).tokens;
      runner.print({.name = std::string(phase.name) + " " + size.name,
                    .ns = ns[0],
                    .bytes = fp8.bytes(),
                    .torch_ns = ns[1],
                    .extra = {{"tokens_per_second", 1e9 * tokens / ns[0]},
                              {"bf16_tokens_per_second", 1e9 * tokens / ns[1]},
                              {"bf16_weights_bytes", bf16.bytes()}}});
    }
  }
}

const Registration kModel("model", bench_model);

}  // namespace
}  // namespace fp8::bench::families_cases
