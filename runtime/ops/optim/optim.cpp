// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/optim/optim.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

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
    return {const_cast<void*>(host.const_data_ptr()), host.numel(), storage_of(type)};
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
template <class Item>
std::vector<at::Tensor> tensors_of(at::ArrayRef<Item> items, std::initializer_list<at::Tensor Item::*> members) {
  std::vector<at::Tensor> tensors;
  if (!leaves_heard()) return tensors;
  for (const Item& item : items)
    for (const auto member : members) tensors.push_back(item.*member);
  return tensors;
}

/// kernel(work of all items), where make(arrays, item) is the work of one; `leader` decides its order of elements.
/// given, written: what a leaf tells of an item.
template <class Item, class Make, class Kernel>
void run_step(const char* op, at::ArrayRef<Item> items, at::Tensor Item::*leader,
              std::initializer_list<at::Tensor Item::*> given, std::initializer_list<at::Tensor Item::*> written,
              const Make& make, const Kernel& kernel) {
  if (items.empty()) return;
  HostArrays arrays(op);
  std::vector<decltype(make(arrays, items[0]))> work;
  work.reserve(items.size());
  for (const Item& item : items) {
    arrays.next(item.*leader);
    work.push_back(make(arrays, item));
  }
  LeafScope leaf(op, tensors_of(items, given));
  arrays.check_writes();
  kernel(work);
  arrays.finish();
  leaf.gives(tensors_of(items, written));
}

}  // namespace

void adam_step(const char* op, at::ArrayRef<AdamItem> items) {
  bool fp8 = false;
  const auto make = [&](HostArrays& arrays, const AdamItem& item) {
    const kernels::AdamTensor t{
        arrays.write("weight", item.weight),
        arrays.read("gradient", item.grad),
        arrays.moment("exp_avg", item.exp_avg),
        arrays.moment("exp_avg_sq", item.exp_avg_sq),
        arrays.scale("exp_avg_scales", item.exp_avg_scale, is_fp8(item.exp_avg.scalar_type())),
        arrays.scale("exp_avg_sq_scales", item.exp_avg_sq_scale, is_fp8(item.exp_avg_sq.scalar_type())),
        item.factors,
        item.seed};
    fp8 |= t.m_scale != nullptr || t.v_scale != nullptr;
    return t;
  };
  run_step(op, items, &AdamItem::weight,
           {&AdamItem::weight, &AdamItem::grad, &AdamItem::exp_avg, &AdamItem::exp_avg_sq},
           {&AdamItem::weight, &AdamItem::exp_avg, &AdamItem::exp_avg_sq}, make,
           [&](const auto& work) { kernels::adam_step(work, fp8 ? device_dialect(op) : kernels::Dialect::ocp); });
}

void sgd_step(const char* op, at::ArrayRef<SgdItem> items) {
  const auto make = [](HostArrays& arrays, const SgdItem& item) {
    return kernels::SgdTensor{arrays.write("weight", item.weight),
                              arrays.read("gradient", item.grad),
                              item.buffer.defined() ? arrays.write("momentum", item.buffer) : Array(),
                              item.weight_decay,
                              item.momentum,
                              item.rest,
                              item.neg_lr,
                              item.nesterov,
                              item.first};
  };
  run_step(op, items, &SgdItem::weight, {&SgdItem::weight, &SgdItem::grad, &SgdItem::buffer},
           {&SgdItem::weight, &SgdItem::buffer}, make, [](const auto& work) { kernels::sgd_step(work); });
}

std::vector<LambNorms> lamb_direction(const char* op, at::ArrayRef<LambItem> items) {
  const auto make = [](HostArrays& arrays, const LambItem& item) {
    kernels::LambTensor t = item.factors;
    t.weight = arrays.read("weight", item.weight);
    t.grad = arrays.read("gradient", item.grad);
    t.m = arrays.write("exp_avg", item.exp_avg);
    t.v = arrays.write("exp_avg_sq", item.exp_avg_sq);
    t.step = arrays.write("adam_step", item.step);
    return t;
  };
  std::vector<double> squares(2 * items.size());
  run_step(op, items, &LambItem::weight,
           {&LambItem::weight, &LambItem::grad, &LambItem::exp_avg, &LambItem::exp_avg_sq},
           {&LambItem::exp_avg, &LambItem::exp_avg_sq, &LambItem::step}, make,
           [&](const auto& work) { kernels::lamb_direction(work, reinterpret_cast<double(*)[2]>(squares.data())); });
  std::vector<LambNorms> result(items.size());
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = {std::sqrt(squares[2 * i]), std::sqrt(squares[2 * i + 1])};
  return result;
}

void scale_add(const char* op, at::ArrayRef<ScaleAddItem> items) {
  const auto make = [](HostArrays& arrays, const ScaleAddItem& item) {
    return kernels::ScaleAdd{arrays.write("result", item.y), item.x.defined() ? arrays.read("input", item.x) : Array(),
                             item.a, item.b};
  };
  run_step(op, items, &ScaleAddItem::y, {&ScaleAddItem::y, &ScaleAddItem::x}, {&ScaleAddItem::y}, make,
           [](const auto& work) { kernels::scale_add(work); });
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
