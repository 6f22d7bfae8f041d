// SPDX-License-Identifier: Apache-2.0
// Cache layout: hpu::in_place_interleave, kv_reorder, and the deprecated fp8_* movers of codes. Bytes are moved, never
// read as values.
//
//   in_place_interleave   y[j] = x[j / 4]: rows 4i .. 4i+3 all become source row i
//   kv_reorder            y[b, :, .., start[b]:end[b], :] = x[b, beams(b), .., start[b]:end[b], :]
//                         beam_idx[b] = 64 * b0 + 16 * b1 + 4 * b2 + b3: four beams of two bits
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::runtime::ops {
namespace {

at::Tensor indices(const std::vector<std::int64_t>& values, const at::Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

/// Element i of a 1-D tensor of integers.
std::int64_t element(const at::Tensor& host, std::int64_t i) {
  return host.scalar_type() == at::kByte ? host.const_data_ptr<std::uint8_t>()[i]
                                         : host.const_data_ptr<std::int32_t>()[i];
}

void check_codes(const char* op, const char* what, const at::Tensor& t) {
  TORCH_CHECK(t.element_size() == 1 && !t.is_complex() && t.scalar_type() != at::kBool, "[", op, "] expected ", what,
              " of dtype Float8_e4m3fn, Float8_e5m2, Char or Byte, got ", t.scalar_type());
}

void check_pair(const char* op, const at::Tensor& a, const at::Tensor& b, at::IntArrayRef sizes) {
  check_codes(op, "input", a);
  check_codes(op, "out", b);
  TORCH_CHECK(a.scalar_type() == b.scalar_type() && b.sizes() == sizes, "[", op, "] expected out of dtype ",
              a.scalar_type(), " and sizes ", sizes, ", got ", b.scalar_type(), " and ", b.sizes());
}

/// self: 4-D, size(0) a multiple of 4, any dtype.
at::Tensor in_place_interleave(const at::Tensor& self) {
  LeafScope leaf("hpu::in_place_interleave", self);
  TORCH_CHECK(self.dim() == 4 && self.size(0) % 4 == 0,
              "[in_place_interleave] expected 4 dimensions and a first one that is a multiple of 4, got sizes ",
              self.sizes());
  if (self.is_meta()) return at::empty(self.sizes(), self.options());
  std::vector<std::int64_t> source(static_cast<std::size_t>(self.size(0)));
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::int64_t>(i / 4);
  at::Tensor y = at::index_select(self, 0, indices(source, self));
  leaf.gives(y);
  return y;
}

at::Tensor& in_place_interleave_(at::Tensor& self) {
  const at::Tensor y = in_place_interleave(self);
  if (!self.is_meta()) self.copy_(y);
  return self;
}

/// self: [B, 4, ..., S, D]; start, end: int32 [B], 0 <= start <= end <= S; beam_idx: uint8 [B]. Values are not looked
/// at.
void check_kv_reorder(const at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                      const at::Tensor& beam_idx) {
  TORCH_CHECK(start.scalar_type() == at::kInt, "Start tensor must be of type Int32");
  TORCH_CHECK(end.scalar_type() == at::kInt, "End tensor must be of type Int32");
  TORCH_CHECK(beam_idx.scalar_type() == at::kByte, "Beam_idx tensor must be of type UInt8");
  TORCH_CHECK(start.dim() == 1, "Start tensor must have dimensions 1");
  TORCH_CHECK(end.dim() == 1, "End tensor must have dimensions 1");
  TORCH_CHECK(beam_idx.dim() == 1, "Beam_idx tensor must have dimensions 1");
  TORCH_CHECK(self.dim() >= 4 && self.size(1) == 4, "[kv_reorder] expected self [batch, 4 beams, ..., tokens, depth], ",
              "got sizes ", self.sizes());
  for (const auto* t : {&start, &end, &beam_idx}) {
    TORCH_CHECK(t->size(0) == self.size(0), "[kv_reorder] expected start, end and beam_idx of ", self.size(0),
                " elements, one per batch entry, got ", t->size(0));
  }
}

at::Tensor& kv_reorder_(at::Tensor& self, const at::Tensor& start, const at::Tensor& end, const at::Tensor& beam_idx) {
  LeafScope leaf("hpu::kv_reorder_", self, start, end, beam_idx);
  check_kv_reorder(self, start, end, beam_idx);
  const at::Tensor from = cpu_alias(start).contiguous(), to = cpu_alias(end).contiguous(),
                   codes = cpu_alias(beam_idx).contiguous();
  const std::int64_t tokens = self.size(-2);
  for (std::int64_t b = 0; b < self.size(0); ++b) {
    TORCH_CHECK(element(from, b) >= 0 && element(from, b) <= element(to, b) && element(to, b) <= tokens,
                "[kv_reorder] expected 0 <= start <= end <= ", tokens, ", got start ", element(from, b), " and end ",
                element(to, b), " of batch entry ", b);
  }
  for (std::int64_t b = 0; b < self.size(0); ++b) {
    const std::int64_t code = element(codes, b);
    at::Tensor part = self.select(0, b).narrow(-2, element(from, b), element(to, b) - element(from, b));
    part.copy_(at::index_select(part, 0, indices({code >> 6 & 3, code >> 4 & 3, code >> 2 & 3, code & 3}, self)));
  }
  leaf.gives(self);
  return self;
}

at::Tensor kv_reorder(const at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                      const at::Tensor& beam_idx) {
  at::Tensor y = self.clone();
  return kv_reorder_(y, start, end, beam_idx);
}

// --- deprecated: codes as float8, or as int8 / uint8 where a program predates the dtypes

at::Tensor& fp8_copy_(at::Tensor& self, const at::Tensor& source) {
  check_codes("fp8_copy_", "self", self);
  check_codes("fp8_copy_", "src", source);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "[fp8_copy_] expected src of dtype ", self.scalar_type(),
              ", got ", source.scalar_type());
  return self.copy_(source);
}

at::Tensor& fp8_transpose(const at::Tensor& input, at::Tensor& out) {
  TORCH_CHECK(input.dim() >= 2, "[fp8_transpose] expected an input of at least 2 dimensions, got sizes ",
              input.sizes());
  const at::Tensor transposed = input.transpose(-2, -1);
  check_pair("fp8_transpose", input, out, transposed.sizes());
  return out.copy_(transposed);
}

at::Tensor& fp8_permute(const at::Tensor& input, at::IntArrayRef dims, at::Tensor& out) {
  const at::Tensor transposed = input.permute(dims);
  check_pair("fp8_permute", input, out, transposed.sizes());
  return out.copy_(transposed);
}

at::Tensor fp8_reshape(const at::Tensor& input, at::IntArrayRef shape) {
  check_codes("fp8_reshape", "input", input);
  const at::Tensor y = input.reshape(shape);
  return y.is_alias_of(input) ? y.clone() : y;
}

at::Tensor& fp8_index_copy_(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  check_codes("fp8_index_copy_", "self", self);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "[fp8_index_copy_] expected source of dtype ",
              self.scalar_type(), ", got ", source.scalar_type());
  at::Tensor bytes = self.view(at::kByte);
  bytes.index_copy_(dim, index.to(at::kLong), source.view(at::kByte));
  return self;
}

at::Tensor fp8_index_select_v2(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  check_codes("fp8_index_select_v2", "self", self);
  return at::index_select(self, dim, index);
}

at::Tensor fp8_repeat_v2(const at::Tensor& self, at::IntArrayRef repeats) {
  check_codes("fp8_repeat_v2", "self", self);
  return self.repeat(repeats);
}

at::Tensor& fp8_kv_reorder_(at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                            const at::Tensor& beam_idx) {
  check_codes("fp8_kv_reorder_", "self", self);
  return kv_reorder_(self, start, end, beam_idx);
}

at::Tensor reorder_meta(const at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                        const at::Tensor& beam_idx) {
  check_kv_reorder(self, start, end, beam_idx);
  return at::empty(self.sizes(), self.options());
}
at::Tensor& reorder_meta_(at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                          const at::Tensor& beam_idx) {
  check_kv_reorder(self, start, end, beam_idx);
  return self;
}

/// The movers call other operators only: these see to the codes of converted weights, and serve meta tensors as they
/// are.
template <class Impl>
void register_movers(const Impl& impl) {
  impl("in_place_interleave", &in_place_interleave);
  impl("in_place_interleave_", &in_place_interleave_);
  impl("fp8_copy_", &fp8_copy_);
  impl("fp8_transpose", &fp8_transpose);
  impl("fp8_permute", &fp8_permute);
  impl("fp8_reshape", &fp8_reshape);
  impl("fp8_index_select_v2", &fp8_index_select_v2);
  impl("fp8_repeat_v2", &fp8_repeat_v2);
}

}  // namespace

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  register_movers([&](const char* name, auto kernel) { edge.impl(name, kernel, Codes::passed_on); });
  edge.impl("fp8_index_copy_", &fp8_index_copy_);  // moves bytes
  edge.impl("kv_reorder", &kv_reorder);
  edge.impl("kv_reorder_", &kv_reorder_);
  edge.impl("fp8_kv_reorder_", &fp8_kv_reorder_);
  edge.impl("fp8_gemm", &fp8_gemm_v1);
}

FP8_LIBRARY_IMPL(hpu, Meta, m) {
  register_movers([&](const char* name, auto kernel) { m.impl(name, kernel); });
  m.impl("fp8_index_copy_", &fp8_index_copy_);
  m.impl("kv_reorder", &reorder_meta);
  m.impl("kv_reorder_", &reorder_meta_);
  m.impl("fp8_kv_reorder_", &reorder_meta_);
  m.impl("fp8_gemm", &fp8_gemm_v1_meta);
}

}  // namespace fp8::runtime::ops
