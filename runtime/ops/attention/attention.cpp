// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/attention.h"

#include <ATen/ExpandUtils.h>

#include <cstring>
#include <limits>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::runtime::ops {
namespace {

/// The beginning of the matrix of each head, in units of one matrix, for a tensor whose batch dimensions are `own`.
std::vector<std::int64_t> matrix_of_heads(at::IntArrayRef own, at::IntArrayRef batch) {
  std::int64_t stride = 1;
  std::vector<std::int64_t> strides(own.size());
  for (std::size_t i = own.size(); i-- > 0; stride *= own[i]) strides[i] = own[i] == 1 ? 0 : stride;
  return offsets_of(batch, strides);
}

}  // namespace

std::vector<std::int64_t> offsets_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::int64_t> next;
    next.reserve(offsets.size() * static_cast<std::size_t>(sizes[i]));
    for (const std::int64_t base : offsets)
      for (std::int64_t j = 0; j < sizes[i]; ++j) next.push_back(base + j * strides[i]);
    offsets = std::move(next);
  }
  return offsets;
}

std::vector<std::int64_t> Heads::sizes(std::int64_t rows, std::int64_t cols) const {
  auto all = batch;
  all.insert(all.end(), {rows, cols});
  return all;
}

Heads heads_of(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() >= 3 && k.dim() == q.dim() && v.dim() == q.dim(), "[", op,
              "] expected q, k and v of one rank, at least 3, got sizes ", q.sizes(), ", ", k.sizes(), " and ",
              v.sizes());
  const std::size_t lead = static_cast<std::size_t>(q.dim()) - 2;
  Heads h;
  h.queries = q.size(-2);
  h.depth = q.size(-1);
  h.keys = k.size(-2);
  h.value_depth = v.size(-1);
  TORCH_CHECK(k.size(-1) == h.depth && v.size(-2) == h.keys, "[", op,
              "] expected q [..., L, D], k [..., S, D] and v [..., S, Dv], got sizes ", q.sizes(), ", ", k.sizes(),
              " and ", v.sizes());
  const auto qb = q.sizes().slice(0, lead), kb = k.sizes().slice(0, lead), vb = v.sizes().slice(0, lead);
  h.batch = at::infer_size(qb, kb);
  TORCH_CHECK(at::infer_size(h.batch, vb) == h.batch, "[", op, "] expected batch dimensions of v that broadcast to ",
              at::IntArrayRef(h.batch), ", got ", vb);
  h.q = matrix_of_heads(qb, h.batch);
  h.k = matrix_of_heads(kb, h.batch);
  h.v = matrix_of_heads(vb, h.batch);
  h.count = static_cast<std::int64_t>(h.q.size());
  h.heads_per_sequence = h.batch[0] == 0 ? 1 : h.count / h.batch[0];
  return h;
}

Visibility::Visibility(const char* op, const Heads& heads, bool is_causal,
                       const std::optional<at::Tensor>& valid_seq_len, std::string_view seq_padding_type)
    : keys_(heads.keys), heads_per_sequence_(heads.heads_per_sequence), is_causal_(is_causal) {
  if (!valid_seq_len.has_value() || !valid_seq_len->defined()) return;
  TORCH_CHECK(seq_padding_type == "left" || seq_padding_type == "right", "[", op,
              "] expected seq_padding_type left or right, got \"", seq_padding_type, "\"");
  left_ = seq_padding_type == "left";
  const auto type = valid_seq_len->scalar_type();
  TORCH_CHECK((type == at::kInt || type == at::kLong) && valid_seq_len->numel() == heads.batch[0], "[", op,
              "] expected valid_seq_len of ", heads.batch[0], " Int or Long elements, got ", valid_seq_len->sizes(),
              " of ", type);
  const at::Tensor lengths = cpu_alias(valid_seq_len->detach()).contiguous();
  for (std::int64_t i = 0; i < lengths.numel(); ++i) {
    const std::int64_t n =
        type == at::kInt ? lengths.const_data_ptr<std::int32_t>()[i] : lengths.const_data_ptr<std::int64_t>()[i];
    TORCH_CHECK(n >= 0 && n <= keys_, "[", op, "] expected lengths in valid_seq_len from 0 to ", keys_, ", got ", n);
    valid_.push_back(n);
  }
}

