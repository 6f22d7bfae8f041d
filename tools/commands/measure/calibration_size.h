// SPDX-License-Identifier: Apache-2.0
// How much of the data is measured where the options leave it open: 512 chunks of 2048 tokens, as is usual for
// calibration, where the model takes chunks so long and where that is a matter of minutes. What a model of P parameters
// costs is about 2 P operations a token; of kOperations there are so many tokens, but no fewer than kLeastTokens. It is
// reckoned, not timed: a measurement is the same on every machine, and again.
#pragma once
#include <cstdint>
#include <string>

#include "fp8/tools/commands/measure/measure_options.h"

namespace fp8::commands {

/// Chunks of seq_len tokens, at least 1.
std::int64_t default_samples(std::int64_t parameters, std::int64_t seq_len);
/// Chunks per forward: as many as 2048 tokens, at most 8.
std::int64_t default_batch(std::int64_t seq_len);

/// The options with samples, seq_len and batch filled in. Throws io::Error for a model that can't be read.
MeasureOptions sized(const MeasureOptions& options);

/// " of 512 tokens, ..." where the options left it open how much; "" of a TorchScript model.
std::string size_note(const MeasureOptions& options);

}  // namespace fp8::commands
