// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG in the environment: the model of evaluate or generate is measured, or quantized on load, as it says.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "fp8/measure/calibration/session.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {

class EnvironmentConfig {
 public:
  /// Does nothing without QUANT_CONFIG. Throws io::Error for a bad config, a model on the CPU, or one that is fp8
  /// already.
  EnvironmentConfig(models::LoadedModel& model, const Context& context);
  /// After Ctrl-C: writes what was measured so far. After an error: writes nothing.
  ~EnvironmentConfig();
  EnvironmentConfig(const EnvironmentConfig&) = delete;
  EnvironmentConfig& operator=(const EnvironmentConfig&) = delete;

  /// The next forward sees these samples.
  void begin_samples(std::int64_t first, std::int64_t count);
  /// Writes the measurements, if that is what the config asked for, and warns about NaN and Inf.
  void finish();

 private:
  const Context& context_;
  std::shared_ptr<measure::CalibrationSession> session_;
  std::optional<KeepsWork> keeps_;  ///< from the first samples that are kept to their files
};

/// One warning for each NaN or Inf that calibration met (the first few, then their number). first_sample: the session's
/// first, of all.
void warn_non_finite(const measure::CalibrationSession& session, const Context& context, std::int64_t first_sample = 0);

}  // namespace fp8::commands