std::pair<std::int64_t, std::int64_t> Visibility::keys(std::int64_t head, std::int64_t row) const {
  std::int64_t first = 0, last = keys_;
  if (!valid_.empty()) {
    const std::int64_t valid = valid_[static_cast<std::size_t>(head / heads_per_sequence_)];
    if (left_) first = keys_ - valid;
    if (!left_) last = valid;
  }
  if (is_causal_) last = std::min(last, row + 1);
  return {std::min(first, last), last};
}

std::pair<std::int64_t, std::int64_t> Visibility::keys(std::int64_t head, std::int64_t row, std::int64_t rows,
                                                       std::int64_t grain) const {
  const auto [first, last] = keys(head, row + rows - 1);  // the last row sees what the others see
  if (first >= last) return {0, 0};
  return {first / grain * grain, std::min(keys_, (last + grain - 1) / grain * grain)};
}

MaskReader::MaskReader(const char* op, const Heads& heads, const std::optional<at::Tensor>& mask) {
  if (!mask.has_value() || !mask->defined()) return;
  const auto type = mask->scalar_type();
  TORCH_CHECK(type == at::kBool || is_high_precision(type), "[", op,
              "] expected attention_mask of dtype Bool, Float, BFloat16 or Half, got ", type);
  const auto sizes = heads.sizes(heads.queries, heads.keys);
  TORCH_CHECK(at::is_expandable_to(mask->sizes(), sizes), "[", op, "] expected attention_mask that broadcasts to ",
              at::IntArrayRef(sizes), ", got ", mask->sizes());
  mask_ = cpu_alias(mask->detach());
  const at::Tensor all = mask_.expand(sizes);
  row_stride_ = all.stride(-2);
  col_stride_ = all.stride(-1);
  head_offset_ = offsets_of(heads.batch, all.strides().slice(0, heads.batch.size()));
}

void MaskReader::apply(std::int64_t head, std::int64_t row, std::int64_t first, std::int64_t n, float* scores) const {
  if (!mask_.defined()) return;
  const std::int64_t begin = head_offset_[static_cast<std::size_t>(head)] + row * row_stride_ + first * col_stride_;
  if (mask_.scalar_type() == at::kBool) {
    const bool* seen = mask_.const_data_ptr<bool>() + begin;
    for (std::int64_t j = 0; j < n; ++j) {
      if (!seen[j * col_stride_]) scores[j] = -std::numeric_limits<float>::infinity();
    }
    return;
  }
  const auto type = float_type_of(mask_.scalar_type());
  const void* data = mask_.const_data_ptr();
  for (std::int64_t j = 0; j < n; ++j) scores[j] += kernels::load_element(data, type, begin + j * col_stride_);
}

Dropout::Dropout(const char* op, double p, std::int64_t seed) {
  TORCH_CHECK(p >= 0 && p <= 1, "[", op, "] expected a dropout probability from 0 to 1, got ", p);
  active_ = p > 0;
  scale_ = p == 1 ? 0 : 1 / (1 - p);
  threshold_ = static_cast<std::uint64_t>(std::ceil(std::ldexp(p, 24)));
  key_ = kernels::splitmix64(static_cast<std::uint64_t>(seed), 0);
}

bool Dropout::keep(std::uint64_t element) const { return kernels::mix(element + key_) >> 40 >= threshold_; }

std::uint8_t* bytes_at(const at::Tensor& t, std::int64_t first) {
  return static_cast<std::uint8_t*>(t.mutable_data_ptr()) + first * static_cast<std::int64_t>(t.element_size());
}

const std::uint8_t* const_bytes_at(const at::Tensor& t, std::int64_t first) {
  return static_cast<const std::uint8_t*>(t.const_data_ptr()) + first * static_cast<std::int64_t>(t.element_size());
}

