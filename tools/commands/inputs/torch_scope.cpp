// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/torch_scope.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/util/Logging.h>

#include <exception>

#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/leaf/pending_work.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {

c10::Device resolve_device(const Context& context) {
  if (context.device == "cpu") return c10::Device(c10::kCPU);
  if (!at::detail::getHPUHooks().hasHPU())
    throw UsageError("--device: found 'hpu', but this program was built without it, allowed: cpu");
  return c10::Device(c10::kHPU, 0);
}

std::optional<c10::ScalarType> compute_dtype(const Context& context) {
  return context.dtype.has_value() ? std::optional(runtime::ops::dtype_of(*context.dtype)) : std::nullopt;
}

namespace {

/// Calls load() and adds its error to `problems`; throws io::Error if that is null. origin: the option or variable that
/// names the library.
template <class Load>
void load_or_list(const char* origin, std::vector<std::string>* problems, const Load& load) {
  std::string problem;
  try {
    return load();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    problem = what_of(error);
  }
  problem = origin + (": " + without_origin(problem));
  if (problems == nullptr) throw io::Error(problem);
  problems->push_back(std::move(problem));
}

void load_extensions(const Context& context, std::vector<std::string>* problems) {
  for (const std::string& file : context.load) load_or_list("--load", problems, [&] { runtime::load_extension(file); });
  for (const auto& file : runtime::extensions_of_environment())
    load_or_list("FP8_EXTENSIONS", problems, [&] { runtime::load_extension(file); });
}

}  // namespace

TorchScope::TorchScope(const Context& context, std::vector<std::string>* problems) : context_(context), guard_(this) {
  runtime::leave_lazy_mode();   // of PT_HPU_LAZY_MODE: commands read addresses, and train has --lazy
  c10::initLogging();           // TORCH_CPP_LOG_LEVEL
  runtime::settle_host_math();  // for models on the cpu, that ask for no device
  if (context.threads) at::set_num_threads(static_cast<int>(*context.threads));
  // The hpu's generator wraps the CPU's. at::manual_seed would ask for devices, and doctor must run where they are
  // misconfigured.
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(context.seed);
  load_extensions(context, problems);
}

}  // namespace fp8::commands
