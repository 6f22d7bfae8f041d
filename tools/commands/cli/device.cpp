// SPDX-License-Identifier: Apache-2.0
// --device, --threads and --seed applied to LibTorch and to our kernels.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/HPUHooksInterface.h>

#include <mutex>

#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

void apply(const Context& context) {
  if (context.threads) {
    const auto threads = static_cast<int>(*context.threads);
    at::set_num_threads(threads);
    kernels::set_num_threads(threads);
  }
  // The hpu's generator wraps the CPU's. at::manual_seed would ask for devices, and doctor must run where they are
  // misconfigured.
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(context.seed);
}

c10::Device resolve_device(const Context& context) {
  if (context.device == "cpu") return c10::Device(c10::kCPU);
  if (!at::detail::getHPUHooks().hasHPU())
    throw UsageError("--device: found 'hpu', but this program was built without it, allowed: cpu");
  return c10::Device(c10::kHPU, 0);
}

}  // namespace fp8::commands
