// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other beside tensors: rows of numbers, texts, and whether they are about to do the same.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::runtime::distributed {

/// Bit patterns that one rank has and the others hold as 0 become the same on all ranks: -0.0, NaN and all.
void merge(std::span<double> values, ProcessGroup& group);

/// Every rank's row, one after the other in the order of the ranks; rows are of one length.
std::vector<double> all_gather(std::span<const double> row, ProcessGroup& group);

/// root's text on every rank.
std::string broadcast_text(std::string text, ProcessGroup& group, int root = 0);

/// f() runs on rank 0 alone, the others wait for it. Returns what it returned on every rank; what it throws is thrown
/// there, and is an io::Error "rank 0: ..." on the others, so that all of them end.
std::string from_first(const std::function<std::string()>& f, ProcessGroup& group);

/// Throws c10::Error on every rank, "[where] rank 1 differs from rank 0: lr: found 0.1, rank 0 has 0.01", unless all
/// have the same object.
void check_same(const io::Json& facts, ProcessGroup& group, const char* where);

}  // namespace fp8::runtime::distributed
