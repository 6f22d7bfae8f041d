// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/optim/optim.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cmath>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {
namespace {

using kernels::Array;

bool same_strides(at::IntArrayRef a, at::IntArrayRef b, at::IntArrayRef sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

/// The tensors of a list of items as dense arrays in host memory. An item's first tensor decides the order of elements;
/// finish() brings copies of written tensors home.
class HostArrays {
 public:
  explicit HostArrays(const char* op) : op_(op) {}

  /// The next item.
  void next(const at::Tensor& leader) {
    sizes_ = leader.sizes().vec();
    const auto dense = c10::contiguous_strides(leader.sizes());
    strides_.assign(dense.begin(), dense.end());
    if (leader.layout() == at::kStrided && leader.is_non_overlapping_and_dense()) strides_ = leader.strides().vec();
    ++item_;
  }

  Array read(const char* what, const at::Tensor& t) { return array(what, t, false, false); }
  Array write(const char* what, const at::Tensor& t) { return array(what, t, true, false); }
  Array moment(const char* what, const at::Tensor& t) { return array(what, t, true, true); }

  float* scale(const char* what, const at::Tensor& t, bool needed) {
    if (!needed) return nullptr;
    TORCH_CHECK(t.defined() && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16) && t.numel() == 1,
                "[", op_, "] expected ", what, "[", item_, "], a scale of one f32 or bf16, for the fp8 moment, got ",
                t.defined() ? std::to_string(t.numel()) + " elements of " + toString(t.scalar_type()) : "none");
    at::Tensor host = host_of(what, t);
    written(what, t, host);
    if (host.scalar_type() != at::kFloat) {  // powers of two are exact in bf16
      const at::Tensor copy = host.to(at::kFloat);
      kept_.push_back(copy);
      home_.emplace_back(host, copy);
      host = copy;
    }
    auto* data = static_cast<float*>(host.mutable_data_ptr());
    TORCH_CHECK(*data > 0 && std::isfinite(*data), "[", op_, "] expected ", what, "[", item_,
                "], a positive number, got ", *data);
    return data;
  }

  /// Before the kernel: no memory is written twice.
  void check_writes() {
    std::sort(writes_.begin(), writes_.end(), [](const Write& a, const Write& b) { return a.begin < b.begin; });
    std::uintptr_t dense_end = 0, previous = 0;
    for (const Write& w : writes_) {
      TORCH_CHECK(w.begin != previous && !(w.dense && w.begin < dense_end), "[", op_,
                  "] expected tensors with memory of their own to write to, got two with the same");
      previous = w.begin;
      if (w.dense) dense_end = w.end;
    }
  }
  void finish() {
    for (auto& [to, from] : home_) to.copy_(from);
  }

 private:
  at::Tensor host_of(const char* what, const at::Tensor& t) {
    TORCH_CHECK(t.layout() == at::kStrided, "[", op_, "] expected ", what, "[", item_, "] to be dense, got ",
                t.layout());
    TORCH_CHECK(t.is_cpu() || t.device().is_hpu(), "[", op_, "] expected ", what, "[", item_, "] on hpu or cpu, got ",
                t.device());
    kept_.push_back(cpu_alias(t.detach()));
    return kept_.back();
  }

  void written(const char* what, const at::Tensor& t, const at::Tensor& host) {
    TORCH_CHECK(at::has_internal_overlap(host) != at::MemOverlap::Yes, "[", op_, "] expected ", what, "[", item_,
                "] to have memory for each element, got strides ", host.strides(), " for sizes ", host.sizes());
    t.unsafeGetTensorImpl()->bump_version();
    if (host.numel() == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(host.const_data_ptr());
    writes_.push_back({begin, begin + host.nbytes(), host.is_non_overlapping_and_dense()});
  }

  Array array(const char* what, const at::Tensor& t, bool write, bool fp8_allowed) {
    TORCH_CHECK(t.defined(), "[", op_, "] expected a tensor as ", what, "[", item_, "], got none");
    const auto type = t.scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || (fp8_allowed && is_fp8(type)), "[",
                op_, "] expected ", what, "[", item_, "] of dtype Float, BFloat16",
                fp8_allowed ? ", Half, Float8_e4m3fn or Float8_e5m2" : " or Half", ", got ", type);
    TORCH_CHECK(t.sizes() == at::IntArrayRef(sizes_), "[", op_, "] expected ", what, "[", item_, "] of sizes ",
                at::IntArrayRef(sizes_), ", got ", t.sizes());
    at::Tensor host = host_of(what, t);
    if (write) written(what, t, host);
    if (!same_strides(host.strides(), strides_, sizes_)) {
      const at::Tensor copy = at::empty_strided(sizes_, strides_, host.options());
      copy.copy_(host);
      kept_.push_back(copy);
      if (write) home_.emplace_back(host, copy);
      host = copy;
    }
    Array array;
    array.data = const_cast<void*>(host.const_data_ptr());
    array.n = host.numel();
    array.type = storage_of(type);
    return array;
  }

  struct Write {
    std::uintptr_t begin, end;
    bool dense;  ///< all of the range is its own
  };

  const char* op_;
  std::int64_t item_ = -1;
  std::vector<std::int64_t> sizes_, strides_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> home_;
  std::vector<Write> writes_;
};

/// The tensors of a leaf of all items; none without listeners.
template <class Item, class... Member>
std::vector<at::Tensor> tensors_of(at::ArrayRef<Item> items, Member... members) {
  std::vector<at::Tensor> tensors;
  if (!leaves_heard()) return tensors;
  for (const Item& item : items) (tensors.push_back(item.*members), ...);
  return tensors;
}

}  // namespace

