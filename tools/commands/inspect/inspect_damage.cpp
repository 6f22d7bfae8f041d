// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <tuple>

#include "fp8/quant/names/folded_names.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inspect/inspect.h"

namespace fp8::commands {

decltype(damage_of_run) damage_of_run;

quant::PlanOptions plan_options(const DamageOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.spelling = flag_of_option;
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
    io::fail<io::Error>("{}: --data, --measurements and --dialect expect a high precision checkpoint, found an fp8 one",
                        model.string());
  if (fp8 && o.reference.empty() && (!o.include.empty() || !o.exclude.empty()))
    io::fail<io::Error>("{}: --include and --exclude expect a high precision checkpoint, found an fp8 one",
                        model.string());
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
    Progress progress(context, "inspect");
    quant::CheckpointOptions options;
    options.plan = plan_options(o, context);
    options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
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

namespace {

bool compared(const quant::CastDamage& d) { return d.signal > 0; }

std::string db_text(const quant::CastDamage& d) {
  if (!compared(d)) return "-";
  return std::isfinite(d.sqnr_db()) ? fmt::format("{:.1f}", d.sqnr_db()) : "exact";
}
std::string share_text(double share) { return share == 0 ? "0" : fmt::format("{:.3g} %", 100 * share); }
std::string underflow_text(const quant::CastDamage& d) { return compared(d) ? share_text(d.underflow_share()) : "-"; }

/// One column of the table: of the module, its weight or its input.
struct DamageColumn {
  const char* header;
  std::string (*cell)(const quant::ModuleDamage& m, const quant::CastDamage& d);
  bool of_input = false;
};

std::string sqnr_cell(const quant::ModuleDamage&, const quant::CastDamage& d) { return db_text(d); }
std::string saturated_cell(const quant::ModuleDamage&, const quant::CastDamage& d) {
  return share_text(d.saturation_share());
}
std::string underflow_cell(const quant::ModuleDamage&, const quant::CastDamage& d) { return underflow_text(d); }
std::string amax_cell(const quant::ModuleDamage&, const quant::CastDamage& d) { return fmt::format("{:.4g}", d.amax); }
std::string weight_scale_cell(const quant::ModuleDamage& m, const quant::CastDamage&) {
  return m.weight_scale_inv == 0 ? "-" : fmt::format("{:.4g}", m.weight_scale_inv);
}
std::string input_scale_cell(const quant::ModuleDamage& m, const quant::CastDamage&) {
  return m.input_scale_inv ? fmt::format("{:.4g}", *m.input_scale_inv) : "per row";
}

/// Those that matter most come first: what has no room goes from the end.
constexpr DamageColumn kColumns[] = {
    {">weight\nSQNR dB", sqnr_cell},
    {">input\nSQNR dB", sqnr_cell, true},
    {">weight\nsaturated", saturated_cell},
    {">input\nsaturated", saturated_cell, true},
    {">weight\nunderflow", underflow_cell},
    {">input\nunderflow", underflow_cell, true},
    {">weight\namax", amax_cell},
    {">input\namax", amax_cell, true},
    {">weight\nscale_inv", weight_scale_cell},
    {">input\nscale_inv", input_scale_cell, true},
};

/// "; in 4 of them values saturate, at most 0.02 % (model.layers.3.mlp.down_proj)"; empty where none do.
std::string saturation_text(const std::vector<quant::ModuleDamage>& modules) {
  const auto share = [](const quant::ModuleDamage& m) {
    return std::max(m.weight.saturation_share(), m.input ? m.input->saturation_share() : 0.0);
  };
  const auto count = std::ranges::count_if(modules, [&](const auto& m) { return share(m) > 0; });
  if (count == 0) return "";
  const auto& worst = *std::ranges::max_element(modules, {}, share);
  return fmt::format("; in {} of them values saturate, at most {} ({})", count, share_text(share(worst)),
                     one_line(worst.name));
}

struct Fate {
  std::string scheme, reason;
  std::vector<std::string> modules;
};

/// Modules of one folded name and one fate, in the order of the first; bytes: of those that stay.
std::vector<Fate> fates_of(const quant::CheckpointReport& report, std::map<std::string, std::uint64_t>& bytes) {
  std::vector<Fate> fates;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> index;
  const auto add = [&](const std::string& module, const std::string& scheme, const std::string& reason) {
    const auto [at, fresh] = index.try_emplace({quant::folded_name(module), scheme, reason}, fates.size());
    if (fresh) fates.push_back({scheme, reason, {}});
    fates[at->second].modules.push_back(module);
  };
  for (const auto& [module, scheme] : report.quantized) add(module, scheme, "");
  for (const auto& s : report.skipped) {
    add(s.name, "", s.reason);
    bytes.emplace(s.name, s.bytes);
  }
  return fates;
}

}  // namespace

std::string damage_sentence(const std::vector<quant::ModuleDamage>& modules) {
  if (modules.empty()) return "no module is in fp8";
  std::vector<double> known;
  std::size_t fair = 0;
  bool exact = false;
  for (const auto& m : modules) {
    if (!compared(m.weight)) continue;
    const double db = m.sqnr_db();
    exact = exact || !std::isfinite(db);
    if (std::isfinite(db)) known.push_back(db);
    fair += db < kFairDb ? 1 : 0;
  }
  const std::string saturation = saturation_text(modules);
  auto text = fmt::format("{} module{}", modules.size(), modules.size() == 1 ? "" : "s");
  if (known.empty()) {
    text += exact ? ", all the same as in the reference" : "; SQNR needs the original: --reference DIR";
    return text + (exact || !saturation.empty() ? saturation : "; none saturates");
  }
  const auto [low, high] = std::ranges::minmax(known);
  if (fair == 0)
    text += fmt::format(", all within {:.1f} dB ({:.1f} to {:.1f}){}", high - low, low, high,
                        saturation.empty() ? "; nothing to exclude" : ", saturation counted");
  else
    text += fmt::format(" from {:.1f} to {:.1f} dB; {} below {:.0f} dB, the worst is {}: see --exclude", low, high,
                        fair, kFairDb, one_line(modules.front().name));
  return text + saturation;
}

std::string damage_table(const std::vector<quant::ModuleDamage>& modules, std::size_t most, std::size_t width) {
  const bool inputs = std::ranges::any_of(modules, [](const auto& m) { return m.input.has_value(); });
  std::vector<std::string> headers = {"module"};
  if (inputs) headers.emplace_back(">module\nSQNR dB");
  for (const auto& column : kColumns)
    if (inputs || !column.of_input) headers.emplace_back(column.header);
  Table table(std::move(headers));
  for (std::size_t i = 0; i < std::min(most, modules.size()); ++i) {
    const auto& m = modules[i];
    std::vector<std::string> row = {one_line(m.name)};
    if (inputs)
      row.push_back(compared(m.weight) && std::isfinite(m.sqnr_db()) ? fmt::format("{:.1f}", m.sqnr_db()) : "-");
    for (const auto& column : kColumns) {
      if (!column.of_input)
        row.push_back(column.cell(m, m.weight));
      else if (inputs)
        row.push_back(m.input ? column.cell(m, *m.input) : "-");
    }
    table.row(std::move(row));
  }
  return table.text(width);
}

std::string kept_table(const std::vector<quant::SkippedModule>& kept, const std::vector<quant::ModuleDamage>& others,
                       std::size_t width) {
  if (kept.empty()) return "";
  quant::CheckpointReport report;
  report.skipped = kept;
  for (const auto& m : others) report.quantized.emplace_back(m.name, "fp8");
  Table table({"kept in high precision", ">modules", "why"});
  for (const auto& line : plan_lines(report))
    if (line.scheme.empty())
      table.row({one_line(line.name), std::to_string(line.modules.size()), one_line(line.reason)});
  return table.text(width);
}

std::vector<PlanLine> plan_lines(const quant::CheckpointReport& report, bool folded) {
  std::map<std::string, std::uint64_t> bytes;
  const auto fates = fates_of(report, bytes);
  std::vector<std::string> all;
  for (const auto& fate : fates) all.insert(all.end(), fate.modules.begin(), fate.modules.end());
  const quant::NameFolder folder(all);
  std::vector<PlanLine> lines;
  const auto add = [&](const std::string& name, const std::vector<std::string>& modules, const Fate& fate) {
    PlanLine line{name, modules, fate.scheme, fate.reason};
    for (const auto& module : modules) line.bytes += bytes.contains(module) ? bytes.at(module) : 0;
    lines.push_back(std::move(line));
  };
  for (const auto& fate : fates) {
    if (folded)
      for (const auto& [name, modules] : folder.fold(fate.modules)) add(name, modules, fate);
    else
      for (const auto& module : fate.modules) add(module, {module}, fate);
  }
  return lines;
}

void print_plan(const std::filesystem::path& model, const DamageOptions& o, const Context& context) {
  quant::CheckpointOptions options;
  options.plan = plan_options(o, context);
  options.dry_run = true;
  const auto plan = quant::quantize_checkpoint(model, {}, options);
  for (const auto& warning : plan.warnings) context.warn(warning);
  Report report({"module", ">modules", "becomes", "why"});
  report.json = {{"kind", "plan"},
                 {"model", model.string()},
                 {"modules_quantized", plan.quantized.size()},
                 {"modules_kept", plan.skipped.size()},
                 {"source_bytes", plan.source_bytes},
                 {"weights_bytes", plan.weights_bytes},
                 {"lines", io::Json::array()}};
  for (const auto& line : plan_lines(plan, !context.verbose)) {
    const bool kept = line.scheme.empty();
    report.add_entry(
        "lines",
        {{"name", line.name},
         {"modules", line.modules},
         {"scheme", kept ? io::Json(nullptr) : io::Json(line.scheme)},
         {"reason", line.reason}},
        {line.name, std::to_string(line.modules.size()), kept ? "stays in high precision" : line.scheme, line.reason});
  }
  report.below = fmt::format("\n{} modules become fp8, {} stay; {} -> {}\n", plan.quantized.size(), plan.skipped.size(),
                             human_bytes(static_cast<std::int64_t>(plan.source_bytes)),
                             human_bytes(static_cast<std::int64_t>(plan.weights_bytes)));
  report.print(context);
}

}  // namespace fp8::commands
