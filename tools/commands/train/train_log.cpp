// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/trainer/loggers/logger.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/work/process.h"

namespace fp8::commands {
namespace {

/// The line of a step.
io::Json log_entry(const trainer::StepReport& r) {
  io::Json entry = {{"step", r.step},           {"epoch", r.epoch},
                    {"loss", r.loss},           {"lr", r.lr},
                    {"grad_norm", r.grad_norm}, {"tokens", r.tokens},
                    {"seconds", r.seconds},     {"tokens_per_second", r.tokens_per_second}};
  const auto memory = runtime::memory_stats();
  if (memory.MaxInUse > 0) {
    entry["memory"] = {{"in_use", memory.InUse}, {"max", memory.MaxInUse}};
  } else {  // --device cpu: the system knows of the whole process only
    entry["memory"] = {{"resident_max", peak_resident_bytes()}};
  }
  if (r.val_loss) entry["eval_loss"] = *r.val_loss;
  if (r.loss_scale) entry["loss_scale"] = *r.loss_scale;
  if (r.skipped) entry["skipped"] = true;
  return entry;
}

/// {"memory": {"max": 1}} as {"memory/max": 1}.
io::Json flat(const io::Json& entry) {
  io::Json row = io::Json::object();
  const io::Json by_path = entry.flatten();
  for (const auto& [path, value] : by_path.items()) row[path.substr(1)] = value;
  return row;
}

}  // namespace

void TrainLog::refuse_if_locked(const std::filesystem::path& path) {
  const io::Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) != 0) io::fail(path, "another run is writing it");
}

TrainLog::TrainLog(std::filesystem::path path, std::function<void(io::Json&)> more)
    : file_(std::move(path)), more_(std::move(more)) {
  if (file_.writes() && flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0)
    io::fail(file_.path(), "another run is writing it");
}

void TrainLog::on_fit_start(trainer::Trainer&, std::int64_t step) {
  std::size_t keep = 0;
  std::int64_t last = 0;
  if (step > 0)
    for_each_step(file_.path(), [&](const io::Json& entry, std::size_t end) {
      if (entry["step"] != last + 1)
        throw io::Error(file_.path().string() + ": step " + entry["step"].dump() + " follows step " +
                        std::to_string(last));
      last = entry["step"];
      keep = end;
      return last < step;
    });
  if (last != step)
    io::fail(file_.path(),
             "ends at step " + std::to_string(last) + ", but the checkpoint is of step " + std::to_string(step));
  file_.truncate(keep);
}

void TrainLog::on_step_end(trainer::Trainer& trainer, const trainer::StepReport& report) {
  auto entry = log_entry(report);
  if (more_) more_(entry);
  trainer::append_line(file_, entry);
  if (!trainer.loggers().empty()) trainer::log_to_all(trainer, flat(entry), report.step);
}

void TrainLog::on_save_checkpoint(trainer::Trainer&, std::int64_t) { file_.sync(); }

}  // namespace fp8::commands
