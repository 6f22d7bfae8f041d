// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of the emulated device: bit comparison and two op handlers.
//
//   RecordingHandler   watches: returns what the op gives, and keeps x, w, y of every call
//   CodesHandler       owns: the weight is float8 with one scale_inv, and only linear, convolution and dequantize know
//                      it
#pragma once
#include <torch/torch.h>

#include <cstring>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/intercept/intercept.h"
#include "support/throws_with.h"

namespace fp8::test {

inline const at::Device kHpu(at::kHPU, 0);

/// Options of a tensor on hpu.
inline at::TensorOptions on_hpu(at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions().device(kHpu).dtype(dtype);
}

/// A copy on hpu; a module itself.
inline at::Tensor hpu(const at::Tensor& t) { return t.to(kHpu); }
template <class M>
  requires(!std::is_convertible_v<M, at::Tensor>)
M hpu(M module) {
  module->to(kHpu);
  return module;
}

/// f() while the scope, an object of this call, lives: within(fp8_autocast(true, recipe), [&] { return layer(x); }).
template <class Scope, class F>
auto within(const Scope&, F&& f) {
  return f();
}

/// EXPECT_TRUE(same_bits(a, b)): dtype, sizes and every bit of the elements are equal, whatever the device and the
/// strides.
inline ::testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return ::testing::AssertionFailure() << "one of the two is undefined";
  if (!a.defined()) return ::testing::AssertionSuccess();
  if (a.scalar_type() != b.scalar_type())
    return ::testing::AssertionFailure() << "dtypes " << a.scalar_type() << " and " << b.scalar_type();
  if (a.sizes() != b.sizes()) return ::testing::AssertionFailure() << "sizes " << a.sizes() << " and " << b.sizes();
  const auto dense = [](const at::Tensor& t) {
    if (c10::isFloat8Type(t.scalar_type())) return t.detach().view(at::kByte).cpu().contiguous();
    return t.detach().cpu().resolve_conj().resolve_neg().contiguous();
  };
  const at::Tensor x = dense(a), y = dense(b);
  if (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0)
    return ::testing::AssertionSuccess();
  if (c10::isFloat8Type(a.scalar_type()) || x.is_complex()) return ::testing::AssertionFailure() << "elements differ";
  return ::testing::AssertionFailure() << "elements differ, by at most "
                                       << (x.to(at::kDouble) - y.to(at::kDouble)).abs().max().item<double>();
}

/// Runs f() with gradients, without them and in InferenceMode.
template <typename F>
void in_every_mode(F&& f) {
  {
    SCOPED_TRACE("grad");
    f();
  }
  {
    SCOPED_TRACE("no grad");
    const at::NoGradGuard no_grad;
    f();
  }
  SCOPED_TRACE("inference");
  const c10::InferenceMode inference;
  f();
}

/// Texts of TORCH_WARN on this thread while it lives.
struct Warnings final : c10::WarningHandler {
  std::vector<std::string> texts;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
};

/// One call that a RecordingHandler saw.
struct Seen {
  std::string modules, op;  ///< op: linear or convolution
  at::Tensor x, w, y;
  runtime::WeightView view;
  bool has_bias = false;
};

class RecordingHandler final : public runtime::OpHandler {
 public:
  std::vector<Seen> calls;

  at::Tensor linear(const runtime::LinearCall& call) override {
    const at::Tensor y = call.original();
    calls.push_back({call.tag.module_names(), "linear", call.x, call.weight, y, call.view, call.bias.has_value()});
    return y;
  }
  at::Tensor convolution(const runtime::ConvolutionCall& call) override {
    const at::Tensor y = call.original();
    calls.push_back({call.tag.module_names(), "convolution", call.x, call.weight, y, {}, call.bias.has_value()});
    stride = call.stride.vec();
    padding = call.padding.vec();
    dilation = call.dilation.vec();
    groups = call.groups;
    transposed = call.transposed;
    return y;
  }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  std::string describe() const override { return "watched"; }

  std::vector<std::int64_t> stride, padding, dilation;  ///< of the last convolution
  std::int64_t groups = 0;
  bool transposed = false;
};

/// Multiplies with the decoded weight in f32, so that a result tells whether the scale was used.
class CodesHandler final : public runtime::OpHandler {
 public:
  explicit CodesHandler(double scale_inv) : scale_inv_(scale_inv) {}
  int linears = 0, convolutions = 0, dequantized = 0;
  std::vector<runtime::WeightView> views;

  at::Tensor linear(const runtime::LinearCall& call) override {
    ++linears;
    views.push_back(call.view);
    const at::Tensor y = at::matmul(call.x, decoded(call.weight).to(call.x.scalar_type()).transpose(-2, -1));
    return call.bias.has_value() ? y + *call.bias : y;
  }
  at::Tensor convolution(const runtime::ConvolutionCall& call) override {
    ++convolutions;
    return at::convolution(call.x, decoded(call.weight), call.bias, call.stride, call.padding, call.dilation,
                           call.transposed, std::vector<std::int64_t>(call.stride.size(), 0), call.groups);
  }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView& view, const at::Tensor& weight) override {
    ++dequantized;
    views.push_back(view);
    return decoded(weight);
  }
  bool owns_values() const override { return true; }
  std::string scales() const override { return std::to_string(scale_inv_); }
  bool one_scale() const override { return true; }
  std::string describe() const override { return "E4M3 per tensor"; }

  /// The values of codes on hpu: bytes go to the CPU, are read there and come back.
  at::Tensor decoded(const at::Tensor& codes) const {
    return (codes.view(at::kByte).cpu().view(codes.scalar_type()).to(at::kFloat) * scale_inv_).to(kHpu);
  }

 private:
  double scale_inv_;
};

/// Replaces a parameter's values by E4M3 codes of w / scale_inv and tags it, as a conversion does.
inline void convert_to_codes(at::Tensor& parameter, const std::string& module,
                             const std::shared_ptr<CodesHandler>& handler, double scale_inv) {
  const at::Tensor codes = (parameter.detach().cpu().to(at::kFloat) / scale_inv).to(at::kFloat8_e4m3fn).to(kHpu);
  parameter.set_requires_grad(false);
  parameter.set_data(codes);
  runtime::tag_weight(parameter, module, handler);
}

}  // namespace fp8::test

namespace fp8 {
using test::hpu;
using test::kHpu;
using test::on_hpu;
using test::same_bits;
}  // namespace fp8
