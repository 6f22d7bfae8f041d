// SPDX-License-Identifier: Apache-2.0
#include "fp8/recipes/block_scaling.h"

#include <algorithm>
#include <cmath>

#include "fp8/runtime/kernels/cast.h"

namespace fp8::recipes {
namespace {

CurrentScaling rule_of(const BlockScaling& recipe) {
  return {.fp8_format = recipe.fp8_format,
          .power_of_two_scale = recipe.power_of_two_scale,
          .amax_epsilon = recipe.amax_epsilon};
}

constexpr float kE4M3Max = 448.0f, kFloatMax = std::numeric_limits<float>::max();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

std::int64_t blocks_of(std::int64_t size) { return size / kNVFP4Block + (size % kNVFP4Block != 0 ? 1 : 0); }

// The grid of block scales of a matrix.
struct Grid {
  std::int64_t rows, cols;  // of the matrix
  std::int64_t height;      // rows of a block: 1 or 16
  std::int64_t down() const { return height == 1 ? rows : blocks_of(rows); }
  std::int64_t across() const { return blocks_of(cols); }
  std::int64_t bytes_per_row() const { return cols / 2 + cols % 2; }
  std::int64_t at(std::int64_t row, std::int64_t col) const { return row / height * across() + col / kNVFP4Block; }
};

Grid grid_of(std::int64_t rows, std::int64_t cols, bool square_blocks) {
  if (rows < 0 || cols < 0 || (cols > 0 && rows > std::numeric_limits<std::int64_t>::max() / 8 / cols))
    io::fail<std::invalid_argument>("NVFP4: sizes are [{}, {}], allowed: 0 or more, and below 2^60 elements", rows,
                                    cols);
  return {rows, cols, square_blocks ? kNVFP4Block : 1};
}

// Largest magnitude of each block; NaN for one with a NaN or an infinity.
std::vector<float> amaxes_of(const float* x, const Grid& grid) {
  std::vector<float> amax(static_cast<std::size_t>(grid.down() * grid.across()), 0.0f);
  for (std::int64_t row = 0; row < grid.rows; ++row) {
    for (std::int64_t col = 0; col < grid.cols; ++col) {
      const float magnitude = std::fabs(x[row * grid.cols + col]);
      float& largest = amax[static_cast<std::size_t>(grid.at(row, col))];
      if (!std::isfinite(magnitude)) largest = kNaN;
      if (magnitude > largest) largest = magnitude;
    }
  }
  return amax;
}

float encoding_scale(const std::vector<float>& amaxes) {
  float amax = 0.0f;
  for (const float block : amaxes) amax = block > amax ? block : amax;
  return amax == 0.0f ? 1.0f : std::min(kE4M3Max * kE2M1Max / amax, kFloatMax);
}

std::vector<std::uint8_t> e4m3_codes(const std::vector<float>& values) {
  std::vector<std::uint8_t> codes(values.size());
  if (values.empty()) return codes;
  kernels::cast_to_fp8(kernels::dense_cast(values.data(), 1, static_cast<std::int64_t>(values.size()), codes.data(),
                                           kernels::Format::E4M3, kE4M3Max));
  return codes;
}

// The multiplier of each block's codes.
std::vector<float> multipliers(const std::vector<std::uint8_t>& block_scales, float scale_inv) {
  const float* values = kernels::decode_table(kernels::Format::E4M3);
  std::vector<float> result;
  for (const std::uint8_t code : block_scales) result.push_back(values[code] * scale_inv);
  return result;
}

}  // namespace

std::optional<FieldProblem> find_problem(const BlockScaling& recipe) {
  if (auto problem = find_problem(rule_of(recipe))) return problem;
  const struct {
    const char* field;
    int dim;
  } dims[] = {{"x_block_scaling_dim", recipe.x_block_scaling_dim},
              {"w_block_scaling_dim", recipe.w_block_scaling_dim},
              {"grad_block_scaling_dim", recipe.grad_block_scaling_dim}};
  const char* square = nullptr;
  for (const auto& [field, dim] : dims) {
    if (dim != 1 && dim != 2) return FieldProblem{field, std::to_string(dim), "1 (1 x block), 2 (block x block)"};
    if (dim == 1) continue;
    if (square != nullptr) return FieldProblem{field, "2", std::string("1 where ") + square + " is 2"};
    square = field;
  }
  const bool power_of_two = recipe.block > 0 && (recipe.block & (recipe.block - 1)) == 0;
  if (!power_of_two || recipe.block < 16 || recipe.block > 1024)
    return FieldProblem{"block", std::to_string(recipe.block), "16, 32, 64, 128, 256, 512, 1024"};
  return std::nullopt;
}

void validate(const BlockScaling& recipe) { throw_problem("BlockScaling", find_problem(recipe)); }

RecipeScaling scaling_of(const BlockScaling& recipe) {
  const auto how = [&](int dim) {
    return OperandScaling{.rule = ScalingRule::blocks,
                          .block_rows = dim == 2 ? recipe.block : 1,
                          .block_cols = recipe.block,
                          .power_of_two = recipe.power_of_two_scale,
                          .amax_epsilon = recipe.amax_epsilon};
  };
  return {.fp8_format = recipe.fp8_format,
          .input = how(recipe.x_block_scaling_dim),
          .weight = how(recipe.w_block_scaling_dim),
          .grad = how(recipe.grad_block_scaling_dim)};
}

float block_scale(float amax, float fp8_max, const BlockScaling& recipe, float dtype_max) {
  return current_scale(amax, fp8_max, rule_of(recipe), dtype_max);
}

// Limits of MXFP8; the arithmetic of E8M0 is the kernels'.

std::optional<FieldProblem> find_problem(const MXFP8& recipe) {
  if (recipe.fp8_format == RecipeFormat::E5M2) return FieldProblem{"fp8_format", "E5M2", "E4M3, HYBRID"};
  if (recipe.block != kernels::kMxBlock) return FieldProblem{"block", std::to_string(recipe.block), "32"};
  return std::nullopt;
}

void validate(const MXFP8& recipe) { throw_problem("MXFP8", find_problem(recipe)); }

RecipeScaling scaling_of(const MXFP8& recipe) {
  const OperandScaling how{.rule = ScalingRule::mx, .block_rows = 1, .block_cols = kernels::kMxBlock};
  return {.fp8_format = recipe.fp8_format, .input = how, .weight = how, .grad = how, .row_alignment = recipe.block};
}

std::uint8_t e8m0_from_amax(float amax, float fp8_max) { return kernels::e8m0_from_amax(amax, fp8_max); }

// NVFP4 quantization and back.

std::uint8_t e2m1_from_float(float x) {
  const float magnitude = std::fabs(x);
  const std::uint8_t sign = std::signbit(x) ? 8 : 0;
  // Upper ends of what rounds to each code; a tie goes to the even one.
  if (std::isnan(x)) return 0;
  if (magnitude <= 0.25f) return sign;
  if (magnitude < 0.75f) return sign | 1;
  if (magnitude <= 1.25f) return sign | 2;
  if (magnitude < 1.75f) return sign | 3;
  if (magnitude <= 2.5f) return sign | 4;
  if (magnitude < 3.5f) return sign | 5;
  return sign | (magnitude <= 5.0f ? 6 : 7);
}

float e2m1_to_float(std::uint8_t code) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

NVFP4Matrix nvfp4_quantize(const float* x, std::int64_t rows, std::int64_t cols, bool square_blocks) {
  const Grid grid = grid_of(rows, cols, square_blocks);
  if (x == nullptr && rows > 0 && cols > 0)
    throw std::invalid_argument("NVFP4: x is null, allowed: [rows, cols] numbers");
  NVFP4Matrix result{rows, cols, square_blocks, {}, {}, 1.0f};
  std::vector<float> blocks = amaxes_of(x, grid);
  const float scale = encoding_scale(blocks);
  result.scale_inv = 1.0f / scale;
  for (float& value : blocks) value = value / kE2M1Max * scale;
  result.block_scales = e4m3_codes(blocks);
  const std::vector<float> decoding = multipliers(result.block_scales, result.scale_inv);
  result.codes.resize(static_cast<std::size_t>(rows * grid.bytes_per_row()));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::uint8_t* codes = result.codes.data() + row * grid.bytes_per_row();
    for (std::int64_t col = 0; col < cols; ++col) {
      const float encode = std::min(1.0f / decoding[static_cast<std::size_t>(grid.at(row, col))], kFloatMax);
      const std::uint8_t code = e2m1_from_float(x[row * cols + col] * encode);
      codes[col / 2] |= static_cast<std::uint8_t>(col % 2 == 0 ? code : code << 4);
    }
  }
  return result;
}

