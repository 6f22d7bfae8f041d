// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/logger.h"

#include <stdexcept>
#include <string>

#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

void check_loggers(const Trainer& trainer, const char* who) {
  if (trainer.options().fast_dev_run > 0 || !trainer.loggers().empty()) return;
  throw std::invalid_argument(std::string("[") + who +
                              "] loggers: found none among the trainer's callbacks, allowed: 1 or more (JsonlLogger)");
}

void log_to_all(const Trainer& trainer, const io::Json& row, std::int64_t step) {
  if (row.empty()) return;
  for (Logger* logger : trainer.loggers()) logger->log_metrics(row, step);
}

void append_line(LogFile& file, const io::Json& row) {
  file.append(row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n");
}

void JsonlLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!file_.writes()) return;
  io::Json row = {{"step", step}};
  row.update(metrics);
  append_line(file_, row);
}

}  // namespace fp8::trainer
