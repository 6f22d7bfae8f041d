// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/prediction_writer.h"

#include <ATen/ops/empty.h>

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/trainer/checkpoint_io.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

/// Names sort as batches do.
std::string name_of_batch(const Trainer& trainer, std::int64_t index) {
  const auto& group = trainer.options().group;
  char text[64];
  if (group == nullptr || group->size() == 1 || trainer.options().strategy.use_distributed_sampler)
    std::snprintf(text, sizeof text, "batch.%08lld.", static_cast<long long>(index));
  else
    std::snprintf(text, sizeof text, "rank.%05d.batch.%08lld.", group->rank(), static_cast<long long>(index));
  return text;
}

/// Every rank's on rank 0.
void gather(std::map<std::string, at::Tensor>& tensors, runtime::distributed::ProcessGroup& group) {
  io::Json own = io::Json::object();
  for (const auto& [name, tensor] : tensors)
    own[name] = {{"dtype", static_cast<int>(tensor.scalar_type())}, {"sizes", tensor.sizes().vec()}};
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto text = runtime::distributed::broadcast_text(group.rank() == rank ? own.dump() : "", group, rank);
    const auto theirs = io::parse_json(text, "predictions");
    for (const auto& [name, as] : theirs.items()) {
      const auto tensor = group.rank() == rank ? tensors.at(name)
                                               : at::empty(as.at("sizes").get<std::vector<std::int64_t>>(),
                                                           static_cast<at::ScalarType>(as.at("dtype").get<int>()));
      if (tensor.numel() > 0) group.broadcast(tensor, rank);
      if (group.rank() == 0) tensors[name] = tensor;
    }
  }
}

}  // namespace

PredictionWriter::PredictionWriter(std::filesystem::path file) : file_(std::move(file)) {
  if (file_.empty()) throw std::invalid_argument("[PredictionWriter] file: found none, allowed: a path");
}

void PredictionWriter::on_predict_start(Trainer&) { tensors_.clear(); }

void PredictionWriter::on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t index,
                                            const std::vector<at::Tensor>& outputs) {
  const auto name = name_of_batch(trainer, index);
  char number[16];
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::snprintf(number, sizeof number, outputs.size() > 10 ? "%04zu" : "%zu", i);
    tensors_[name + number] = outputs[i]
                                  .detach()
                                  .to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)
                                  .contiguous();  // the module's may change
  }
}

void PredictionWriter::write() const {
  if (file_.has_parent_path()) std::filesystem::create_directories(file_.parent_path());
  write_tensors(file_, tensors_);
}

void PredictionWriter::on_predict_end(Trainer& trainer) {
  const auto& group = trainer.options().group;
  if (group == nullptr || group->size() == 1) {
    write();
  } else {
    gather(tensors_, *group);
    runtime::distributed::from_first(
        [&] {
          write();
          return std::string();
        },
        *group);
  }
  tensors_.clear();
}

}  // namespace fp8::trainer
