// SPDX-License-Identifier: Apache-2.0
// Each family of decoders beside Llama, of equal widths: two layers, hidden 2048, inner 5632, 32 heads of 64, 8 experts
// of which 2 are chosen; random weights in fp8 with dynamic scales, activations in bf16.
//
//   per_flop   (time / multiply-adds of its matrices) over the same of llama: 1 is as fast for what it computes
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/serve.h"
#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/tools/models/decoder/description.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/registry.h"

namespace fp8::bench {
namespace {

constexpr std::int64_t kContext = 128, kVocabulary = 8192;
/// Of the logits, relative: the rounding of two layers, and experts that change where two are nearly as likely.
constexpr double kMostError = 0.5;

/// The sizes in all spellings: a family reads its own.
io::Json config_of(const std::string& model_type) {
  io::Json json = {{"model_type", model_type}, {"vocab_size", kVocabulary}, {"tie_word_embeddings", false}};
  const auto set = [&](std::int64_t value, std::initializer_list<const char*> keys) {
    for (const char* key : keys) json[key] = value;
  };
  set(2048, {"hidden_size", "n_embd", "d_model", "word_embed_proj_dim"});
  set(5632, {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp"});
  set(2, {"num_hidden_layers", "n_layer", "n_layers"});
  set(32, {"num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "num_kv_heads"});
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
  return json;
}

/// Multiply-adds of a token: of experts, those of the chosen ones.
double macs_of(const torch::nn::Module& model, const models::DecoderConfig& config) {
  double macs = 0;
  const double active =
      config.moe.experts > 0 ? static_cast<double>(config.moe.top_k) / static_cast<double>(config.moe.experts) : 0;
  for (const auto& item : model.named_parameters()) {
    const auto& name = item.key();
    if (item.value().dim() < 2 || name.starts_with(config.names.words) ||
        (!config.names.positions.empty() && name.starts_with(config.names.positions)))
      continue;
    macs += static_cast<double>(item.value().numel()) * (name.find(".experts.") != std::string::npos ? active : 1);
  }
  return macs;
}

/// A model with a cache that holds kContext tokens, and is put back to that after each step.
class Subject {
 public:
  explicit Subject(const std::string& model_type) {
    const auto config = models::parse_config(config_of(model_type), model_type);
    model_ = config.make();
    macs_ = macs_of(*model_, dynamic_cast<const models::DecoderConfig&>(*config.values));
    models::initialize(*model_, 0.02, 1, at::Device(at::kHPU, 0));
    model_->to(at::kBFloat16);
    model_->eval();
    const at::Tensor expected = model_->forward(tokens_).to(at::kCPU).to(at::kFloat);
    quant::convert(*model_, quant::PlanOptions{});
    quant::serve(*model_);
    cache_ = model_->make_cache(kContext + 1);
    const at::Tensor found = model_->forward(tokens_, cache_.get()).to(at::kCPU).to(at::kFloat);
    require(((found - expected).norm() / expected.norm()).item<double>() < kMostError, "families " + model_type);
  }
  void decode() {
    model_->forward(tokens_.narrow(1, 0, 1), cache_.get());
    cache_->advance(-1);
  }
  void prefill() { model_->forward(tokens_); }
  double macs() const { return macs_; }

 private:
  std::shared_ptr<models::CausalLM> model_;
  at::Tensor tokens_ = (at::arange(kContext, at::kLong) * 7919 % kVocabulary).unsqueeze(0).to(at::Device(at::kHPU, 0));
  std::unique_ptr<models::Cache> cache_;
  double macs_ = 0;
};

void bench_families(Runner& runner) {
  const at::NoGradGuard no_grad;
  if (runner.options().filter.empty()) return;  // minutes
  runtime::init();
  std::unique_ptr<Subject> llama;
  for (const auto& family : models::model_families()) {
    const auto& type = family.model_type;
    if (family.of_images ||
        (!runner.wants("families", "decode " + type) && !runner.wants("families", "prefill " + type)) ||
        models::parse_config(config_of(type), type).values->shape.task != models::Task::causal)
      continue;
    if (llama == nullptr) llama = std::make_unique<Subject>("llama");
    Subject subject(type);
    const auto print = [&](const char* phase, const std::vector<Time>& ns, double tokens) {
      Line line;
      line.kernel = "families";
      line.name = std::string(phase) + " " + type;
      line.ns = ns[0];
      line.macs = tokens * subject.macs();
      line.extra = {{"tokens_per_second", 1e9 * tokens / ns[0]},
                    {"per_flop", ns[0] / subject.macs() / (ns[1] / llama->macs())}};
      runner.print(line);
    };
    if (runner.wants("families", "decode " + type))
      print("decode", runner.medians({[&] { subject.decode(); }, [&] { llama->decode(); }}), 1);
    if (runner.wants("families", "prefill " + type))
      print("prefill", runner.medians({[&] { subject.prefill(); }, [&] { llama->prefill(); }}), kContext);
  }
}

const Registration kFamilies("families", bench_families);

}  // namespace
}  // namespace fp8::bench
