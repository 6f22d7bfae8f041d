// SPDX-License-Identifier: Apache-2.0
// A whole model, token by token (decode, after a context of 128) and 128 tokens at once (prefill): fp8 weights with
// dynamic scales of tokens beside the same model in bf16. Llama of random weights:
//
//   name    hidden   inner   layers   heads, kv heads   vocabulary
//   0.1B       768    2048       12     12, 4             32000
//   1.1B      2048    5632       22     32, 4             32000      TinyLlama's shape
//   3B        3200    8640       26     32, 32            32000      Open Llama's shape; 12 GB of memory
//
// Without a filter the smallest alone. bytes: of all weights.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"

namespace fp8::bench::model_cases {
namespace {

constexpr std::int64_t kContext = 128, kVocabulary = 32000;

struct Size {
  const char* name;
  std::int64_t hidden, inner, layers, heads, kv_heads;
};
constexpr Size kSizes[] = {
    {"0.1B", 768, 2048, 12, 12, 4}, {"1.1B", 2048, 5632, 22, 32, 4}, {"3B", 3200, 8640, 26, 32, 32}};

std::shared_ptr<models::CausalLM> make_llama(const Size& size) {
  const io::Json json = {{"model_type", "llama"},
                         {"vocab_size", kVocabulary},
                         {"hidden_size", size.hidden},
                         {"intermediate_size", size.inner},
                         {"num_hidden_layers", size.layers},
                         {"num_attention_heads", size.heads},
                         {"num_key_value_heads", size.kv_heads}};
  return models::parse_config(json, size.name).make();
}

/// A model with a cache that holds kContext tokens, and is put back to that after each step.
class Subject {
 public:
  Subject(const Size& size, bool fp8) : model_(make_llama(size)) {
    models::initialize(*model_, 0.02, 1, at::Device(at::kHPU, 0));
    model_->to(at::kBFloat16);
    model_->eval();
    if (fp8) {
      quant::convert(*model_, quant::PlanOptions{});
      quant::serve(*model_);
    }
    cache_ = model_->make_cache(kContext + 1);
    logits_ = model_->forward(tokens_, cache_.get());
  }

  void decode() {
    model_->forward(tokens_.narrow(1, 0, 1), cache_.get());
    cache_->advance(-1);
  }
  void prefill() { model_->forward(tokens_); }
  at::Tensor logits() const { return logits_.to(at::kCPU).to(at::kFloat); }
  double bytes() const { return static_cast<double>(models::weights_bytes(*model_)); }

 private:
  std::shared_ptr<models::CausalLM> model_;
  at::Tensor tokens_ = (at::arange(kContext, at::kLong) * 7919 % kVocabulary).unsqueeze(0).to(at::Device(at::kHPU, 0));
  std::unique_ptr<models::Cache> cache_;
  at::Tensor logits_;
};

void print(Runner& runner, const char* name, const Size& size, const std::vector<Time>& ns, double tokens,
           const Subject& fp8, const Subject& bf16) {
  runner.print({.name = std::string(name) + " " + size.name,
                .ns = ns[0],
                .bytes = fp8.bytes(),
                .torch_ns = ns[1],
                .extra = {{"tokens_per_second", 1e9 * tokens / ns[0]},
                          {"bf16_tokens_per_second", 1e9 * tokens / ns[1]},
                          {"bf16_weights_bytes", bf16.bytes()}}});
}

void bench_model(Runner& runner) {
  const at::NoGradGuard no_grad;
  for (const auto& size : kSizes) {
    const bool decodes = runner.wants(std::string("decode ") + size.name),
               prefills = runner.wants(std::string("prefill ") + size.name);
    if ((!decodes && !prefills) || (runner.options().filter.empty() && size.hidden > 1000)) continue;
    runtime::init();
    Subject fp8(size, true), bf16(size, false);
    const at::Tensor expected = bf16.logits(), error = fp8.logits() - expected;
    // Each half of a layer adds the rounding of three operands or so, 2^-4 / sqrt(6) each, to what it is given.
    const double bound = 0.08 * std::sqrt(2.0 * static_cast<double>(size.layers));
    require((error.norm() / expected.norm()).item<double>() < bound, std::string("model ") + size.name);
    if (decodes)
      print(runner, "decode", size, runner.medians({[&] { fp8.decode(); }, [&] { bf16.decode(); }}), 1, fp8, bf16);
    if (prefills)
      print(runner, "prefill", size, runner.medians({[&] { fp8.prefill(); }, [&] { bf16.prefill(); }}), kContext, fp8,
            bf16);
  }
}

const Registration kModel("model", bench_model);

}  // namespace
}  // namespace fp8::bench::model_cases
