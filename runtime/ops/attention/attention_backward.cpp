// SPDX-License-Identifier: Apache-2.0
// Attention, backward: heads that share K and V are one group, whose dK and dV are summed in ascending order of heads
// and rows. Groups run in parallel; with fewer groups than threads the products inside are cut instead.
#include <algorithm>
#include <map>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/ops/attention/attention.h"

namespace fp8::runtime::ops {
namespace {

using kernels::F32View;

/// kernels::multiply on the pool's threads: pieces of 96 rows and 512 columns of c.
void multiply_parallel(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
                       std::int64_t c_stride, bool accumulate) {
  constexpr std::int64_t kRows = 96, kCols = 512;
  const std::int64_t across = (n + kCols - 1) / kCols, pieces = (m + kRows - 1) / kRows * across;
  kernels::parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t i = piece / across * kRows, j = piece % across * kCols;
      kernels::multiply({a.data + i * a.row_stride, a.row_stride, a.col_stride},
                        {b.data + j * b.col_stride, b.row_stride, b.col_stride}, std::min(kRows, m - i),
                        std::min(kCols, n - j), k, c + i * c_stride + j, c_stride, accumulate);
    }
  });
}

/// x becomes the values of its codes.
void through_fp8(std::vector<float>& x, kernels::Format format, float scale, kernels::Dialect dialect) {
  if (x.empty()) return;
  std::vector<std::uint8_t> codes(x.size());
  kernels::cast_to_fp8(kernels::dense_cast(x.data(), 1, static_cast<std::int64_t>(x.size()), codes.data(), format,
                                           kernels::fp8_max(format, dialect), &scale));
  const float* table = kernels::decode_table(format);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = table[codes[i]];
}

/// f32 sums of one gradient, [matrices, rows, cols].
struct Sums {
  std::vector<float> values;
  explicit Sums(const at::Tensor& like) : values(static_cast<std::size_t>(like.numel()), 0.0f) {}
  void finish(float factor, const at::Tensor& out) {
    for (float& v : values) v *= factor;
    store_f32(values.data(), out.numel(), out, 0);
  }
};

struct Gradients {
  Sums q, k, v;
  SharedAmax amax_ds;
};

/// Works through one group of heads.
class BackwardGroup {
 public:
  BackwardGroup(const AttentionInputs& in, const BackwardOptions& options, Gradients& gradients)
      : in_(in), options_(options), sums_(gradients), scores_of_(in) {}
  void head(std::int64_t head);

 private:
  void block(std::int64_t head, std::int64_t row, std::int64_t rows);
  void load_p(std::int64_t head, std::int64_t row, std::int64_t rows);
  void drop(std::int64_t head, std::int64_t row, std::int64_t rows, std::vector<float>& x) const;
  void softmax_backward(std::int64_t rows);

  const AttentionInputs& in_;
  const BackwardOptions& options_;
  Gradients& sums_;
  ScoreBlock scores_of_;
  std::int64_t first_ = 0, last_ = 0;
  std::vector<float> p_, ds_;                  // [rows, last - first]
  std::vector<float> q_s_, k_s_, v_s_, do_s_;  // scratch of conversions
  const float *k_ = nullptr, *v_ = nullptr;
};

void BackwardGroup::head(std::int64_t head) {
  const Heads& h = in_.heads;
  const auto at = static_cast<std::size_t>(head);
  k_ = as_f32(in_.k, h.k[at] * h.keys * h.depth, h.keys * h.depth, k_s_, in_.dialect);
  v_ = as_f32(in_.v, h.v[at] * h.keys * h.value_depth, h.keys * h.value_depth, v_s_, in_.dialect);
  const std::int64_t rows = block_rows(h.keys);
  for (std::int64_t row = 0; row < h.queries; row += rows) block(head, row, std::min(rows, h.queries - row));
}

/// P of the block, in f32 units of 1.
void BackwardGroup::load_p(std::int64_t head, std::int64_t row, std::int64_t rows) {
  const std::int64_t n = last_ - first_, row0 = head * in_.heads.queries + row;
  std::vector<float> scratch, more;
  p_.resize(static_cast<std::size_t>(rows * n));
  if (!options_.p.defined()) scores_of_.compute(head, row, rows, first_, last_, p_.data());
  for (std::int64_t r = 0; r < rows; ++r) {
    float* p = p_.data() + r * n;
    if (options_.p.defined()) {
      const float* given = as_f32(options_.p, (row0 + r) * in_.heads.keys + first_, n, scratch, in_.dialect);
      for (std::int64_t j = 0; j < n; ++j) p[j] = given[j] * options_.p_factor;
      continue;
    }
    const float m = *as_f32(options_.m, row0 + r, 1, scratch), linv = *as_f32(options_.linv, row0 + r, 1, more);
    if (linv == 0) {  // no key is visible
      std::fill(p, p + n, 0.0f);
      continue;
    }
    kernels::exp_shifted(p, n, m);
    for (std::int64_t j = 0; j < n; ++j) p[j] *= linv;
  }
}

