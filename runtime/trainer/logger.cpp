// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/logger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/launcher.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

void check_loggers(const Trainer& trainer, const char* who) {
  if (trainer.options().fast_dev_run > 0 || !trainer.loggers().empty()) return;
  throw std::invalid_argument(std::string("[") + who +
                              "] loggers: found none among the trainer's callbacks, allowed: 1 or more (JsonlLogger)");
}

void append_line(const io::Descriptor& file, const std::filesystem::path& path, const io::Json& row) {
  const auto line = row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const auto n = write(file.get(), line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_errno(path, "write", errno, line.size());
    done += static_cast<std::size_t>(n);
  }
}

JsonlLogger::JsonlLogger(std::filesystem::path path) : path_(std::move(path)) {
  if (const auto ranks = io::launched(); ranks && ranks->rank > 0) return;
  file_ = io::Descriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file_.get() < 0) io::fail_errno(path_, "open", errno);
}

void JsonlLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (file_.get() < 0) return;
  io::Json row = {{"step", step}};
  row.update(metrics);
  append_line(file_, path_, row);
}

}  // namespace fp8::trainer
