// SPDX-License-Identifier: Apache-2.0
// Who answers for codes whose scales are not at hand: they came out of an archive, or their memory was exchanged
// unseen. Every use throws by name; what the archive said of the scales tells whether a converted module may take the
// codes in.
#pragma once
#include <string>
#include <utility>

#include "fp8/runtime/intercept/op_handler.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::runtime {

class UnknownScales final : public OpHandler {
 public:
  /// what: describe() of who answered before; scales, one_scale: as that one gave them.
  explicit UnknownScales(std::string what, std::string scales = "", bool one_scale = false)
      : what_(std::move(what)), scales_(std::move(scales)), one_scale_(one_scale) {}

  at::Tensor linear(const LinearCall& call) override { refuse(call.tag); }
  at::Tensor convolution(const ConvolutionCall& call) override { refuse(call.tag); }
  at::Tensor dequantize(const WeightTag& tag, const WeightView&, const at::Tensor&) override { refuse(tag); }
  bool owns_values() const override { return true; }
  std::string describe() const override { return what_ + ", without its scales"; }
  std::string scales() const override { return scales_; }
  bool one_scale() const override { return one_scale_; }
  std::shared_ptr<OpHandler> with_scales_of(const std::shared_ptr<OpHandler>& source) const override { return source; }

 private:
  [[noreturn]] static void refuse(const WeightTag& tag) {
    TORCH_CHECK(false, "[fp8] ", tag.describe(),
                ": an archive holds codes alone; load it into the converted module that it ",
                "was saved from, or use fp8::quant::save, which writes the scales too");
  }

  std::string what_, scales_;
  bool one_scale_;
};

}  // namespace fp8::runtime
