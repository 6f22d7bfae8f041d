// SPDX-License-Identifier: Apache-2.0
// The units of work that quantize: weights are read in chunks of rows, their scales made, their codes handed to a form.
// Internal to checkpoint_quantize. No torch here.
//
//   per tensor   one unit for a module, or for all that share a scale (q, k, v): first the amax of each, then the codes
//   per channel  one pass; large weights are cut into ranges of rows that run side by side
//   per block    the same, in whole rows of blocks
//   searched     INC's *_opt_* methods: per tensor they hold the whole weight
#pragma once
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/checkpoint/weight_slice.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant::units {

/// A weight to be quantized.
struct Weight {
  PlannedModule module;
  WeightSlice source;
  WeightSpec spec;
};

/// What all units of one run share; outlives them.
struct Shared {
  const io::Checkpoint& source;
  const CheckpointForm& form;
  const ConfigSpec& config;
  UnderflowReport& lost;  ///< weights that become zero
};

/// Weights that share one scale, or a single one.
Unit quantize_unit(const Shared& shared, std::vector<Weight> weights);

}  // namespace fp8::quant::units
