// SPDX-License-Identifier: Apache-2.0
// A second reading of checkpoints, for verify_conversion(): it shares the reader of files with the first (forms/form.h)
// and nothing else. It finds codes by the tensors' dtypes and scales by their names and shapes, asks config.json only
// for the size of blocks, and computes in f64 from the definition of the formats. Slow and plain. No torch here.
#pragma once

#include "fp8/recipes/recipes.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// x rounded to nearest even once, as a value; Inf past the largest number.
float rounded_to(float x, recipes::FloatType type);

class CheckpointReading {
 public:
  /// bytes_are_codes: U8 and I8 weights with scales are E4M3. upright: so are weights beside a scale_weight, which INC
  /// has transposed. Throws io::Error naming a weight whose scales can't be told.
  explicit CheckpointReading(const io::Checkpoint& checkpoint, bool bytes_are_codes = false, bool upright = false);

  struct Weight {
    std::int64_t rows = 0, cols = 0;  ///< upright, [out, in]
    bool transposed = false;          ///< stands as [cols, rows]
    bool e5m2 = false;
    std::vector<float> scale;  ///< of blocks of `height` by `width`, in row-major order
    std::int64_t height = 1, width = 1;
    std::vector<float> input;  ///< the static input scale; empty: none
  };
  /// The weights in codes, by module.
  const std::map<std::string, Weight>& weights() const { return weights_; }
  struct Cache {
    std::vector<float> k, v;
  };
  /// The scales of key-value caches, by attention module.
  const std::map<std::string, Cache>& caches() const { return caches_; }
  /// Rows [first, first + count) of one of them: f32(value(code) * scale).
  void read(const std::string& module, std::int64_t first, std::int64_t count, float* y) const;
  /// Elements [first, first + count) of a floating point tensor, exactly (F64: rounded to f32).
  void read_floats(const std::string& tensor, std::int64_t first, std::int64_t count, float* y) const;

 private:
  void find_scales(const std::string& module, bool bytes_are_codes);
  void find_cache(const std::string& tensor);
  std::vector<float> values_of(const std::string& tensor) const;
  std::int64_t side(std::int64_t n, std::int64_t count, const std::vector<std::int64_t>& said,
                    const std::string& tensor) const;

  const io::Checkpoint& checkpoint_;
  std::map<std::string, Weight> weights_;
  std::map<std::string, Cache> caches_;
  bool upright_ = false;
  std::vector<std::int64_t> said_rows_, said_cols_;  // sides of blocks that config.json names anywhere
};

}  // namespace fp8::quant