void adam_step(const char* op, at::ArrayRef<AdamItem> items) {
  HostArrays arrays(op);
  std::vector<kernels::AdamTensor> work;
  work.reserve(items.size());
  bool fp8 = false;
  for (const AdamItem& item : items) {
    arrays.next(item.weight);
    kernels::AdamTensor t;
    t.weight = arrays.write("weight", item.weight);
    t.grad = arrays.read("gradient", item.grad);
    t.m = arrays.moment("exp_avg", item.exp_avg);
    t.v = arrays.moment("exp_avg_sq", item.exp_avg_sq);
    t.m_scale = arrays.scale("exp_avg_scales", item.exp_avg_scale, kernels::is_fp8(t.m.type));
    t.v_scale = arrays.scale("exp_avg_sq_scales", item.exp_avg_sq_scale, kernels::is_fp8(t.v.type));
    t.factors = item.factors;
    t.seed = item.seed;
    fp8 |= kernels::is_fp8(t.m.type) || kernels::is_fp8(t.v.type);
    work.push_back(t);
  }
  if (work.empty()) return;
  LeafScope leaf(op, tensors_of(items, &AdamItem::weight, &AdamItem::grad, &AdamItem::exp_avg, &AdamItem::exp_avg_sq));
  arrays.check_writes();
  kernels::adam_step(work, fp8 ? device_dialect(op) : kernels::Dialect::ocp);
  arrays.finish();
  leaf.gives(tensors_of(items, &AdamItem::weight, &AdamItem::exp_avg, &AdamItem::exp_avg_sq));
}

void sgd_step(const char* op, at::ArrayRef<SgdItem> items) {
  HostArrays arrays(op);
  std::vector<kernels::SgdTensor> work;
  work.reserve(items.size());
  for (const SgdItem& item : items) {
    arrays.next(item.weight);
    kernels::SgdTensor t;
    t.weight = arrays.write("weight", item.weight);
    t.grad = arrays.read("gradient", item.grad);
    if (item.buffer.defined()) t.buffer = arrays.write("momentum", item.buffer);
    t.weight_decay = item.weight_decay;
    t.momentum = item.momentum;
    t.rest = item.rest;
    t.neg_lr = item.neg_lr;
    t.nesterov = item.nesterov;
    t.first = item.first;
    work.push_back(t);
  }
  if (work.empty()) return;
  LeafScope leaf(op, tensors_of(items, &SgdItem::weight, &SgdItem::grad, &SgdItem::buffer));
  arrays.check_writes();
  kernels::sgd_step(work);
  arrays.finish();
  leaf.gives(tensors_of(items, &SgdItem::weight, &SgdItem::buffer));
}

