// SPDX-License-Identifier: Apache-2.0
// What ranks compare of the data that they share out: each takes every so many batches, so that all must have the same.
#pragma once
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/batch_source.h"

namespace fp8::commands {

/// {"batches", "first batch"}, each batch as [samples, checksum]; of a text "text" too, a checksum of all of it, and of
/// a DataLoader "last batch". Reads what it tells of and leaves the source at the beginning. Throws what next() does.
io::Json facts_of(trainer::BatchSource& source);

}  // namespace fp8::commands
