// SPDX-License-Identifier: Apache-2.0
// What a conversion does with every fp8 weight, decided before anything is written. Internal to quant; no torch here.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/checkpoint/reform_source.h"
#include "fp8/quant/forms/form.h"

namespace fp8::quant {

struct PlannedWeight {
  StoredWeight from;
  WeightSpec to;  ///< decoded: scheme unused
  Change change = Change::decoded;
  bool exact = true;
  std::string reason;
  std::string fuse_group;  ///< requantized per tensor: shares its scale with its group
  std::string output() const { return to.module + ".weight"; }
};

struct ConvertPlan {
  std::vector<PlannedWeight> weights;
  recipes::FloatType type = recipes::FloatType::BF16;  ///< of decoded weights
  const CheckpointForm* form = nullptr;                ///< null: to high precision
  ConfigSpec config;
  Rescaling rescaling;
  std::set<std::string> consumed;  ///< tensors of the source that are not carried as they are
  bool cast = false;               ///< other floating point tensors become `type` too
  std::vector<std::string> notes;
};

/// Throws as convert_checkpoint() says.
ConvertPlan plan_conversion(const ConvertSource& source, const ConvertOptions& options);

/// Rows at a time: 256 Ki codes, so that a chunk stays in a core's cache; transposed: 1 Mi, for those are read or
/// written in runs of as many bytes as there are rows. Whole blocks where new scales are made of them.
std::int64_t rows_per_chunk(const PlannedWeight& weight, bool transposed);

}  // namespace fp8::quant
