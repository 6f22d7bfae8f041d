// SPDX-License-Identifier: Apache-2.0
// A program that ends while a calibration lives, by exit() or by a model that is never destroyed, keeps what was
// measured.
#pragma once
#include <memory>

namespace fp8::measure {

class CalibrationSession;

class ExitDump {
 public:
  /// Writes the session's files at the end of this process if it lives until then and was not finalized.
  static void at_exit(const std::shared_ptr<CalibrationSession>& session);

 private:
  struct List;
};

}  // namespace fp8::measure
