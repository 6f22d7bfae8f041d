// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/environment_config.h"

#include <fmt/format.h>

#include "fp8/configs/configs.h"
#include "fp8/measure/calibration/recorder.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {

EnvironmentConfig::EnvironmentConfig(models::LoadedModel& model, const Context& context) : context_(context) {
  const auto path = configs::quant_config_from_environment();
  if (!path.has_value()) return;
  const auto config = configs::read_quant_config(*path, measure::parse_options());
  if (config.mode == configs::QuantMode::NONE) return;
  if (config.mode == configs::QuantMode::AUTO) {
    throw io::Error(
        config.source +
        ": key 'mode': found AUTO in QUANT_CONFIG, which leaves the choice open, allowed: NONE, MEASURE, QUANTIZE");
  }
  if (context.device != "hpu")
    throw UsageError("--device: found '" + context.device + "', but QUANT_CONFIG asks for " +
                     configs::name_of(config.mode) + ", allowed: hpu");
  if (model.config_json.contains("quantization_config")) {
    throw io::Error(model.folder.string() + ": the checkpoint is fp8 already; QUANT_CONFIG asks for " +
                    configs::name_of(config.mode) + " of a high precision one");
  }
  const bool quantize = config.mode == configs::QuantMode::QUANTIZE || config.mode == configs::QuantMode::LOAD;
  // A checkpoint with a quantized head has an embedding of its own too, in high precision; so has the model quantized
  // on load.
  const auto head_is_selected = [&] {
    return configs::module_filter(config).selects("Linear", model.model->name_of(*model.model->parts().head));
  };
  if (quantize && head_is_selected()) model.model->untie_head();
  runtime::device_dialect("QUANT_CONFIG");  // a device that has no fp8 is refused, whatever --dialect says
  const auto report = quant::convert_for_inference(*model.model, {.quant = quantize});
  for (const auto& warning : report.warnings) context.warn(warning);
  if (report.converted.empty()) context.warn(config.source + ": no module of the model is selected");
  if (quantize) return;
  session_ = measure::CalibrationSession::of(*model.model);
  if (session_ != nullptr) measure::check_writable(config.dump_stats_path.string());
}

EnvironmentConfig::~EnvironmentConfig() {
  if (session_ == nullptr) return;
  try {
    if (session_->samples() > 0) keeps_.emplace();
    if (interrupted() && session_->samples() > 0) session_->finalize();
  } catch (const std::exception& error) {
    write_stderr("fp8: warning: measurements were not written: " + one_line(error.what()) + "\n");
  }
  session_->discard();
}

void EnvironmentConfig::begin_samples(std::int64_t first, std::int64_t count) {
  if (!session_) return;
  if (session_->samples() > 0) keeps_.emplace();
  session_->begin_samples(first, count);
}

void EnvironmentConfig::finish() {
  if (!session_) return;
  keeps_.emplace();
  warn_non_finite(*session_, context_);
  session_->finalize();  // if this throws, the destructor discards
  session_.reset();
  keeps_.reset();
}

void warn_non_finite(const measure::CalibrationSession& session, const Context& context, std::int64_t first_sample) {
  constexpr std::size_t kShown = 5;
  const auto found = session.non_finite();
  for (std::size_t i = 0; i < found.size() && i < kShown; ++i) {
    const auto& f = found[i];
    const std::string where = f.sample < 0 ? "" : fmt::format(" of sample {}", first_sample + f.sample);
    context.warn(fmt::format("{}: {} in its {}{}; not stored", f.module, f.nan ? "NaN" : "Inf", f.tensor, where));
  }
  if (found.size() > kShown) context.warn(fmt::format("{} more tensors with NaN or Inf", found.size() - kShown));
}

}  // namespace fp8::commands
