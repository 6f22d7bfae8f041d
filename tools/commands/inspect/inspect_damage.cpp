// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/inspect_damage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/quant/forms/form.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/cli/progress.h"

namespace fp8::commands {

decltype(damage_of_run) damage_of_run;

quant::PlanOptions plan_options(const DamageOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.activations = o.weights_only           ? quant::ActivationScaling::none
                     : o.measurements.empty() ? quant::ActivationScaling::dynamic_token
                                              : quant::ActivationScaling::static_tensor;
  plan.weights = o.scheme;
  plan.include = o.include;
  plan.exclude = o.exclude;
  plan.dialect = context.dialect.value_or(kernels::Dialect::ocp);
  if (!o.measurements.empty()) plan.measurements = measure::read_measurements(o.measurements);
  return plan;
}

namespace {

bool is_fp8_checkpoint(const std::filesystem::path& folder) {
  return !quant::read_quantization_config(folder).is_null();
}

/// The histogram without its empty ends.
io::Json octaves_json(const quant::CastDamage& d) {
  std::size_t begin = 0, end = d.octaves.size();
  while (begin < end && d.octaves[begin] == 0) ++begin;
  while (end > begin && d.octaves[end - 1] == 0) --end;
  return {{"first_exponent", quant::CastDamage::kFirstExponent + static_cast<int>(begin)},
          {"counts", std::vector<std::int64_t>(d.octaves.begin() + static_cast<std::ptrdiff_t>(begin),
                                               d.octaves.begin() + static_cast<std::ptrdiff_t>(end))}};
}

/// scale_inv: none where the tensor stays in high precision or has a scale per row.
io::Json part_json(const quant::CastDamage& d, std::optional<float> scale_inv, const quant::ModuleDamage& m) {
  const bool compared = d.signal > 0;
  io::Json out = {{"amax", io::number_or_null(d.amax)},
                  {"values", d.count},
                  {"zeros", d.zeros},
                  {"scale_inv", scale_inv ? io::Json(*scale_inv) : io::Json(nullptr)},
                  {"saturation", d.saturation_share()},
                  {"underflow", compared ? io::Json(d.underflow_share()) : io::Json(nullptr)},
                  {"sqnr_db", compared ? io::number_or_null(d.sqnr_db()) : io::Json(nullptr)},
                  {"octaves", octaves_json(d)}};
  if (scale_inv.has_value()) {  // what the format can hold with this scale
    out["largest"] = m.fp8_max * *scale_inv;
    out["smallest"] = m.fp8_min * *scale_inv;
  }
  return out;
}

}  // namespace

quant::CheckpointDamage checkpoint_damage(const std::filesystem::path& model, const DamageOptions& o,
                                          const Context& context) {
  quant::CheckpointDamage out;
  const bool fp8 = is_fp8_checkpoint(model), casts = !o.data.empty() || !o.measurements.empty() || context.dialect;
  if (casts && fp8)
    throw io::Error(model.string() +
                    ": --data, --measurements and --dialect expect a high precision checkpoint, found an fp8 one");
  if (casts && !o.reference.empty())
    throw UsageError("inspect: --data, --measurements and --dialect do not go with --reference, which casts nothing");
  if (!o.reference.empty() && (!o.include.empty() || !o.exclude.empty() || o.scheme || o.weights_only))
    throw UsageError(
        "inspect: --include, --exclude, --scheme and --weights-only do not go with --reference, which casts nothing");
  if (!o.reference.empty()) {
    out = quant::compare_checkpoints(model, o.reference, [] { return interrupted(); });
  } else if (fp8) {
    out = quant::damage_of_fp8_checkpoint(model, [] { return interrupted(); });
  } else if (!o.data.empty()) {
    out = damage_of_run(model, o, context);
  } else {
    constexpr std::int64_t kSteps = 1000;
    Progress progress(context, "inspect", kSteps);
    quant::CheckpointOptions options;
    options.plan = plan_options(o, context);
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(static_cast<std::int64_t>(static_cast<double>(done) /
                                                static_cast<double>(std::max<std::uint64_t>(total, 1)) * kSteps));
    };
    options.stop = [] { return interrupted(); };
    out = quant::damage_of_checkpoint(model, options);
  }
  quant::sort_by_damage(out.modules);
  return out;
}

io::Json damage_json(const std::vector<quant::ModuleDamage>& modules) {
  io::Json out = io::Json::array();
  for (const auto& m : modules) {
    // 0: compared in high precision, it went through no scale
    const auto scale_inv = m.weight_scale_inv == 0 ? std::nullopt : std::optional(m.weight_scale_inv);
    io::Json entry = {{"name", m.name},
                      {"type", m.type},
                      {"scheme", m.scheme},
                      {"sqnr_db", m.weight.signal > 0 ? io::number_or_null(m.sqnr_db()) : io::Json(nullptr)},
                      {"weight", part_json(m.weight, scale_inv, m)},
                      {"input", nullptr}};
    if (m.input.has_value()) entry["input"] = part_json(*m.input, m.input_scale_inv, m);
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace fp8::commands
