// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/convert.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <map>
#include <ostream>
#include <sstream>

#include "fp8/quant/fp8_handler.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/ops/native/arguments.h"

namespace fp8::quant {
namespace {

std::vector<ModuleInfo> infos_of(const std::vector<measure::WeightModule>& modules) {
  std::vector<ModuleInfo> infos;
  for (const auto& m : modules) infos.push_back({m.name, m.type, m.weight.sizes().vec()});
  return infos;
}

/// amax of the weight: one value, or one per output channel.
std::vector<float> weight_amax(const at::Tensor& w, WeightGranularity granularity) {
  const auto type = runtime::ops::float_type_of(w.scalar_type());
  if (granularity == WeightGranularity::tensor) return {kernels::amax(w.const_data_ptr(), type, w.numel())};
  std::vector<float> amax(static_cast<std::size_t>(w.size(0)));
  const std::int64_t cols = w.numel() / std::max<std::int64_t>(w.size(0), 1);
  kernels::amax_rows(w.const_data_ptr(), type, w.size(0), cols, cols, amax.data());
  return amax;
}

void check_weight(const measure::WeightModule& m) {
  TORCH_CHECK(m.weight.device().is_hpu(), "[convert] ", m.name, ": expected the weight on hpu, found it on ", m.weight.device());
  TORCH_CHECK(runtime::ops::is_high_precision(m.weight.scalar_type()), "[convert] ", m.name, ": expected a weight of dtype Float, BFloat16 or Half, found ",
              m.weight.scalar_type(), (c10::isFloat8Type(m.weight.scalar_type()) ? " (converted already)" : ""));
}

/// The largest amax of each fuse group.
std::map<std::string, float> group_amax(const Plan& plan, const std::map<std::string, const measure::WeightModule*>& by_name) {
  std::map<std::string, float> largest;
  for (const auto& p : plan.modules) {
    if (p.fuse_group.empty()) continue;
    const float amax = weight_amax(by_name.at(p.info.name)->weight.contiguous(), WeightGranularity::tensor)[0];
    float& group = largest[p.fuse_group];
    group = std::isnan(amax) || amax > group ? amax : group;  // NaN stays, and is reported with its module
  }
  return largest;
}

ConvertedModule convert_one(const measure::WeightModule& m, const PlannedModule& p, std::optional<float> fused) {
  const at::Tensor w = m.weight.detach().contiguous();
  std::vector<float> amax = weight_amax(w, p.scheme.weights);
  check_measured_weight(p, *std::max_element(amax.begin(), amax.end()));
  if (fused.has_value()) amax = {*fused};
  const WeightScales scales = weight_scales(amax, p.scheme, m.name + ".weight");
  const at::Tensor codes = at::empty(w.sizes(), w.options().dtype(runtime::ops::dtype_of(p.scheme.format)));
  const std::int64_t cols = w.numel() / std::max<std::int64_t>(w.size(0), 1);
  cast_weight_rows(w.const_data_ptr(), runtime::ops::float_type_of(w.scalar_type()), w.size(0), cols, 0, scales, p.scheme,
                   static_cast<std::uint8_t*>(codes.mutable_data_ptr()));
  ConvertedModule out{m.name, m.type, p.scheme.describe(), static_cast<std::int64_t>(w.nbytes()), static_cast<std::int64_t>(codes.nbytes())};
  attach_fp8(m, codes, scales.scale_inv, p.scheme, w.scalar_type());
  return out;
}

void describe_into(const torch::nn::Module& module, const std::string& name, const std::string& path, int depth, std::ostream& out) {
  out << std::string(static_cast<std::size_t>(2 * depth), ' ') << (name.empty() ? "" : "(" + name + "): ") << module.name();
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (parameter.key() != "weight") continue;
    const auto* tag = runtime::find_tag(parameter.value());
    const auto* handler = tag != nullptr ? dynamic_cast<const Fp8Handler*>(tag->handler.get()) : nullptr;
    out << " " << parameter.value().sizes() << " " << parameter.value().scalar_type();
    if (handler != nullptr) out << " [" << handler->describe() << "]";
  }
  out << "\n";
  for (const auto& child : module.named_children()) {
    describe_into(*child.value(), child.key(), path.empty() ? child.key() : path + "." + child.key(), depth + 1, out);
  }
}

}  // namespace

void attach_fp8(const measure::WeightModule& module, const at::Tensor& codes, const std::vector<float>& scale_inv, const Scheme& scheme,
                at::ScalarType original) {
  at::Tensor scale = at::empty({static_cast<std::int64_t>(scale_inv.size())}, codes.options().dtype(at::kFloat));
  std::copy(scale_inv.begin(), scale_inv.end(), scale.mutable_data_ptr<float>());
  auto handler = std::make_shared<Fp8Handler>(scheme, std::move(scale), original);
  runtime::untag_weight(module.weight);
  module.weight.set_data(codes);
  runtime::tag_weight(module.weight, module.name, std::move(handler));
}

Plan plan_for(const std::vector<measure::WeightModule>& modules, const PlanOptions& options) { return make_plan(infos_of(modules), options); }

ConversionReport convert(const std::vector<measure::WeightModule>& modules, const PlanOptions& options) {
  TORCH_CHECK(runtime::device_kind() != runtime::DeviceKind::gaudi, "[convert] fp8 is not supported on GAUDI, allowed: gaudi2, gaudi3 (FP8_HPU_DEVICE)");
  const Plan plan = plan_for(modules, options);
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  for (const auto& p : plan.modules) check_weight(*by_name.at(p.info.name));
  const auto fused = group_amax(plan, by_name);
  ConversionReport report{{}, plan.skipped, plan.warnings};
  std::map<const void*, std::string> done;  // tied weights are converted once
  for (const auto& p : plan.modules) {
    const auto& m = *by_name.at(p.info.name);
    if (auto it = done.find(m.weight.unsafeGetTensorImpl()); it != done.end()) {
      const auto* tag = runtime::find_tag(m.weight);
      runtime::tag_weight(m.weight, m.name, tag->handler);
      report.converted.push_back({m.name, m.type, p.scheme.describe() + " (tied to " + it->second + ")", 0, 0});
      continue;
    }
    const auto group = fused.find(p.fuse_group);
    report.converted.push_back(convert_one(m, p, group != fused.end() ? std::optional<float>(group->second) : std::nullopt));
    done[m.weight.unsafeGetTensorImpl()] = m.name;
  }
  return report;
}

ConversionReport convert(const torch::nn::Module& model, const PlanOptions& options) { return convert(measure::weight_modules(model), options); }

ConversionReport convert(const torch::jit::Module& model, const PlanOptions& options) {
  const auto modules = measure::weight_modules(model);
  TORCH_CHECK(!modules.empty(), "[convert] the TorchScript module has no module with a weight; output of freeze() or optimize_for_inference() holds weights as ",
              "constants: convert first, then freeze");
  return convert(modules, options);
}

std::string describe(const torch::nn::Module& model) {
  std::ostringstream out;
  describe_into(model, "", "", 0, out);
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const ConversionReport& report) {
  for (const auto& m : report.converted) out << "converted  " << m.name << " (" << m.type << "): " << m.scheme << "\n";
  for (const auto& m : report.skipped) out << "kept       " << m.name << ": " << m.reason << "\n";
  for (const auto& w : report.warnings) out << "warning    " << w << "\n";
  return out;
}

}  // namespace fp8::quant
