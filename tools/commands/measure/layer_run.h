// SPDX-License-Identifier: Apache-2.0
// What the ways to measure a checkpoint layer by layer have in common: one layer in memory at a time
// (measure_blocks.cpp), a range of layers on each of several ranks (measure_pipeline.cpp). The batches are those of the
// whole model's run, so every operation sees the same tensors and every observer the same calls.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "fp8/measure/calibration/session.h"
#include "fp8/tools/commands/inputs/samples.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/tools/models/layer_stream.h"

namespace fp8::commands {

/// How a run opens its checkpoint.
models::LoadOptions stream_options(const MeasureRun& run);
/// Warns of tensors that nobody uses.
void warn_unused(const MeasureRun& run, const models::LayerStream& stream);

class LayerRun {
 public:
  LayerRun(const LayerRun&) = delete;
  LayerRun& operator=(const LayerRun&) = delete;

 protected:
  /// The samples: those that are looked at, as this run's.
  LayerRun(MeasureRun& run, models::LayerStream& stream, Samples samples);
  ~LayerRun() = default;

  /// Selects modules and finds out what must run: session_ and all below it. Throws io::Error if nothing is selected,
  /// and if the files can't be written.
  void plan(measure::CalibrationOptions calibration);
  /// Calls f(first, count) for every batch; begin_samples() and Ctrl-C are seen to.
  template <class F>
  void for_batches(const F& f);
  std::int64_t batches() const;

  /// Of the hidden states of samples [first, first + count): [count, columns, H] on hpu, not filled.
  at::Tensor empty_hidden(std::int64_t first, std::int64_t count) const;
  /// What a batch in a layer takes at its largest: the norm in f32 and its result, q, k, v; or gate, up and their
  /// product.
  std::int64_t batch_bytes() const;
  /// Tokens of the largest batch.
  std::int64_t batch_tokens() const;
  std::int64_t element_bytes() const;

  /// The embedding, where it is measured: all of it is looked at, though only some of its rows are needed.
  void look_at_embedding();
  /// What is measured at the end: the head, where it is, and what is between it and the layers.
  std::vector<measure::WeightModule> end_modules() const;

  MeasureRun& run_;
  models::LayerStream& stream_;
  Samples samples_;
  std::int64_t batch_;
  std::shared_ptr<measure::StagedCalibration> session_;  ///< run_.session
  std::int64_t layers_ = 0;                              ///< that are run
  bool head_ = false, after_ = false;                    ///< it is measured; so is something between it and the layers

 private:
  std::int64_t last_layer() const;
};

template <class F>
void LayerRun::for_batches(const F& f) {
  for (std::int64_t first = 0, count = 0; first < samples_.count(); first += count) {
    check_interrupted();
    count = samples_.together(first, batch_);
    session_->begin_samples(first, count);
    f(first, count);
  }
}

}  // namespace fp8::commands
