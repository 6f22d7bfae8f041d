// SPDX-License-Identifier: Apache-2.0
// fp8 measure --pipeline: models larger than one machine, their decoder layers divided over the processes that a
// launcher started. What comes of it is what one process would have written, byte for byte.
#pragma once
#include <functional>

#include "fp8/tools/commands/measure/measure_run.h"

namespace fp8::commands {

/// Meets the other ranks, refuses those that are about to do something else, and measures. report() runs on rank 0,
/// where run.session is ready to be finalized and run.ranks says who did what, while the others wait for it. The
/// contexts of ranks above 0 are quiet from here on. Throws UsageError for more ranks than layers and where
/// --memory-limit is too little for this rank's, c10::Error naming a rank that is gone.
void measure_in_pipeline(MeasureRun& run, const std::function<void()>& report);

}  // namespace fp8::commands