void BackwardGroup::drop(std::int64_t head, std::int64_t row, std::int64_t rows, std::vector<float>& x) const {
  const std::int64_t n = last_ - first_;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = (head * in_.heads.queries + row + r) * in_.heads.keys + first_;
    const auto* kept =
        options_.dm.defined() ? reinterpret_cast<const std::int8_t*>(const_bytes_at(options_.dm, at)) : nullptr;
    for (std::int64_t j = 0; j < n; ++j) {
      const bool keep = kept != nullptr ? kept[j] != 0 : in_.dropout.keep(static_cast<std::uint64_t>(at + j));
      if (!keep) x[static_cast<std::size_t>(r * n + j)] = 0;
    }
  }
}

/// dP -> dS, in place.
void BackwardGroup::softmax_backward(std::int64_t rows) {
  const std::int64_t n = last_ - first_;
  std::vector<float> products(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* p = p_.data() + r * n;
    float* d = ds_.data() + r * n;
    for (std::int64_t j = 0; j < n; ++j) products[static_cast<std::size_t>(j)] = p[j] * d[j];
    const float sum = kernels::sum_of(products.data(), n);
    for (std::int64_t j = 0; j < n; ++j) d[j] = p[j] == 0 ? 0 : p[j] * (d[j] - sum);
  }
}

void BackwardGroup::block(std::int64_t head, std::int64_t row, std::int64_t rows) {
  const Heads& h = in_.heads;
  const auto at = static_cast<std::size_t>(head);
  std::tie(first_, last_) = in_.visible.keys(head, row, rows, 1);
  const std::int64_t n = last_ - first_, d = h.depth, dv = h.value_depth;
  if (n <= 0) return;
  load_p(head, row, rows);
  const float* grad = as_f32(options_.grad, (head * h.queries + row) * dv, rows * dv, do_s_, in_.dialect);
  ds_.resize(p_.size());
  multiply_parallel({grad, dv, 1}, {v_ + first_ * dv, 1, dv}, rows, n, dv, ds_.data(), n, false);
  for (float& x : ds_) x *= options_.grad_factor;
  if (in_.dropout.active()) drop(head, row, rows, ds_);
  softmax_backward(rows);
  sums_.amax_ds.add(kernels::amax(ds_.data(), kernels::FloatType::F32, rows * n));
  if (options_.ds_format) through_fp8(ds_, *options_.ds_format, options_.ds_scale, options_.dialect);
  if (options_.p_format) through_fp8(p_, *options_.p_format, options_.p_scale, options_.dialect);
  if (in_.dropout.active()) drop(head, row, rows, p_);

  float* dq = sums_.q.values.data() + (h.q[at] * h.queries + row) * d;
  float* dk = sums_.k.values.data() + (h.k[at] * h.keys + first_) * d;
  float* dvalues = sums_.v.values.data() + (h.v[at] * h.keys + first_) * dv;
  const float* q = as_f32(in_.q, (h.q[at] * h.queries + row) * d, rows * d, q_s_, in_.dialect);
  multiply_parallel({ds_.data(), n, 1}, {k_ + first_ * d, d, 1}, rows, d, n, dq, d, true);
  multiply_parallel({ds_.data(), 1, n}, {q, d, 1}, n, d, rows, dk, d, true);
  multiply_parallel({p_.data(), 1, n}, {grad, dv, 1}, n, dv, rows, dvalues, dv, true);
}

/// Heads by group: those with the same K, as long as V is shared alike and Q is not shared at all; else one group.
std::vector<std::vector<std::int64_t>> groups_of(const Heads& h) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_key;
  std::map<std::int64_t, std::int64_t> value_owner, query_owner;
  bool apart = true;
  for (std::int64_t i = 0; i < h.count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    by_key[h.k[at]].push_back(i);
    apart = apart && value_owner.emplace(h.v[at], h.k[at]).first->second == h.k[at] &&
            query_owner.emplace(h.q[at], h.k[at]).first->second == h.k[at];
  }
  std::vector<std::vector<std::int64_t>> groups;
  for (auto& [key, heads] : by_key) {
    if (apart || groups.empty()) groups.emplace_back();
    groups.back().insert(groups.back().end(), heads.begin(), heads.end());
  }
  if (!apart) std::sort(groups.back().begin(), groups.back().end());
  return groups;
}

}  // namespace

void attention_backward(const AttentionInputs& in, const BackwardOptions& options, const BackwardOutputs& out) {
  Gradients gradients{Sums(in.q), Sums(in.k), Sums(in.v), {}};
  const auto groups = groups_of(in.heads);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      BackwardGroup group(in, options, gradients);
      for (const std::int64_t head : groups[static_cast<std::size_t>(i)]) group.head(head);
    }
  };
  const auto count = static_cast<std::int64_t>(groups.size());
  if (count >= kernels::num_threads()) {
    kernels::parallel_for(count, 1, run);
  } else {
    run(0, count);
  }
  gradients.q.finish(options.dq_factor, out.dq);
  gradients.k.finish(options.dk_factor, out.dk);
  gradients.v.finish(options.dv_factor, out.dv);
  if (out.amax_ds.defined()) *out.amax_ds.mutable_data_ptr<float>() = gradients.amax_ds.value();
}

}  // namespace fp8::runtime::ops
