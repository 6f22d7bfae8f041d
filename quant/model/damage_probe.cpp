// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/damage_probe.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {

/// Lets the op run; casts a copy of its input.
class DamageProbe::Handler final : public runtime::OpHandler {
 public:
  Handler(ModuleDamage damage, Scheme scheme) : damage_(std::move(damage)), scheme_(std::move(scheme)) {}

  at::Tensor linear(const runtime::LinearCall& call) override {
    observe(call.x);
    return call.original();
  }
  at::Tensor convolution(const runtime::ConvolutionCall& call) override {
    observe(call.x);
    return call.original();
  }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  std::string describe() const override { return "probed"; }

  ModuleDamage damage() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return damage_;
  }

 private:
  void observe(const at::Tensor& x) {
    at::Tensor host = runtime::cpu_alias(x.detach());
    if (!runtime::ops::is_high_precision(host.scalar_type())) host = host.to(at::kFloat);
    host = host.contiguous();
    if (host.numel() == 0) return;
    const std::int64_t cols = host.dim() == 0 ? 1 : host.size(-1);
    const CastDamage seen = input_damage(host.const_data_ptr(), runtime::ops::float_type_of(host.scalar_type()),
                                         host.numel() / cols, cols, scheme_);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!damage_.input.has_value()) damage_.input.emplace();
    damage_.input->merge(seen);
  }

  mutable std::mutex mutex_;
  ModuleDamage damage_;
  Scheme scheme_;
};

namespace {

ModuleDamage damage_of(const measure::WeightModule& m, const PlannedModule& p, const WeightScales& scales) {
  const at::Tensor w = runtime::cpu_alias(m.weight.detach()).contiguous();
  // Stacked experts have a scale for each row of each expert.
  const std::int64_t rows = !p.scheme.has_blocks() && scales.scale.size() > 1
                                ? static_cast<std::int64_t>(scales.scale.size())
                                : w.size(0),
                     cols = rows == 0 ? 0 : w.numel() / rows;
  ModuleDamage out = ModuleDamage::of(m.name, m.type, p.scheme, scales.scale_inv);
  out.weight =
      weight_damage(w.const_data_ptr(), runtime::ops::float_type_of(w.scalar_type()), rows, cols, scales, p.scheme);
  return out;
}

}  // namespace

DamageProbe::DamageProbe(const std::vector<measure::WeightModule>& modules, const Plan& plan) {
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) {
    by_name[m.name] = &m;
    TORCH_CHECK(plan.find(m.name) == nullptr || runtime::find_tag(m.weight) == nullptr, "[damage] ", m.name,
                ": expected a model that is neither measured nor converted");
  }
  const std::vector<WeightScales> scales = planned_weight_scales(plan, modules);
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const PlannedModule& p = plan.modules[i];
    const measure::WeightModule& m = *by_name.at(p.info.name);
    if (runtime::find_tag(m.weight) != nullptr) continue;  // tied: the first module speaks for both
    auto handler = std::make_shared<Handler>(damage_of(m, p, scales[i]), p.scheme);
    runtime::tag_weight(m.weight, m.name, handler);
    handlers_.push_back(std::move(handler));
    weights_.push_back(m.weight);
  }
}

DamageProbe::~DamageProbe() {
  for (const auto& weight : weights_) runtime::untag_weight(weight);
}

std::vector<ModuleDamage> DamageProbe::result() const {
  std::vector<ModuleDamage> out;
  for (const auto& handler : handlers_) out.push_back(handler->damage());
  return out;
}

}  // namespace fp8::quant
