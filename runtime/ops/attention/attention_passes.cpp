// SPDX-License-Identifier: Apache-2.0
// Attention. Forward: a task is a block of query rows of one head. A thread keeps K and V of the head it works on.
#include <cmath>
#include <cstring>
#include <limits>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/ops/attention/attention.h"

namespace fp8::runtime::ops {
namespace {

constexpr std::int64_t kKeyChunk = 256;  // fp8: keys per product of P and V; V is turned chunk by chunk

struct Amaxes {
  SharedAmax s, o;
};

/// The state of one thread.
class ForwardThread {
 public:
  ForwardThread(const AttentionInputs& in, const ForwardOptions& options, const ForwardOutputs& out, Amaxes& amaxes)
      : in_(in), options_(options), out_(out), amaxes_(amaxes), fp8_(is_fp8(in.q.scalar_type())), scores_of_(in) {}

  void block(std::int64_t head, std::int64_t row, std::int64_t rows);

 private:
  void softmax(std::int64_t head, std::int64_t row, std::int64_t rows);
  void cast_p(std::int64_t rows);
  void store_p(std::int64_t head, std::int64_t row, std::int64_t rows);
  void drop(std::int64_t head, std::int64_t row, std::int64_t rows);
  void multiply_v(std::int64_t head, std::int64_t rows);
  void multiply_v_fp8(std::int64_t rows);
  void load_v(std::int64_t head);
  void store_out(std::int64_t head, std::int64_t row, std::int64_t rows);

  const AttentionInputs& in_;
  const ForwardOptions& options_;
  const ForwardOutputs& out_;
  Amaxes& amaxes_;
  const bool fp8_;
  ScoreBlock scores_of_;
  std::int64_t first_ = 0, last_ = 0;  // keys of the block
  std::vector<float> p_;               // [rows, last - first]
  std::vector<std::uint8_t> codes_;    // of p_
  std::vector<float> o_;               // [rows, Dv]
  std::int64_t v_index_ = -1;
  std::vector<float> v_;  // [S, Dv]
  const float* v_rows_ = nullptr;
  std::vector<std::uint8_t> v_turned_;  // chunks of [Dv, kKeyChunk] codes
};

void ForwardThread::block(std::int64_t head, std::int64_t row, std::int64_t rows) {
  std::tie(first_, last_) = in_.visible.keys(head, row, rows, fp8_ ? kKeyChunk : 1);
  const std::int64_t n = last_ - first_;
  p_.resize(static_cast<std::size_t>(rows * n));
  if (n > 0) scores_of_.compute(head, row, rows, first_, last_, p_.data());
  softmax(head, row, rows);
  if (out_.amax_s.defined()) amaxes_.s.add(kernels::amax(p_.data(), kernels::FloatType::F32, rows * n));
  if (fp8_) cast_p(rows);
  if (out_.p.defined()) store_p(head, row, rows);
  if (in_.dropout.active()) drop(head, row, rows);
  o_.assign(static_cast<std::size_t>(rows * in_.heads.value_depth), 0.0f);
  if (n > 0) multiply_v(head, rows);
  store_out(head, row, rows);
}

/// Scores to probabilities, in place.
void ForwardThread::softmax(std::int64_t head, std::int64_t row, std::int64_t rows) {
  const std::int64_t n = last_ - first_;
  for (std::int64_t r = 0; r < rows; ++r) {
    float* s = p_.data() + r * n;
    float max = kernels::max_of(s, n), linv = 0;
    if (max == -std::numeric_limits<float>::infinity() &&
        std::none_of(s, s + n, [](float v) { return std::isnan(v); })) {
      std::fill(s, s + n, 0.0f);
      max = 0;
    } else {
      if (std::isinf(max)) max = std::copysign(std::numeric_limits<float>::max(), max);
      kernels::exp_shifted(s, n, max);
      linv = 1.0f / kernels::sum_of(s, n);
      for (std::int64_t j = 0; j < n; ++j) s[j] *= linv;
    }
    if (!out_.m.defined()) continue;
    const std::int64_t at = head * in_.heads.queries + row + r;
    store_f32(&max, 1, out_.m, at);
    std::vector<float> scratch;
    const float stored = *as_f32(out_.m, at, 1, scratch);  // linv makes up for the rounding of m
    const float fitting = static_cast<float>(linv * std::exp(static_cast<double>(stored) - max));
    store_f32(&fitting, 1, out_.linv, at);
  }
}

void ForwardThread::cast_p(std::int64_t rows) {
  if (p_.empty()) return;
  codes_.resize(p_.size());
  const kernels::Format format = format_of(in_.q.scalar_type());
  kernels::cast_to_fp8(kernels::dense_cast(p_.data(), rows, last_ - first_, codes_.data(), format,
                                           kernels::fp8_max(format, options_.dialect), &options_.p_scale));
}

void ForwardThread::store_p(std::int64_t head, std::int64_t row, std::int64_t rows) {
  const std::int64_t n = last_ - first_, keys = in_.heads.keys;
  if (keys == 0) return;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = (head * in_.heads.queries + row + r) * keys;
    std::memset(bytes_at(out_.p, at), 0, static_cast<std::size_t>(keys) * out_.p.element_size());
    if (n == 0) continue;
    if (fp8_) {
      std::memcpy(bytes_at(out_.p, at + first_), codes_.data() + r * n, static_cast<std::size_t>(n));
    } else {
      store_f32(p_.data() + r * n, n, out_.p, at + first_);
    }
  }
}

void ForwardThread::drop(std::int64_t head, std::int64_t row, std::int64_t rows) {
  const std::int64_t n = last_ - first_, keys = in_.heads.keys;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = (head * in_.heads.queries + row + r) * keys;
    if (out_.dm.defined()) {
      auto* kept = reinterpret_cast<std::int8_t*>(bytes_at(out_.dm, at));
      for (std::int64_t j = 0; j < keys; ++j) kept[j] = in_.dropout.keep(static_cast<std::uint64_t>(at + j)) ? 1 : 0;
    }
    for (std::int64_t j = 0; j < n; ++j) {
      if (in_.dropout.keep(static_cast<std::uint64_t>(at + first_ + j))) continue;
      p_[static_cast<std::size_t>(r * n + j)] = 0;
      if (fp8_) codes_[static_cast<std::size_t>(r * n + j)] = 0;
    }
  }
}