std::vector<LambNorms> lamb_direction(const char* op, at::ArrayRef<LambItem> items) {
  HostArrays arrays(op);
  std::vector<kernels::LambTensor> work;
  work.reserve(items.size());
  for (const LambItem& item : items) {
    arrays.next(item.weight);
    kernels::LambTensor t = item.factors;
    t.weight = arrays.read("weight", item.weight);
    t.grad = arrays.read("gradient", item.grad);
    t.m = arrays.write("exp_avg", item.exp_avg);
    t.v = arrays.write("exp_avg_sq", item.exp_avg_sq);
    t.step = arrays.write("adam_step", item.step);
    work.push_back(t);
  }
  std::vector<LambNorms> result(work.size());
  if (work.empty()) return result;
  LeafScope leaf(op, tensors_of(items, &LambItem::weight, &LambItem::grad, &LambItem::exp_avg, &LambItem::exp_avg_sq));
  arrays.check_writes();
  std::vector<double> squares(2 * work.size());
  kernels::lamb_direction(work, reinterpret_cast<double(*)[2]>(squares.data()));
  arrays.finish();
  leaf.gives(tensors_of(items, &LambItem::exp_avg, &LambItem::exp_avg_sq, &LambItem::step));
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = {std::sqrt(squares[2 * i]), std::sqrt(squares[2 * i + 1])};
  return result;
}

void scale_add(const char* op, at::ArrayRef<ScaleAddItem> items) {
  HostArrays arrays(op);
  std::vector<kernels::ScaleAdd> work;
  work.reserve(items.size());
  for (const ScaleAddItem& item : items) {
    arrays.next(item.y);
    kernels::ScaleAdd t;
    t.y = arrays.write("result", item.y);
    if (item.x.defined()) t.x = arrays.read("input", item.x);
    t.a = item.a;
    t.b = item.b;
    work.push_back(t);
  }
  if (work.empty()) return;
  LeafScope leaf(op, tensors_of(items, &ScaleAddItem::y, &ScaleAddItem::x));
  arrays.check_writes();
  kernels::scale_add(work);
  arrays.finish();
  leaf.gives(tensors_of(items, &ScaleAddItem::y));
}

std::vector<double> norms(const char* op, at::TensorList tensors) {
  HostArrays arrays(op);
  std::vector<Array> work;
  work.reserve(tensors.size());
  for (const at::Tensor& t : tensors) {
    arrays.next(t);
    work.push_back(arrays.read("tensor", t));
  }
  std::vector<double> result(work.size());
  const LeafScope leaf(op, tensors);
  kernels::sums_of_squares(work, result.data());
  for (double& value : result) value = std::sqrt(value);
  return result;
}

double norm_of(const std::vector<double>& norms) {
  double sum = 0;
  for (const double norm : norms) sum += norm * norm;
  return std::sqrt(sum);
}

float clip_coefficient(double norm, double max_norm) {
  return norm > max_norm ? static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6))) : 1.0f;
}

void scale_all(const char* op, at::TensorList tensors, float factor) {
  if (factor == 1) return;
  std::vector<ScaleAddItem> items;
  items.reserve(tensors.size());
  for (const at::Tensor& t : tensors) items.push_back({t, {}, factor, 0});
  scale_add(op, items);
}

double lars_factor(double weight_norm, double grad_norm, double eeta, double weight_decay, double eps, double lr) {
  if (!(weight_norm > 0 && grad_norm > 0)) return lr;
  return lr * (eeta * weight_norm / (grad_norm + weight_decay * weight_norm + eps));
}

double lamb_trust(double weight_norm, double step_norm, bool wanted) {
  return wanted && weight_norm > 0 && step_norm > 0 ? weight_norm / step_norm : 1.0;
}

}  // namespace fp8::runtime::ops
