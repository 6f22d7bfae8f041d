// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train_precision.h"

#include <string>

namespace fp8::commands {

struct TrainPrecision::Impl {
  std::string precision;
};

TrainPrecision::TrainPrecision(const TrainOptions& options, const Context&, models::CausalLM&) : impl_(std::make_unique<Impl>()) {
  impl_->precision = options.precision;
  if (options.precision != "32-true") throw UsageError("--precision: found '" + options.precision + "', allowed: 32-true");
}

TrainPrecision::~TrainPrecision() = default;

std::function<std::shared_ptr<void>(const te::ForwardInfo&)> TrainPrecision::context() const { return {}; }
io::Json TrainPrecision::settings() const { return io::Json::object(); }
StateHooks TrainPrecision::state_hooks() const { return {}; }
std::function<void(io::Json&)> TrainPrecision::log_hook() const { return {}; }
io::Json TrainPrecision::summary() const { return io::Json::object(); }

}  // namespace fp8::commands
