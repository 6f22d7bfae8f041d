// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/doctor_torch.h"

#include <ATen/Parallel.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <torch/version.h>

#include <exception>
#include <utility>

#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/tools/commands/cli/torch_scope.h"

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

}  // namespace
}  // namespace fp8::commands
