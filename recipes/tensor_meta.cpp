// SPDX-License-Identifier: Apache-2.0
// Ring and rolled histories of amaxes and the scales made from them.
#include "fp8/recipes/tensor_meta.h"

#include <cmath>

namespace fp8::recipes {
namespace {

constexpr std::int64_t kMaxHistoryNumbers = std::int64_t{1} << 28;

[[noreturn]] void reject(const char* field, const std::string& found, const std::string& allowed) {
  io::fail<std::invalid_argument>("TensorMeta: {} is {}, allowed: {}", field, found, allowed);
}

void check_history(std::int64_t n, int history) {
  if (history < 1 || history > kMaxHistory)
    reject("the history's length", std::to_string(history), "1 to " + std::to_string(kMaxHistory));
  if (n * history > kMaxHistoryNumbers)
    reject("tensors * history", std::to_string(n * history), "at most " + std::to_string(kMaxHistoryNumbers));
}

void check_tensor(const TensorMeta& meta, int tensor) {
  const std::string allowed = meta.tensors() > 0 ? "0 to " + std::to_string(meta.tensors() - 1) : "none: no tensors";
  if (tensor < 0 || tensor >= meta.tensors()) reject("tensor", std::to_string(tensor), allowed);
}

// A NaN is larger than everything, so that it is not lost.
float larger(float a, float b) { return std::isnan(a) || a >= b ? a : b; }

bool usable(float scale) { return scale > 0.0f && std::isfinite(scale) && std::isfinite(1.0f / scale); }

bool is_nvidia(const DelayedScaling& recipe) { return recipe.dialect == RecipeDialect::nvidia; }

// Row of the step that runs. Under another dialect than the state was made with, the index may be one of the ring.
int open_row(const TensorMeta& meta, const DelayedScaling& recipe) {
  return is_nvidia(recipe) ? 0 : meta.amax_history_index;
}

// Rows from the newest to the oldest: down from the index of a ring; row 0, then up from the last, of a rolled history.
AmaxRows newest_first(const TensorMeta& meta, const DelayedScaling& recipe) {
  const int length = meta.history(), start = open_row(meta, recipe);
  AmaxRows rows(length, meta.tensors());
  for (int i = 0; i < length; ++i) rows.row(i) = meta.amax_history.row((start - i + length) % length);
  return rows;
}

float amax_by_algorithm(const TensorMeta& meta, const DelayedScaling& recipe, int tensor) {
  const auto history = meta.amax_history.col(tensor);
  if (recipe.amax_compute_algo == AmaxComputeAlgo::most_recent)
    return history[recipe.stale_row_compat ? 0 : open_row(meta, recipe)];
  float amax = history[0];
  for (Eigen::Index i = 1; i < history.size(); ++i) amax = larger(amax, history[i]);
  return amax;
}

// True if this step has recorded a tensor's amax: a rolled history stands still where it has not.
bool spoke(const TensorMeta& meta, const DelayedScaling& recipe, Eigen::Index tensor) {
  return !is_nvidia(recipe) || meta.amax_history(0, tensor) != 0.0f;
}

void check_size(const Eigen::ArrayXf& result, const TensorMeta& meta, const char* callable) {
  if (result.size() == meta.tensors()) return;
  io::fail<std::invalid_argument>("DelayedScaling: {} returned {} values, allowed: {}, one per tensor", callable,
                                  result.size(), meta.tensors());
}

void check_values(const char* field, const Eigen::ArrayXf& values, Eigen::Index n) {
  if (values.size() != n) reject(field, std::to_string(values.size()) + " values", std::to_string(n));
  for (Eigen::Index i = 0; i < n; ++i) {
    if (values[i] > 0.0f && std::isfinite(values[i])) continue;
    reject((std::string(field) + "[" + std::to_string(i) + "]").c_str(), std::to_string(values[i]),
           "a finite value > 0");
  }
}

}  // namespace

TensorMeta::TensorMeta(int n, int history) {
  if (n < 0) reject("the number of tensors", std::to_string(n), "0 or more");
  check_history(n, history);
  scale = scale_inv = Eigen::ArrayXf::Ones(n);
  amax_history = AmaxRows::Zero(history, n);
  recorded.setZero(n);
}

void validate(const TensorMeta& meta) {
  const Eigen::Index n = meta.scale.size();
  check_values("scale", meta.scale, n);
  check_values("scale_inv", meta.scale_inv, n);
  if (meta.amax_history.cols() != n)
    reject("amax_history", std::to_string(meta.amax_history.cols()) + " columns", std::to_string(n) + ", as scale has");
  if (meta.recorded.size() != n)
    reject("recorded", std::to_string(meta.recorded.size()) + " values", std::to_string(n));
  if (meta.amax_history.rows() > kMaxHistory)
    reject("amax_history", std::to_string(meta.amax_history.rows()) + " rows", "1 to " + std::to_string(kMaxHistory));
  check_history(n, meta.history());
  if (meta.amax_history_index < 0 || meta.amax_history_index >= meta.history())
    reject("amax_history_index", std::to_string(meta.amax_history_index), "0 to " + std::to_string(meta.history() - 1));
  if ((meta.amax_history < 0.0f).any()) reject("amax_history", "below 0 somewhere", "values >= 0");
}

void record_amax(TensorMeta& meta, const DelayedScaling& recipe, int tensor, float amax) {
  check_tensor(meta, tensor);
  if (amax < 0.0f) reject("amax", std::to_string(amax), "a value >= 0, or NaN");
  float& slot = meta.amax_history(open_row(meta, recipe), tensor);
  // A ring's row begins as a copy of the row before, a rolled history's as zeros.
  slot = meta.recorded[tensor] || is_nvidia(recipe) ? larger(slot, amax) : amax;
  meta.recorded[tensor] = true;
}

void finish_step(TensorMeta& meta, const DelayedScaling& recipe) {
  meta.recorded.setZero();
  const int length = meta.history();
  if (is_nvidia(recipe)) {
    for (Eigen::Index tensor = 0; tensor < meta.amax_history.cols(); ++tensor) {
      if (!spoke(meta, recipe, tensor)) continue;
      float* history = &meta.amax_history(0, tensor);
      const float newest = history[0];
      for (int i = 1; i + 1 < length; ++i) history[i] = history[i + 1];
      history[length - 1] = newest;
      history[0] = 0.0f;
    }
    return;
  }
  const int newest = meta.amax_history_index;
  meta.amax_history_index = (newest + 1) % length;
  if (length > 1) meta.amax_history.row(meta.amax_history_index) = meta.amax_history.row(newest);
}

Eigen::ArrayXf current_amax(const TensorMeta& meta, const DelayedScaling& recipe) {
  if (const auto* callable = recipe.amax_compute_algo.callable()) {
    Eigen::ArrayXf amax = (*callable)(newest_first(meta, recipe));
    check_size(amax, meta, "amax_compute_algo");
    return amax;
  }
  Eigen::ArrayXf amax(meta.tensors());
  for (int i = 0; i < meta.tensors(); ++i) amax[i] = amax_by_algorithm(meta, recipe, i);
  return amax;
}

float current_amax(const TensorMeta& meta, const DelayedScaling& recipe, int tensor) {
  check_tensor(meta, tensor);
  return recipe.amax_compute_algo.callable() ? current_amax(meta, recipe)[tensor]
                                             : amax_by_algorithm(meta, recipe, tensor);
}

void update_scales(TensorMeta& meta, const DelayedScaling& recipe, float fp8_max) {
  const Eigen::ArrayXf amax = current_amax(meta, recipe);
  Eigen::ArrayXf scale = meta.scale;
  if (recipe.scaling_factor_compute_algo) {
    scale = recipe.scaling_factor_compute_algo(amax, meta.scale, fp8_max, recipe);
    check_size(scale, meta, "scaling_factor_compute_algo");
  }
  for (int i = 0; i < meta.tensors(); ++i) {
    if (!spoke(meta, recipe, i)) continue;
    if (!recipe.scaling_factor_compute_algo) scale[i] = next_scale(amax[i], meta.scale[i], fp8_max, recipe);
    if (!usable(scale[i])) continue;
    meta.scale[i] = scale[i];
    meta.scale_inv[i] = 1.0f / scale[i];
  }
}

void resize_history(TensorMeta& meta, const DelayedScaling& recipe, int history) {
  check_history(meta.tensors(), history);
  const int length = meta.history();
  if (history == length) return;
  const int start = open_row(meta, recipe);
  AmaxRows rows = AmaxRows::Zero(history, meta.tensors());
  if (history > length) {
    const int behind = length - 1 - start;  // rows after the index, the oldest of a ring
    rows.topRows(start + 1) = meta.amax_history.topRows(start + 1);
    rows.bottomRows(behind) = meta.amax_history.bottomRows(behind);
  } else {
    const AmaxRows newest = newest_first(meta, recipe);
    const int end = is_nvidia(recipe) ? 0 : history - 1;  // row of the newest
    for (int i = 0; i < history; ++i) rows.row((end - i + history) % history) = newest.row(i);
    meta.amax_history_index = end;
  }
  meta.amax_history = std::move(rows);
}

}  // namespace fp8::recipes
