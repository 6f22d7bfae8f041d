// SPDX-License-Identifier: Apache-2.0

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {

Channels channels_of(const measure::WeightModule& m) {
  const at::Tensor& w = m.weight;
  if (w.dim() == 0) return {1, 1, 1};
  const bool convolution = configs::type_is(m.type, &configs::KindInfo::convolution);
  std::int64_t rows = w.size(0);
  for (std::int64_t d = 1; !convolution && d + 1 < w.dim(); ++d) rows *= w.size(d);
  return {rows, rows == 0 ? 0 : w.numel() / rows, !convolution && w.dim() == 3 && w.size(0) > 0 ? w.size(0) : 1};
}

namespace {

/// `values` (one of each part) as one of each row, unless there is one part only.
std::vector<float> per_row(const std::vector<float>& values, const Channels& c) {
  if (c.parts == 1) return values;
  std::vector<float> rows;
  for (float v : values) rows.insert(rows.end(), static_cast<std::size_t>(c.rows / c.parts), v);
  return rows;
}

/// amax of the weight: one value, or one per output channel or block.
std::vector<float> weight_amax(const measure::WeightModule& m, const Scheme& scheme) {
  const Granularity granularity = scheme.weights;
  const at::Tensor w = m.weight.detach().contiguous();
  const auto type = runtime::ops::float_type_of(w.scalar_type());
  const Channels c = channels_of(m);
  if (granularity == Granularity::block) return block_amax(w.const_data_ptr(), type, c.rows, c.cols, scheme);
  const std::int64_t n = granularity == Granularity::tensor ? c.parts : c.rows;
  std::vector<float> amax(static_cast<std::size_t>(n));
  const std::int64_t each = n == 0 ? 0 : w.numel() / n;
  kernels::amax_rows(w.const_data_ptr(), type, n, each, each, amax.data());
  return granularity == Granularity::tensor ? per_row(amax, c) : amax;
}

/// The scales of least error of each part, or of all rows or blocks.
WeightScales least_error(const measure::WeightModule& m, const Scheme& scheme, const WeightScales& from_amax) {
  const at::Tensor w = m.weight.detach().contiguous();
  const auto type = runtime::ops::float_type_of(w.scalar_type());
  const Channels c = channels_of(m);
  const auto* data = static_cast<const char*>(w.const_data_ptr());
  if (scheme.weights != Granularity::tensor || c.parts == 1)
    return least_error_scales(data, type, c.rows, c.cols, from_amax, scheme, m.name + ".weight");
  WeightScales all;
  for (std::int64_t part = 0; part < c.parts; ++part) {
    const WeightScales own = from_amax.of_rows(part * (c.rows / c.parts), 1, scheme, c.cols);
    const auto one = least_error_scales(data + part * static_cast<std::int64_t>(w.nbytes()) / c.parts, type,
                                        c.rows / c.parts, c.cols, own, scheme, m.name + ".weight");
    all.scale.push_back(one.scale[0]);
    all.scale_inv.push_back(one.scale_inv[0]);
  }
  return {per_row(all.scale, c), per_row(all.scale_inv, c)};
}

/// INC's *_opt_* methods: the scales that fit the weight best.
WeightScales best_scales(const measure::WeightModule& m, const Scheme& scheme) {
  const at::Tensor w = m.weight.detach().contiguous();
  const auto type = runtime::ops::float_type_of(w.scalar_type());
  const Channels c = channels_of(m);
  if (scheme.weights == Granularity::channel)
    return searched_weight_scales(w.const_data_ptr(), type, c.rows, c.cols, scheme, m.name + ".weight");
  WeightScales all;
  for (std::int64_t part = 0; part < c.parts; ++part) {
    const auto* data =
        static_cast<const char*>(w.const_data_ptr()) + part * static_cast<std::int64_t>(w.nbytes()) / c.parts;
    const auto one = searched_weight_scales(data, type, c.rows / c.parts, c.cols, scheme, m.name + ".weight");
    all.scale.push_back(one.scale[0]);
    all.scale_inv.push_back(one.scale_inv[0]);
  }
  return {per_row(all.scale, c), per_row(all.scale_inv, c)};
}

void check_weight(const measure::WeightModule& m) {
  TORCH_CHECK(m.weight.device().is_hpu(), "[convert] ", m.name, ": expected the weight on hpu, found it on ",
              m.weight.device());
  TORCH_CHECK(runtime::ops::is_high_precision(m.weight.scalar_type()), "[convert] ", m.name,
              ": expected a weight of dtype Float, BFloat16 or Half, found ", m.weight.scalar_type(),
              (c10::isFloat8Type(m.weight.scalar_type()) ? " (converted already)" : ""));
}

/// Scales from a file.
WeightScales stored_scales(const measure::WeightModule& m, const PlannedModule& p) {
  const Channels c = channels_of(m);
  const auto count = static_cast<std::int64_t>(p.stored_weight_scale_inv.size());
  const bool per_channel = p.scheme.weights == Granularity::channel;
  TORCH_CHECK(per_channel ? count == c.rows : count == 1 || count == c.rows, "[convert] scales: ", m.name,
              ".weight: expected ", per_channel ? c.rows : 1, " values, found ", count);
  WeightScales out;
  out.scale_inv = p.stored_weight_scale_inv;
  for (float s : out.scale_inv) out.scale.push_back(scale_for(p.scheme, s, m.name + ".weight"));
  return out;
}

}  // namespace

std::vector<WeightScales> planned_weight_scales(const Plan& plan, const std::vector<measure::WeightModule>& modules) {
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  for (const auto& p : plan.modules) check_weight(*by_name.at(p.info.name));
  std::vector<std::vector<float>> amax;
  std::map<std::string, float> groups;  // the largest amax of each fuse group
  const auto grouped = [&](std::size_t i) { return !plan.modules[i].fuse_group.empty() && amax[i].size() == 1; };
  for (const auto& p : plan.modules) {
    amax.push_back(weight_amax(*by_name.at(p.info.name), p.scheme));
    for (float a : amax.back())
      recipes::scale_inv_from_amax(a, p.scheme.fp8_max(),
                                   p.info.name + ".weight");  // finite, or an error that names the module
    check_measured_weight(p, amax.back().empty() ? 0.0f : *std::ranges::max_element(amax.back()));
    if (grouped(amax.size() - 1)) groups[p.fuse_group] = std::max(groups[p.fuse_group], amax.back()[0]);
  }
  std::vector<WeightScales> scales;
  std::map<std::string, TensorScaleSearch> searched;  // of the groups whose scales are searched for
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const auto& p = plan.modules[i];
    const auto& m = *by_name.at(p.info.name);
    if (grouped(i)) amax[i] = {groups.at(p.fuse_group)};
    const auto type = runtime::ops::float_type_of(m.weight.scalar_type());
    scales.push_back(!p.stored_weight_scale_inv.empty() ? stored_scales(m, p)
                     : searches(p.scheme)               ? best_scales(m, p.scheme)
                                          : weight_scales(amax[i], p.scheme, p.info.name + ".weight", type));
    if (!p.scheme.least_error() || !p.stored_weight_scale_inv.empty()) continue;
    if (!grouped(i)) {
      scales.back() = least_error(m, p.scheme, scales.back());
      continue;
    }
    const at::Tensor w = m.weight.detach().contiguous();
    const Channels c = channels_of(m);
    searched.try_emplace(p.fuse_group, scales.back(), p.scheme)
        .first->second.add(w.const_data_ptr(), type, c.rows, c.cols);
  }
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const auto found = searched.find(plan.modules[i].fuse_group);
    if (grouped(i) && found != searched.end() && plan.modules[i].stored_weight_scale_inv.empty())
      scales[i] = found->second.best(plan.modules[i].info.name + ".weight");
  }
  return scales;
}

}  // namespace fp8::quant
