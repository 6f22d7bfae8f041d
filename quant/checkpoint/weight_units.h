// SPDX-License-Identifier: Apache-2.0
// The weights of a plan as units of work: rows are read in chunks (and decoded), new scales and codes are made of them
// where the plan says so, and the form writes them. Internal to quant/checkpoint. No torch here.
//
//   new scales per tensor    first the amax of all that share the scale (q, k, v), then the codes
//              per channel   one pass; large weights are cut into ranges of rows that run side by side
//              per block     the same, in whole rows of blocks
//              searched      INC's *_opt_* methods: per tensor they hold the whole weight
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// Weights in codes from this size on are made in parts of it, so that no thread is left alone with one.
inline constexpr std::int64_t kPartCodes = std::int64_t{16} << 20;

class WeightUnits {
 public:
  /// Both must outlive this.
  WeightUnits(const io::Checkpoint& source, const FolderPlan& plan);

  /// One unit of the plan's weights of these numbers. It throws io::Error naming the tensor: NaN or Inf that the plan
  /// does not allow, values that leave the range of the type, a weight that is not the measured one.
  Unit unit_of(const std::vector<std::size_t>& weights);
  std::optional<double> max_error(std::size_t i) const { return errors_[i]; }
  const UnderflowReport& lost() const { return lost_; }

 private:
  struct Work;
  struct Group {
    std::vector<const PlannedWeight*> members;
    std::mutex mutex;
    std::optional<float> amax;
  };
  /// Rows as values: as they were read, or decoded.
  struct Values {
    const void* data = nullptr;
    recipes::FloatType type = recipes::FloatType::F32;
    std::vector<float> decoded = {};
  };

  bool allowed(const std::string& tensor) const { return plan_.nonfinite.count(tensor) != 0; }
  std::int64_t chunk_rows(const PlannedWeight& w) const;
  std::int64_t part_rows(const PlannedWeight& w) const;
  void load_scales(UnitContext& context, Work& work);
  void make_rows(UnitContext& context, Work& work, std::int64_t first, std::int64_t last);
  void read(UnitContext& context, const PlannedWeight& w, std::int64_t row, std::int64_t rows) const;
  Values values_of(const UnitContext& context, const PlannedWeight& w, const std::vector<float>& scale_inv,
                   std::int64_t row, std::int64_t rows) const;
  void decode(UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const;
  bool overflows(const UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const;
  static void note_deviation(Work& work, const std::vector<float>& before, const std::uint8_t* codes, std::int64_t row,
                             std::int64_t rows);
  void rescale(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  void quantize(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  float make_codes(UnitContext& context, Work& work, const Values& values, std::int64_t row, std::int64_t rows) const;
  void refuse_if_nonfinite(const PlannedWeight& w, float amax) const;
  float group_amax(UnitContext& context, const PlannedWeight& of);
  float weight_amax(UnitContext& context, const PlannedWeight& w) const;
  WeightScales searched(const PlannedWeight& w) const;
  void finish_weight(UnitContext& context, Work& work);

  const io::Checkpoint& source_;
  const FolderPlan& plan_;
  std::map<std::string, Group> groups_;        // by their name, or the module's
  std::vector<std::optional<double>> errors_;  // of each weight of the plan; one thread finishes it
  UnderflowReport lost_;
};

}  // namespace fp8::quant
