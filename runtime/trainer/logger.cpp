// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/logger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/launcher.h"

namespace fp8::trainer {

JsonlLogger::JsonlLogger(std::filesystem::path path) : path_(std::move(path)) {
  if (const auto ranks = io::launched(); ranks && ranks->rank > 0) return;
  file_ = io::Descriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file_.get() < 0) io::fail_errno(path_, "open", errno);
}

void JsonlLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (file_.get() < 0) return;
  io::Json row = {{"step", step}};
  row.update(metrics);
  const auto line = row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const auto n = write(file_.get(), line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_errno(path_, "write", errno, line.size());
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace fp8::trainer
