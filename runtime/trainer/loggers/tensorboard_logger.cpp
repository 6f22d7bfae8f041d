// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/tensorboard_logger.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/loggers/event_file.h"

namespace fp8::trainer {
namespace {

constexpr char kPrefix[] = "events.out.tfevents.";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

}  // namespace

TensorBoardLogger::TensorBoardLogger(std::filesystem::path folder)
    : folder_(std::move(folder)), first_rank_(io::is_first_process()) {
  std::error_code error;
  if (first_rank_ && !std::filesystem::create_directories(folder_, error) && error)
    io::fail(folder_, "can't be made: " + error.message());
}

void TensorBoardLogger::begin(const std::string& name) { file_ = std::make_unique<LogFile>(folder_ / name); }

io::Json TensorBoardLogger::state() const {
  if (file_ == nullptr) return {{"file", nullptr}, {"bytes", 0}};
  return {{"file", file_->path().filename().string()}, {"bytes", file_->size()}};
}

void TensorBoardLogger::load_state(const io::Json& state) {
  const auto& file = state.at("file");
  const auto bytes = state.at("bytes").get<std::uint64_t>();
  if (!first_rank_) return;
  const auto kept = file.is_null() ? std::string() : file.get<std::string>();
  if (!kept.empty() && (!kept.starts_with(kPrefix) || kept.find('/') != std::string::npos))
    io::fail(folder_, "checkpoint: file '" + io::printable(kept) + "', allowed: " + kPrefix + "...");
  file_.reset();
  if (kept.empty()) return;
  if (!std::filesystem::exists(folder_ / kept)) io::fail(folder_ / kept, "is not there, but the checkpoint names it");
  begin(kept);
  file_->truncate(bytes);
}

void TensorBoardLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!first_rank_) return;
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& [name, value] : metrics.items())
    if (value.is_number()) scalars.emplace_back(name, value.get<float>());
  if (scalars.empty()) return;
  const double now = wall_time();
  if (file_ == nullptr) {
    begin(kPrefix + std::to_string(static_cast<std::int64_t>(now)) + "." + host_name());
    file_->append(version_record(now));
  }
  file_->append(scalars_record(now, step, scalars));
}

void TensorBoardLogger::on_save_checkpoint(Trainer&, std::int64_t) {
  if (file_ != nullptr) file_->sync();
}

}  // namespace fp8::trainer