std::vector<float> nvfp4_dequantize(const NVFP4Matrix& matrix) {
  const Grid grid = grid_of(matrix.rows, matrix.cols, matrix.square_blocks);
  const auto bytes = static_cast<std::size_t>(grid.rows * grid.bytes_per_row());
  const auto scales = static_cast<std::size_t>(grid.down() * grid.across());
  if (matrix.codes.size() != bytes || matrix.block_scales.size() != scales)
    io::fail<std::invalid_argument>("NVFP4: found {} bytes of codes and {} scales, allowed: {} and {}",
                                    matrix.codes.size(), matrix.block_scales.size(), bytes, scales);
  const std::vector<float> decoding = multipliers(matrix.block_scales, matrix.scale_inv);
  std::vector<float> y(static_cast<std::size_t>(grid.rows * grid.cols));
  for (std::int64_t row = 0; row < grid.rows; ++row) {
    for (std::int64_t col = 0; col < grid.cols; ++col) {
      const std::uint8_t pair = matrix.codes[static_cast<std::size_t>(row * grid.bytes_per_row() + col / 2)];
      const float value = e2m1_to_float(col % 2 == 0 ? pair : pair >> 4);
      const float product = value * decoding[static_cast<std::size_t>(grid.at(row, col))];
      y[static_cast<std::size_t>(row * grid.cols + col)] = std::clamp(product, -kFloatMax, kFloatMax);
    }
  }
  return y;
}

}  // namespace fp8::recipes
