// SPDX-License-Identifier: Apache-2.0
// Calibration of a model whose weights are in memory one after the other.
//
//   session = StagedCalibration::plan(weights, ops, options)
//   of each layer:   session->enter(its weights)    run it on all of the data    session->leave(its weights)
//   of a weight that is too large to enter, part after part:
//                    look_at_part(weight, part, first)    observe_output_part(record, product with the part, ...)
#pragma once
#include <map>
#include <string>

#include "fp8/measure/calibration/session.h"

namespace fp8::measure {

/// Writes nothing unless finalize() is called: what is known of half the model is no measurement.
class StagedCalibration final : public CalibrationSession {
 public:
  /// The modules are selected and their order in the files is settled, but only `ops` are watched. Of the weights the
  /// sizes count; the values come with enter().
  static std::shared_ptr<StagedCalibration> plan(const std::vector<WeightModule>& weights,
                                                 const std::vector<OpNode>& ops, CalibrationOptions options);

  /// These weights are in memory now: the selected ones among them are looked at and watched, until leave(). Throws
  /// c10::Error for a weight that can't be watched.
  void enter(const std::vector<WeightModule>& weights);
  /// Takes the watchers off weights that entered.
  void leave(const std::vector<WeightModule>& weights);

  /// The record of a selected module; none: it is not selected.
  std::optional<std::size_t> record_of(const std::string& module) const;
  /// The observer can be shown parts of a tensor (observer.h).
  bool takes_parts() const { return recorder_.observers_.type.takes_parts; }
  /// All that the observers know is in their states: another process can go on from a snapshot, or join its own.
  bool keeps_states() const;

  /// Rows [first, first + part.size(0)) of a weight, part after part, each once. `weight` has its sizes.
  void look_at_part(const WeightModule& weight, const at::Tensor& part, std::int64_t first);
  /// What such a weight multiplies.
  void observe_input(std::size_t record, const at::Tensor& x) { recorder_.observe({record}, {x}, {}); }
  /// What came of the product with such a part: columns [first, ...) of a `columns` wide last dimension. False if they
  /// hold a NaN or Inf: they were not shown then, and the caller sees to it that no other part of the same output is
  /// (forget_outputs(), and again without that call). reported: whether a NonFinite is to be listed.
  bool observe_output_part(std::size_t record, const at::Tensor& y, std::int64_t first, std::int64_t columns,
                           bool reported = true) {
    return recorder_.observe_output_part(record, y, first, columns, reported);
  }
  void forget_outputs(std::size_t record) { recorder_.forget_outputs(record); }

 private:
  explicit StagedCalibration(CalibrationOptions options) : CalibrationSession(std::move(options)) {}

  std::map<std::string, std::size_t> records_;  ///< of modules with a weight, by name
};

}  // namespace fp8::measure
