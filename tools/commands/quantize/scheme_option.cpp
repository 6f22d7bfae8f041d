// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/quantize/scheme_option.h"

#include "fp8/quant/forms/form_table.h"
#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {

std::string preset_text(std::size_t width) {
  std::string text = "Presets of fp8 quantize MODEL -o OUT --preset NAME:\n";
  for (const auto& row : enum_names<Preset>)
    text += definition(row.name, io::message("{}: {}", row.options, row.what), width);
  return text + "\n" +
         wrapped(
             "A preset is its options: others go with it (--format, --scheme, --include), but for those that say "
             "otherwise.\n",
             width, 0);
}

namespace {

constexpr std::int64_t kMaxBlock = 1 << 20;

/// False for a detail that the word does not have.
bool take_detail(const SchemeTargets& targets, const std::string& detail) {
  using quant::WeightWord;
  if (targets.word == WeightWord::tensor && targets.unfused != nullptr && detail == "unfused") {
    *targets.unfused = true;
    return true;
  }
  if (targets.word != WeightWord::block) return false;
  if (detail == "e8m0" || detail == "f32") {
    targets.power_of_two = detail == "e8m0";
    return true;
  }
  const auto size = io::parse_integer(detail, 1, kMaxBlock);
  targets.block = size.value_or(0);
  return size.has_value();
}

}  // namespace

void add_scheme_option(Options& options, const SchemeTargets& targets, const std::string& help) {
  std::vector<std::string> words;
  for (const auto& row : enum_names<quant::WeightWord>) words.emplace_back(row.name);
  const auto set = [targets](std::size_t i, const std::vector<std::string>& details) {
    targets.word = enum_names<quant::WeightWord>[i].value;
    return std::ranges::all_of(details, [&](const auto& detail) { return take_detail(targets, detail); });
  };
  options.detailed_choice(
      "--scheme", words, set,
      std::string("block:N, block:e8m0, block:N,e8m0") + (targets.unfused ? ", tensor:unfused" : ""), help);
  options.integer("--block", targets.block, 1, kMaxBlock, "Rows and columns of a block");
  options.replaced("--block", "--scheme block:N");
  options.choice(
      "--scale-format", {"f32", "e8m0"}, [targets](std::size_t i) { targets.power_of_two = i == 1; },
      "Scales of blocks");
  options.replaced("--scale-format", "--scheme block:e8m0");
  if (targets.unfused == nullptr) return;
  options.flag("--no-fuse-scales", *targets.unfused, "Own scales for q, k, v and for gate, up");
  options.replaced("--no-fuse-scales", "--scheme tensor:unfused");
}

void check_scheme(const std::string& form, const quant::PlanOptions& plan) {
  using enum quant::ActivationScaling;
  if (plan.config.has_value()) return;
  const bool is_static = plan.activations == static_tensor;
  quant::Scheme scheme;
  scheme.weights = plan.weights.value_or(is_static ? recipes::Granularity::tensor : scheme.weights);
  const bool blocks = scheme.weights == recipes::Granularity::block;
  if (is_static && blocks)
    throw UsageError("quantize: --scheme block and mx: found --measurements, allowed: --dynamic, --weights-only");
  scheme.activations = blocks && plan.activations != none ? dynamic_group : plan.activations;
  scheme.dialect = plan.dialect_or_ocp();
  if (blocks) scheme.block = plan.block, scheme.power_of_two = plan.power_of_two;
  if (const std::string problem = quant::form_named(form).scheme_problem(scheme); !problem.empty())
    throw UsageError("quantize: " + io::spelled(problem, flag_of_option));
}

void add_kv_cache_option(Options& options, const KvCacheTargets& targets) {
  const auto set = [targets](std::size_t i, const std::vector<std::string>& details) {
    if (i > 0) targets.fp8 = i == 2;
    return std::ranges::all_of(details, [&](const std::string& detail) {
      const auto scales = parse_enum(detail, quant::kv_granularities());
      if (scales.has_value()) targets.scales = scales;
      targets.query = targets.query || detail == "query";
      return i == 2 ? scales.has_value() || detail == "query" : i == 0 && scales.has_value();
    });
  };
  options.detailed_choice(
      "--kv-cache", {"auto", "off", "fp8"}, set, "fp8:head, fp8:query, auto:head",
      "fp8: scales for keys and values, made of --measurements (which --dynamic and --weights-only then take for "
      "nothing else), and engines keep the cache in fp8; fp8:head: for each head (compressed-tensors); fp8:query: one "
      "for queries too, of measurements by a QUANT_CONFIG, for engines that run attention in fp8 (default auto: off; "
      "with --config as its lists say)");
  options.choice("--kv-cache-scales", targets.scales, "Of --kv-cache fp8", quant::kv_granularities());
  options.replaced("--kv-cache-scales", "--kv-cache fp8:head");
  options.flag("--query-scale", targets.query, "Of --kv-cache fp8");
  options.replaced("--query-scale", "--kv-cache fp8:query");
}

}  // namespace fp8::commands