void ForwardThread::load_v(std::int64_t head) {
  const std::int64_t index = in_.heads.v[static_cast<std::size_t>(head)], depth = in_.heads.value_depth,
                     keys = in_.heads.keys;
  if (index == v_index_) return;
  v_index_ = index;
  if (!fp8_) {
    v_rows_ = as_f32(in_.v, index * keys * depth, keys * depth, v_);
    return;
  }
  v_turned_.resize(static_cast<std::size_t>(keys * depth));
  for (std::int64_t key = 0; key < keys; key += kKeyChunk) {
    kernels::transpose_bytes(const_bytes_at(in_.v, (index * keys + key) * depth), std::min(kKeyChunk, keys - key),
                             depth, v_turned_.data() + key * depth);
  }
}

void ForwardThread::multiply_v(std::int64_t head, std::int64_t rows) {
  const std::int64_t depth = in_.heads.value_depth, n = last_ - first_;
  load_v(head);
  if (fp8_) return multiply_v_fp8(rows);
  kernels::multiply({p_.data(), n, 1}, {v_rows_ + first_ * depth, depth, 1}, rows, depth, n, o_.data(), depth, false);
}

void ForwardThread::multiply_v_fp8(std::int64_t rows) {
  for (std::int64_t key = first_; key < last_; key += kKeyChunk) {
    kernels::GemmArgs g;
    g.m = rows;
    g.n = in_.heads.value_depth;
    g.k = std::min(kKeyChunk, last_ - key);
    g.a = codes_.data() + (key - first_);
    g.a_type = storage_of(in_.q.scalar_type());
    g.a_stride = last_ - first_;
    g.w = v_turned_.data() + key * g.n;
    g.w_format = format_of(in_.v.scalar_type());
    g.y = o_.data();
    g.y_stride = g.n;
    g.accumulate = true;
    g.dialect = in_.dialect;
    kernels::gemm(g);
  }
}

