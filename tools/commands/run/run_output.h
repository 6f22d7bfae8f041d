// SPDX-License-Identifier: Apache-2.0
// What `fp8 run` keeps of a run: the tensors, written as they come, their statistics, and how far they are from an
// earlier run's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/commands/cli/table.h"

namespace fp8::commands {

/// Collects the outputs of all calls along dimension 0. Memory is bounded by one call: the file's layout follows from
/// the first call, and every later one must return tensors of the same dtypes and shapes per sample.
class RunOutput {
 public:
  /// samples: of the whole run. reference: a file that an earlier run wrote, or empty.
  RunOutput(std::filesystem::path path, std::int64_t samples, const std::filesystem::path& reference);

  /// The tensors of samples [first, first + count). Throws io::Error if they do not fit those of the calls before.
  void append(const std::vector<std::pair<std::string, at::Tensor>>& tensors, std::int64_t first, std::int64_t count);
  void commit();

  /// {"output": {"shape", "dtype", "min", "max", "mean", "non_finite", "mean_difference"?, "max_difference"?}}; after
  /// commit().
  io::Json json() const;
  void rows(Table& table) const;

 private:
  struct Output {
    std::string name;
    std::vector<std::int64_t> shape;  ///< of the whole run
    at::ScalarType dtype = at::kFloat;
    std::int64_t rows_per_sample = 1;
    double min = 0, max = 0, sum = 0, difference_sum = 0, difference_max = 0;
    std::int64_t seen = 0, non_finite = 0;
    double mean() const { return seen > 0 ? sum / static_cast<double>(seen) : 0; }
    double mean_difference() const { return seen > 0 ? difference_sum / static_cast<double>(seen) : 0; }
  };
  void lay_out(const std::vector<std::pair<std::string, at::Tensor>>& tensors, std::int64_t count);
  void look_at(Output& output, const at::Tensor& values, std::uint64_t offset);

  std::filesystem::path path_;
  std::int64_t samples_;
  std::unique_ptr<io::SafetensorsFile> reference_;
  std::unique_ptr<io::SafetensorsWriter> writer_;
  std::vector<Output> outputs_;
};

}  // namespace fp8::commands
