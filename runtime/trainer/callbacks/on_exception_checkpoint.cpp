// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/on_exception_checkpoint.h"

#include <stdexcept>

#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

OnExceptionCheckpoint::OnExceptionCheckpoint(std::filesystem::path dirpath, const std::string& filename)
    : folder_(dirpath / filename) {
  if (dirpath.empty()) throw std::invalid_argument("[OnExceptionCheckpoint] dirpath: found none, allowed: a folder");
  if (!io::is_file_name(filename))
    throw std::invalid_argument("[OnExceptionCheckpoint] filename: found '" + filename +
                                "', allowed: a name without '/' that is not '..'");
}

void OnExceptionCheckpoint::on_fit_start(Trainer& trainer, std::int64_t) {
  const auto& group = trainer.options().group;
  if (group != nullptr && group->size() > 1)
    throw std::invalid_argument("[OnExceptionCheckpoint] ranks: found " + std::to_string(group->size()) +
                                ", allowed: 1; checkpoints of several are written on the way (save_every_n_steps)");
}

void OnExceptionCheckpoint::on_exception(Trainer& trainer, const std::exception&) { trainer.save_checkpoint(folder_); }

}  // namespace fp8::trainer
