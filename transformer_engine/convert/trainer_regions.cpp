// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/convert/trainer_regions.h"

#include <exception>
#include <memory>
#include <utility>

namespace fp8::te {

trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       const Fp8AutocastOptions& regions) {
  return with_precision(plugin, std::move(options), [regions](const trainer::ForwardInfo&) { return regions; });
}

trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       std::function<Fp8AutocastOptions(const trainer::ForwardInfo&)> regions) {
  const auto failure = std::make_shared<std::exception_ptr>();  // of the end of a region
  options.forward_context = [&plugin, regions = std::move(regions), failure](const trainer::ForwardInfo& info) {
    auto step = regions(info);
    if (info.training && info.microbatches > 1) step.is_first_microbatch = info.microbatch == 0;
    return std::shared_ptr<void>(new ForwardContext(plugin.forward_context(step)), [failure](ForwardContext* context) {
      try {
        delete context;
      } catch (const std::exception&) {
        *failure = std::current_exception();  // a shared_ptr's deleter must not throw
      }
    });
  };
  options.context_ended = [failure] {
    if (*failure != nullptr) std::rethrow_exception(std::exchange(*failure, nullptr));
  };
  return options;
}

}  // namespace fp8::te