void ForwardThread::store_out(std::int64_t head, std::int64_t row, std::int64_t rows) {
  const std::int64_t depth = in_.heads.value_depth, count = rows * depth, at = (head * in_.heads.queries + row) * depth;
  if (count == 0) return;
  for (float& v : o_) v *= options_.value_factor;
  if (out_.amax_o.defined()) amaxes_.o.add(kernels::amax(o_.data(), kernels::FloatType::F32, count));
  if (!is_fp8(out_.out.scalar_type())) return store_f32(o_.data(), count, out_.out, at);
  const kernels::Format format = format_of(out_.out.scalar_type());
  kernels::cast_to_fp8(kernels::dense_cast(o_.data(), 1, count, bytes_at(out_.out, at), format,
                                           kernels::fp8_max(format, options_.dialect), &options_.o_scale));
}

/// Tasks per range: four ranges a thread, no head cut where there are enough of them, 50 us of work at least.
std::int64_t grain_of(const Heads& h, std::int64_t blocks) {
  const std::int64_t tasks = h.count * blocks, ranges = std::int64_t{4} * kernels::num_threads();
  std::int64_t grain = std::max<std::int64_t>(1, tasks / ranges);
  if (grain >= blocks) grain = grain / blocks * blocks;
  const double products = static_cast<double>(h.queries) / static_cast<double>(blocks) *
                          static_cast<double>(h.keys * (h.depth + h.value_depth + 8));
  return std::max<std::int64_t>(grain, static_cast<std::int64_t>(1e6 / std::max(products, 1.0)));
}

}  // namespace

void attention_forward(const AttentionInputs& in, const ForwardOptions& options, const ForwardOutputs& out) {
  const Heads& h = in.heads;
  const std::int64_t rows = block_rows(h.keys), blocks = (h.queries + rows - 1) / rows;
  Amaxes amaxes;
  kernels::parallel_for(h.count * blocks, grain_of(h, std::max<std::int64_t>(blocks, 1)),
                        [&](std::int64_t begin, std::int64_t end) {
                          ForwardThread thread(in, options, out, amaxes);
                          for (std::int64_t task = begin; task < end; ++task) {
                            const std::int64_t row = task % blocks * rows;
                            thread.block(task / blocks, row, std::min(rows, h.queries - row));
                          }
                        });
  if (out.amax_s.defined()) *out.amax_s.mutable_data_ptr<float>() = amaxes.s.value();
  if (out.amax_o.defined()) *out.amax_o.mutable_data_ptr<float>() = amaxes.o.value();
}

// Attention, backward: heads that share K and V are one group, whose dK and dV are summed in ascending order of heads
// and rows. Groups run in parallel; with fewer groups than threads the products inside are cut instead.

namespace {

using kernels::F32View;

/// kernels::multiply on the pool's threads: pieces of 96 rows and 512 columns of c.
void multiply_parallel(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
                       std::int64_t c_stride, bool accumulate) {
  constexpr std::int64_t kRows = 96, kCols = 512;
  const std::int64_t across = (n + kCols - 1) / kCols, pieces = (m + kRows - 1) / kRows * across;
  kernels::parallel_each(pieces, 1, [&](std::int64_t piece) {
    const std::int64_t i = piece / across * kRows, j = piece % across * kCols;
    kernels::multiply({a.data + i * a.row_stride, a.row_stride, a.col_stride},
                      {b.data + j * b.col_stride, b.row_stride, b.col_stride}, std::min(kRows, m - i),
                      std::min(kCols, n - j), k, c + i * c_stride + j, c_stride, accumulate);
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
