// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/damage_probe.h"

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {

/// Lets the op run; casts a copy of its input.
class DamageProbe::Handler final : public runtime::OpHandler {
 public:
  Handler(std::vector<ModuleDamage> parts, Scheme scheme) : parts_(std::move(parts)), scheme_(std::move(scheme)) {}

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

  std::vector<ModuleDamage> damage() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto parts = parts_;
    for (auto& part : parts) part.input = input_;
    return parts;
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
    if (!input_.has_value()) input_.emplace();
    input_->merge(seen);
  }

  mutable std::mutex mutex_;
  std::vector<ModuleDamage> parts_;
  std::optional<CastDamage> input_;
  Scheme scheme_;
};

namespace {

/// One of each name, which has its even part of the rows; of rows that can't be shared out so, the first has all.
std::vector<ModuleDamage> damage_of(const measure::WeightModule& m, const PlannedModule& p, const WeightScales& scales,
                                    std::vector<std::string> names) {
  const at::Tensor w = runtime::cpu_alias(m.weight.detach()).contiguous();
  // Stacked experts have a scale for each row of each expert.
  const std::int64_t rows = !p.scheme.has_blocks() && scales.scale.size() > 1
                                ? static_cast<std::int64_t>(scales.scale.size())
                                : w.size(0),
                     cols = rows == 0 ? 0 : w.numel() / rows;
  auto count = static_cast<std::int64_t>(names.size());
  const bool shares =
      rows == w.size(0) && rows % count == 0 && (!p.scheme.has_blocks() || rows / count % p.scheme.block.rows == 0);
  if (!shares) count = 1;
  std::vector<ModuleDamage> parts;
  for (std::int64_t i = 0, n = rows / count; i < count; ++i) {
    const WeightScales own = count == 1 ? scales : scales.of_rows(i * n, n, p.scheme, cols);
    auto& part = parts.emplace_back(
        ModuleDamage::of(std::move(names[static_cast<std::size_t>(i)]), m.type, p.scheme, own.scale_inv));
    part.weight = weight_damage(w.narrow(0, count == 1 ? 0 : i * n, count == 1 ? w.size(0) : n).const_data_ptr(),
                                runtime::ops::float_type_of(w.scalar_type()), n, cols, own, p.scheme);
  }
  return parts;
}

}  // namespace

DamageProbe::DamageProbe(const std::vector<measure::WeightModule>& modules, const Plan& plan, const Names& names) {
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
    auto handler = std::make_shared<Handler>(
        damage_of(m, p, scales[i], names ? names(m.name) : std::vector<std::string>{m.name}), p.scheme);
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
  for (const auto& handler : handlers_)
    for (auto& part : handler->damage()) out.push_back(std::move(part));
  return out;
}

}  // namespace fp8::quant
