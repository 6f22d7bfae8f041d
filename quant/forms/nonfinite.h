// SPDX-License-Identifier: Apache-2.0
// The rule for NaN and Inf in a checkpoint, the same for all code that reads weights: they are refused with tensor and
// count, unless the user says that they are to be copied. Floating point tensors and fp8 codes alike. No torch here.
#pragma once
#include <set>

#include "fp8/recipes/recipes.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

struct NonFinite {
  std::uint64_t nan = 0, inf = 0;
  bool any() const { return nan + inf > 0; }
  /// "NaN in 3 and Inf in 1 of 4096 values".
  std::string text(std::uint64_t values) const;
};

/// True if a dtype has such values at all: F64, F32, BF16, F16, F8_E4M3, F8_E5M2.
bool may_be_nonfinite(io::DType dtype);

/// Of a tensor of one of those dtypes (of another: none), chunk by chunk. Codes are read by `dialect`; bytes_are_codes:
/// U8 and I8 are E4M3.
NonFinite count_nonfinite(const io::Checkpoint& checkpoint, const std::string& tensor,
                          recipes::Dialect dialect = recipes::Dialect::ocp, bool bytes_are_codes = false);

/// The tensors that hold any, all of them read, on all threads. codes: those of bytes that are E4M3 codes. stop (may be
/// empty), asked between chunks: io::Error "interrupted".
std::map<std::string, NonFinite> find_nonfinite(const io::Checkpoint& checkpoint, recipes::Dialect dialect,
                                                const std::set<std::string>& codes = {},
                                                const std::function<bool()>& stop = {});

/// Of n values of such a dtype in memory; codes are read as ocp's.
NonFinite count_nonfinite(const void* values, io::DType dtype, std::int64_t n);
/// True if any of n values is NaN or Inf.
bool has_nonfinite(const void* values, io::DType dtype, std::int64_t n);

/// Throws io::Error "FOLDER: PLACE: expected finite weights, found NaN in ..."; values: how many were looked at.
[[noreturn]] void refuse_nonfinite(const io::Checkpoint& checkpoint, const std::string& place, const NonFinite& found,
                                   std::uint64_t values);
/// Counts and throws io::Error "FOLDER: TENSOR: expected finite weights, found NaN in ...".
[[noreturn]] void refuse_nonfinite(const io::Checkpoint& checkpoint, const std::string& tensor,
                                   recipes::Dialect dialect = recipes::Dialect::ocp);

/// {tensor: {"nan": N, "inf": N}}: the note in fp8.json.
io::Json nonfinite_json(const std::map<std::string, NonFinite>& found);

}  // namespace fp8::quant
