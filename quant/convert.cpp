// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/convert.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <algorithm>
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

/// The weight as a matrix of output channels: [C_out, rest] of a convolution, else [.., K] with one channel per row (stacked experts
/// [E, N, K] have E * N).
struct Channels {
  std::int64_t rows, cols;
};
Channels channels_of(const measure::WeightModule& m) {
  const at::Tensor& w = m.weight;
  if (w.dim() == 0) return {1, 1};
  const bool convolution = m.type.rfind("Conv", 0) == 0;
  std::int64_t rows = w.size(0);
  for (std::int64_t d = 1; !convolution && d + 1 < w.dim(); ++d) rows *= w.size(d);
  return {rows, rows == 0 ? 0 : w.numel() / rows};
}

/// amax of the weight: one value, or one per output channel.
std::vector<float> weight_amax(const measure::WeightModule& m, WeightGranularity granularity) {
  const at::Tensor w = m.weight.detach().contiguous();
  const auto type = runtime::ops::float_type_of(w.scalar_type());
  if (granularity == WeightGranularity::tensor) return {kernels::amax(w.const_data_ptr(), type, w.numel())};
  const Channels c = channels_of(m);
  std::vector<float> amax(static_cast<std::size_t>(c.rows));
  kernels::amax_rows(w.const_data_ptr(), type, c.rows, c.cols, c.cols, amax.data());
  return amax;
}

void check_weight(const measure::WeightModule& m) {
  TORCH_CHECK(m.weight.device().is_hpu(), "[convert] ", m.name, ": expected the weight on hpu, found it on ", m.weight.device());
  TORCH_CHECK(runtime::ops::is_high_precision(m.weight.scalar_type()), "[convert] ", m.name, ": expected a weight of dtype Float, BFloat16 or Half, found ",
              m.weight.scalar_type(), (c10::isFloat8Type(m.weight.scalar_type()) ? " (converted already)" : ""));
}

using ModulesByName = std::map<std::string, const measure::WeightModule*>;

/// The scales of every planned weight, in the plan's order. Throws for NaN, Inf, and weights that are not the measured ones: after this
/// nothing can fail but memory.
std::vector<WeightScales> all_scales(const Plan& plan, const ModulesByName& by_name) {
  std::vector<std::vector<float>> amax;
  std::map<std::string, float> groups;  // the largest amax of each fuse group
  for (const auto& p : plan.modules) {
    amax.push_back(weight_amax(*by_name.at(p.info.name), p.scheme.weights));
    weight_scales(amax.back(), p.scheme, p.info.name + ".weight");  // finite, or an error that names the module
    check_measured_weight(p, amax.back().empty() ? 0.0f : *std::max_element(amax.back().begin(), amax.back().end()));
    if (!p.fuse_group.empty()) groups[p.fuse_group] = std::max(groups[p.fuse_group], amax.back()[0]);
  }
  std::vector<WeightScales> scales;
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const auto group = groups.find(plan.modules[i].fuse_group);
    if (group != groups.end()) amax[i] = {group->second};
    scales.push_back(weight_scales(amax[i], plan.modules[i].scheme, plan.modules[i].info.name + ".weight"));
  }
  return scales;
}

ConvertedModule convert_one(const measure::WeightModule& m, const PlannedModule& p, const WeightScales& scales) {
  const at::Tensor w = m.weight.detach().contiguous();
  const at::Tensor codes = at::empty(w.sizes(), w.options().dtype(runtime::ops::dtype_of(p.scheme.format)));
  const Channels c = channels_of(m);
  cast_weight_rows(w.const_data_ptr(), runtime::ops::float_type_of(w.scalar_type()), c.rows, c.cols, 0, scales, p.scheme,
                   static_cast<std::uint8_t*>(codes.mutable_data_ptr()));
  ConvertedModule out{m.name, m.type, p.scheme.describe(), static_cast<std::int64_t>(w.nbytes()), static_cast<std::int64_t>(codes.nbytes())};
  attach_fp8(m, codes, scales.scale_inv, p.scheme, w.scalar_type());
  return out;
}

/// Modules that the plan keeps, but whose weight is the one of a converted module: they read fp8 too, and the report says so.
void report_ties(const std::vector<measure::WeightModule>& modules, const std::map<const void*, std::string>& done, ConversionReport& report) {
  for (auto it = report.skipped.begin(); it != report.skipped.end();) {
    const auto m = std::find_if(modules.begin(), modules.end(), [&](const auto& w) { return w.name == it->name; });
    const auto owner = m == modules.end() ? done.end() : done.find(m->weight.unsafeGetTensorImpl());
    if (owner == done.end()) {
      ++it;
      continue;
    }
    const auto handler = runtime::find_tag(m->weight)->handler;
    runtime::tag_weight(m->weight, m->name, handler);
    report.converted.push_back({m->name, m->type, handler->describe() + " (tied to " + owner->second + ")", 0, 0});
    report.warnings.push_back(m->name + " shares the weight of " + owner->second + " and became fp8 with it");
    it = report.skipped.erase(it);
  }
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
  ModulesByName by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  for (const auto& p : plan.modules) check_weight(*by_name.at(p.info.name));
  const std::vector<WeightScales> scales = all_scales(plan, by_name);
  ConversionReport report{{}, plan.skipped, plan.warnings};
  std::map<const void*, std::string> done;  // tied weights are converted once
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const PlannedModule& p = plan.modules[i];
    const auto& m = *by_name.at(p.info.name);
    if (auto it = done.find(m.weight.unsafeGetTensorImpl()); it != done.end()) {
      const auto handler = runtime::find_tag(m.weight)->handler;
      runtime::tag_weight(m.weight, m.name, handler);
      report.converted.push_back({m.name, m.type, p.scheme.describe() + " (tied to " + it->second + ")", 0, 0});
      continue;
    }
    report.converted.push_back(convert_one(m, p, scales[i]));
    done[m.weight.unsafeGetTensorImpl()] = m.name;
  }
  report_ties(modules, done, report);
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
