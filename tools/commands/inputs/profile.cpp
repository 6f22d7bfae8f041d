// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/profile.h"

#include "fp8/runtime/profile/hpu_profiler.h"
#include "fp8/tools/commands/cli/torch_scope.h"

namespace fp8::commands {

std::shared_ptr<runtime::Profiler> profiler_of(const ProfileOptions& o, const Context& context) {
  if (o.folder.empty()) return nullptr;
  runtime::HPUProfilerOptions options;
  options.dirpath = o.folder.string();
  if (!o.schedule_text.empty()) options.schedule = o.schedule();
  if (!resolve_device(context).is_hpu()) options.activities = {runtime::ProfilerActivity::CPU};
  options.record_shapes = options.record_module_names = options.profile_memory = true;
  options.warn = [&context](const std::string& text) { context.warn(text); };
  return std::make_shared<runtime::HPUProfiler>(std::move(options));
}

}  // namespace fp8::commands