const float* as_f32(const at::Tensor& t, std::int64_t first, std::int64_t n, std::vector<float>& scratch,
                    kernels::Dialect dialect) {
  const void* data = const_bytes_at(t, first);
  if (t.scalar_type() == at::kFloat) return static_cast<const float*>(data);
  scratch.resize(static_cast<std::size_t>(n));
  if (is_fp8(t.scalar_type())) {
    const float* table = kernels::decode_table(format_of(t.scalar_type()), dialect);
    for (std::int64_t i = 0; i < n; ++i) scratch[i] = table[static_cast<const std::uint8_t*>(data)[i]];
  } else if (t.scalar_type() == at::kBFloat16) {
    for (std::int64_t i = 0; i < n; ++i) scratch[i] = kernels::bf16_to_f32(static_cast<const std::uint16_t*>(data)[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) scratch[i] = kernels::f16_to_f32(static_cast<const std::uint16_t*>(data)[i]);
  }
  return scratch.data();
}

void store_f32(const float* x, std::int64_t n, const at::Tensor& t, std::int64_t first) {
  if (n == 0) return;  // no memory to point at
  void* data = bytes_at(t, first);
  if (t.scalar_type() == at::kFloat) {
    std::memcpy(data, x, static_cast<std::size_t>(n) * sizeof(float));
  } else if (t.scalar_type() == at::kBFloat16) {
    for (std::int64_t i = 0; i < n; ++i) static_cast<std::uint16_t*>(data)[i] = kernels::f32_to_bf16(x[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) static_cast<std::uint16_t*>(data)[i] = kernels::f32_to_f16(x[i]);
  }
}

void SharedAmax::add(float amax) {
  const std::uint32_t bits = kernels::bits_of(amax) & 0x7FFFFFFFu;
  std::uint32_t seen = bits_.load(std::memory_order_relaxed);
  while (bits > seen && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
  }
}

std::int64_t block_rows(std::int64_t keys) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 20) / std::max<std::int64_t>(keys, 1), 6, 64);
}

void ScoreBlock::compute(std::int64_t head, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last,
                         float* scores) {
  const Heads& h = in_.heads;
  const std::int64_t n = last - first, q0 = (h.q[static_cast<std::size_t>(head)] * h.queries + row) * h.depth;
  const std::int64_t k_index = h.k[static_cast<std::size_t>(head)], k0 = k_index * h.keys * h.depth;
  if (is_fp8(in_.q.scalar_type())) {
    kernels::GemmArgs g;
    g.m = rows;
    g.n = n;
    g.k = h.depth;
    g.a = const_bytes_at(in_.q, q0);
    g.a_type = storage_of(in_.q.scalar_type());
    g.a_stride = h.depth;
    g.w = const_bytes_at(in_.k, k0 + first * h.depth);
    g.w_format = format_of(in_.k.scalar_type());
    g.y = scores;
    g.y_stride = n;
    g.dialect = in_.dialect;
    kernels::gemm(g);
  } else {
    if (k_index != k_index_) k_rows_ = as_f32(in_.k, k0, h.keys * h.depth, k_, in_.dialect);
    k_index_ = k_index;
    const float* q = as_f32(in_.q, q0, rows * h.depth, q_, in_.dialect);
    kernels::multiply({q, h.depth, 1}, {k_rows_ + first * h.depth, 1, h.depth}, rows, n, h.depth, scores, n, false);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float* s = scores + r * n;
    for (std::int64_t j = 0; j < n; ++j) s[j] *= in_.score_factor;
    in_.mask.apply(head, row + r, first, n, s);
    const auto [begin, end] = in_.visible.keys(head, row + r);
    std::fill(s, s + std::clamp<std::int64_t>(begin - first, 0, n), -std::numeric_limits<float>::infinity());
    std::fill(s + std::clamp<std::int64_t>(end - first, 0, n), s + n, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace fp8::runtime::ops
