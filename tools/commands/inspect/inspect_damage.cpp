// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/inspect_damage.h"

#include <fmt/format.h>

#include <cmath>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/quant/forms/form.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/json/numbers.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/table.h"

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

std::string db_text(const quant::CastDamage& d) {
  return d.signal > 0 && std::isfinite(d.sqnr_db()) ? fmt::format("{:.1f}", d.sqnr_db()) : "-";
}
std::string share_text(double share) { return share == 0 ? "0" : fmt::format("{:.3g} %", 100 * share); }

}  // namespace

quant::CheckpointDamage checkpoint_damage(const std::filesystem::path& model, const DamageOptions& o,
                                          const Context& context) {
  quant::CheckpointDamage out;
  if (is_fp8_checkpoint(model)) {
    if (!o.data.empty() || !o.measurements.empty() || context.dialect.has_value())
      throw io::Error(model.string() +
                      ": --data, --measurements and --dialect expect a high precision checkpoint, found an fp8 one");
    out = quant::damage_of_fp8_checkpoint(model, o.reference.empty() ? std::nullopt : std::optional(o.reference),
                                          [] { return interrupted(); });
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
    io::Json entry = {{"name", m.name},
                      {"type", m.type},
                      {"scheme", m.scheme},
                      {"sqnr_db", m.weight.signal > 0 ? io::number_or_null(m.sqnr_db()) : io::Json(nullptr)},
                      {"weight", part_json(m.weight, m.weight_scale_inv, m)},
                      {"input", nullptr}};
    if (m.input.has_value()) entry["input"] = part_json(*m.input, m.input_scale_inv, m);
    out.push_back(std::move(entry));
  }
  return out;
}

std::string damage_table(const std::vector<quant::ModuleDamage>& modules) {
  bool inputs = false;
  for (const auto& m : modules) inputs = inputs || m.input.has_value();
  std::vector<std::string> headers = {"module",   ">SQNR dB",   ">weight amax", ">scale_inv",
                                      ">SQNR dB", ">saturated", ">underflow"};
  if (inputs) headers.insert(headers.end(), {">input amax", ">scale_inv", ">SQNR dB", ">saturated", ">underflow"});
  Table table(headers);
  for (const auto& m : modules) {
    const bool compared = m.weight.signal > 0;
    std::vector<std::string> row = {one_line(m.name),
                                    compared && std::isfinite(m.sqnr_db()) ? fmt::format("{:.1f}", m.sqnr_db()) : "-",
                                    fmt::format("{:.4g}", m.weight.amax),
                                    fmt::format("{:.4g}", m.weight_scale_inv),
                                    db_text(m.weight),
                                    share_text(m.weight.saturation_share()),
                                    compared ? share_text(m.weight.underflow_share()) : "-"};
    if (inputs && m.input.has_value()) {
      const auto& x = *m.input;
      row.insert(row.end(), {fmt::format("{:.4g}", x.amax),
                             m.input_scale_inv ? fmt::format("{:.4g}", *m.input_scale_inv) : "per row", db_text(x),
                             share_text(x.saturation_share()), share_text(x.underflow_share())});
    } else if (inputs) {
      row.insert(row.end(), {"not called", "-", "-", "-", "-"});
    }
    table.row(std::move(row));
  }
  return table.text();
}

}  // namespace fp8::commands
