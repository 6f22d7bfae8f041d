// SPDX-License-Identifier: Apache-2.0
// The weights of a checkpoint that takes another form: each becomes a unit of work that reads its codes, changes them
// as the plan says and writes them. No torch here.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/reform_plan.h"
#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/forms/nonfinite.h"

namespace fp8::quant {

/// Weights from this size on are made in parts of it, so that no thread is left alone with one.
inline constexpr std::int64_t kPartCodes = std::int64_t{16} << 20;

class ReformedWeights {
 public:
  /// All must outlive this, and the plan must be complete. nonfinite: tensors whose NaN and Inf are allowed.
  ReformedWeights(const io::Checkpoint& source, const ConvertPlan& plan,
                  const std::map<std::string, NonFinite>& nonfinite);

  /// w: one of the plan's. The unit throws io::Error naming the tensor: values that leave the range of the type.
  Unit unit_of(const PlannedWeight& w);
  /// max |w - w'| / max |w| of the plan's weight number i; nothing where it is exact or was not made.
  std::optional<double> max_error(std::size_t i) const { return errors_[i]; }

 private:
  struct Work;
  struct Group {
    std::mutex mutex;
    std::optional<float> amax;
  };

  bool allowed(const std::string& tensor) const { return nonfinite_.count(tensor) != 0; }
  std::int64_t chunk_rows(const PlannedWeight& w) const;
  void load_scales(UnitContext& context, Work& work);
  void convert_rows(UnitContext& context, Work& work, std::int64_t first, std::int64_t last);
  static void decode_source(const Work& work, const std::uint8_t* codes, std::int64_t row, std::int64_t rows, void* y,
                            recipes::FloatType type);
  static void note_deviation(Work& work, const std::vector<float>& before, const std::uint8_t* codes, std::int64_t row,
                             std::int64_t rows);
  bool overflows(const UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const;
  void decode(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  void rescale(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  void requantize(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  float tensor_amax(UnitContext& context, const PlannedWeight& of);
  float weight_amax(UnitContext& context, const PlannedWeight& w) const;
  void finish_weight(UnitContext& context, Work& work);

  const io::Checkpoint& source_;
  const ConvertPlan& plan_;
  const std::map<std::string, NonFinite>& nonfinite_;
  std::map<std::string, Group> groups_;
  std::vector<std::optional<double>> errors_;  // of each weight of the plan; one thread finishes it
};

}  // namespace fp8::quant
