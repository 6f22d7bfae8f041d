// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/strategy_options.h"

#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/trainer/registry.h"

namespace fp8::commands {
namespace {

using trainer::StrategyKind;

std::string strategy_help() {
  std::string text = "How ranks come to the same gradients:";
  for (const auto& row : enum_names<StrategyKind>)
    text += std::string(row.value == StrategyKind::automatic ? " " : "; ") + row.name + ", " + row.what;
  return text;
}

}  // namespace

trainer::StrategyKind StrategySettings::kind() const {
  return parse_enum<StrategyKind>(strategy).value_or(StrategyKind::automatic);
}

int StrategySettings::amax_ranks(int size) const {
  if (reduce_amax == "off") return 0;
  if (reduce_amax == "all") return size;
  const auto ranks = io::parse_integer(reduce_amax, 1, size);
  if (!ranks || size % *ranks != 0)
    throw UsageError("--reduce-amax: found '" + reduce_amax + "' with " + std::to_string(size) +
                     " ranks, allowed: all, off, or a number that divides them");
  return static_cast<int>(*ranks);
}

void add_strategy_options(Options& options, StrategySettings& s) {
  std::vector<std::string> names;
  for (const auto& row : enum_names<StrategyKind>) names.emplace_back(row.name);
  names.insert(names.end(), std::begin(trainer::kPythonStrategies), std::end(trainer::kPythonStrategies));
  options.choice("--strategy", names, [names, &s](std::size_t i) { s.strategy = names[i]; }, strategy_help());
  options.integer("--bucket-cap-mb", s.bucket_cap_mb, 1, 65536, "Of hpu_ddp: MiB of a bucket");
  options.flag("--find-unused-parameters", s.find_unused_parameters,
               "Of hpu_ddp: a step may leave parameters out, at the cost of a walk through its graph");
  options.flag("--static-graph", s.static_graph, "Of hpu_ddp: each step uses the same parameters in the same order");
  options.flag("--gradient-as-bucket-view", s.gradient_as_bucket_view,
               "Of hpu_ddp: gradients live in the buckets, one copy less");
  options.choice("--comm-hook", s.comm_hook, "Of hpu_ddp: what buckets travel as (default f32)",
                 choice_of({kernels::FloatType::BF16, kernels::FloatType::F16}));
  options.choice("--fusion-buffer-dtype", s.fusion_buffer_dtype, "Of fast_ddp: what gradients travel as (default bf16)",
                 choice_of({kernels::FloatType::BF16, kernels::FloatType::F32, kernels::FloatType::F16}));
  options.text("--reduce-amax", s.reduce_amax,
               "With fp8: who shares amaxes, and so scales: all ranks, off, or each so many ranks");
  add_rank_timeout_option(options, s.timeout);
}

void check_strategy_options(const StrategySettings& s, bool fp8) {
  if (const auto refusal = trainer::python_strategy_refusal(s.strategy); !refusal.empty())
    throw UsageError("--strategy: " + refusal);
  const auto of = [&](const char* option, bool given, StrategyKind kind) {
    if (given && s.kind() != kind)
      throw UsageError(std::string(option) + ": found with --strategy " + s.strategy + ", allowed: --strategy " +
                       name_of(kind));
  };
  of("--bucket-cap-mb", s.bucket_cap_mb != StrategySettings{}.bucket_cap_mb, StrategyKind::hpu_ddp);
  of("--find-unused-parameters", s.find_unused_parameters, StrategyKind::hpu_ddp);
  of("--static-graph", s.static_graph, StrategyKind::hpu_ddp);
  of("--gradient-as-bucket-view", s.gradient_as_bucket_view, StrategyKind::hpu_ddp);
  of("--comm-hook", s.comm_hook.has_value(), StrategyKind::hpu_ddp);
  of("--fusion-buffer-dtype", s.fusion_buffer_dtype.has_value(), StrategyKind::fast_ddp);
  if (s.static_graph && s.find_unused_parameters)
    throw UsageError("--static-graph and --find-unused-parameters: found both, allowed: one of them");
  if (s.reduce_amax != "all" && !fp8)
    throw UsageError("--reduce-amax: found '" + s.reduce_amax + "', allowed: with --precision fp8");
  if (s.reduce_amax != "all" && s.reduce_amax != "off" && !io::parse_integer(s.reduce_amax, 1, 65536))
    throw UsageError("--reduce-amax: found '" + s.reduce_amax + "', allowed: all, off, or a number from 1 on");
}

}  // namespace fp8::commands
