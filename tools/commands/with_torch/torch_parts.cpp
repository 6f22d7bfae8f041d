// SPDX-License-Identifier: Apache-2.0
// The small parts of torch-free commands that need LibTorch: what `fp8 doctor` asks it, the modules of a TorchScript
// file for `fp8 config`, a model run for `fp8 inspect --data`, and states of observers for `fp8 measurements`.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/version.h>

#include <exception>

#include "fp8/quant/model/damage_probe.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/io/tensors/torch_file.h"
#include "fp8/tools/commands/config/config.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/tools/commands/measurements/measurements.h"

namespace fp8::commands {
namespace {

/// The hooks throw where the device is misconfigured; environment_problems() says how.
std::string hpu_state() {
  try {
    return at::detail::getHPUHooks().hasHPU() ? "available" : "not in this build";
  } catch (const std::exception&) {
    return "error";
  }
}

TorchFacts ask_torch(const Context& context) {
  namespace autocast = runtime::autocast;
  std::vector<std::string> problems;
  const TorchScope scope(context, &problems);
  TorchFacts facts{TORCH_VERSION, at::get_num_threads(), hpu_state(), autocast::lists(), std::move(problems), {}};
  for (auto& [file, ops, parts] : runtime::extensions())
    facts.extensions.push_back({std::move(file), std::move(ops), std::move(parts)});
  autocast::AutocastLists::from_environment(facts.problems);  // said at start too, but here it is what was asked for
  for (auto& problem : autocast::check_lists(facts.lists)) facts.problems.push_back(std::move(problem));
  return facts;
}

const Provided g_facts(torch_facts, ask_torch);

ModelModules list_script(const std::filesystem::path& file) {
  if (!io::is_torch_file(file))
    io::fail<io::Error>("{}: found no TorchScript module, allowed: a checkpoint folder or a TorchScript file",
                        file.string());
  ModelModules model;
  const auto script = read_script_modules(file);
  for (const auto& m : measure::weight_modules(script)) model.weights.emplace_back(m.name, m.type);
  for (const auto& n : measure::op_nodes(script)) model.nodes.push_back({n.name, n.type});
  return model;
}

const Provided g_script(modules_of_script, list_script);

quant::CheckpointDamage run_with_probes(const std::filesystem::path& folder, const DamageOptions& o,
                                        const Context& context) {
  const TorchScope scope(context);
  const at::NoGradGuard no_grad;
  auto loaded = load_language_model(folder, context);
  const auto samples = load_samples(o, folder, loaded.model->shape());
  const auto modules = measure::weight_modules(*loaded.model);
  const quant::NamesInCheckpoint names(std::make_shared<const io::Checkpoint>(folder));
  quant::PlanOptions options = plan_options(o, context);
  quant::name_as_in_checkpoint(options, names);
  const quant::Plan plan = quant::plan_for(modules, quant::nodes_of_checkpoint(*loaded.model), options);
  const auto called = [&](const std::string& module) { return names.of(module); };
  const quant::DamageProbe probe(modules, plan, called);
  Progress progress(context, "inspect", samples.count());
  for (std::int64_t first = 0; first < samples.count();) {
    check_interrupted();
    const std::int64_t count = samples.together(first, o.batch);
    logits_of(*loaded.model, samples.batch(first, count), at::kHPU);
    progress.update(first += count);
  }
  std::map<std::string, std::string> types;
  for (const auto& m : modules) types.emplace(m.name, m.type);
  std::vector<quant::SkippedModule> skipped;
  for (auto s : plan.skipped) {
    const auto type = types.find(s.name);
    if (type == types.end()) continue;  // a node
    const std::string hint = io::spelled(quant::include_hint(), options.spelling);
    if (configs::type_is(type->second, &configs::KindInfo::lookup) && s.reason.ends_with(hint))
      s.reason.resize(s.reason.size() - hint.size());  // no form of checkpoint has it in fp8
    for (auto& name : called(s.name)) skipped.push_back({std::move(name), s.reason});
  }
  return {probe.result(), std::move(skipped), plan.warnings};
}

const Provided g_run_damage(damage_of_run, run_with_probes);

measure::ObserverStates merge_files(const std::vector<std::filesystem::path>& paths, measure::MeasurementFile& file) {
  auto states = measure::read_observer_states(paths[0]);
  for (std::size_t i = 1; i < paths.size(); ++i)
    measure::merge(states, measure::read_observer_states(paths[i]), paths[i].string());
  measure::apply(states, file, paths[0].string());
  return states;
}

const Provided g_states(merged_states, merge_files);

}  // namespace
}  // namespace fp8::commands
