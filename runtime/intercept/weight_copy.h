// SPDX-License-Identifier: Apache-2.0
// Writes into, copies out of and exchanges of marked memory, where the memory holds codes
// (OpHandler::owns_values). Codes never lie without their own scale:
//
//   from \ to      unmarked (hpu or cpu)           all of a weight          a part of a weight
//   all of it      the mark goes along             its scales go along      only with the same one scale
//   a part         so, where the scale is one      -                        (or the same place and scales)
//   unmarked       not looked at                   throws                   throws
//
// A host copy is guarded: views, copies and pickling go on, products take its values, any other op throws with the
// module's name.
// Memory read as bytes (view(kByte)) is no weight's codes: copying bytes is the caller's decision; a copy of a whole
// storage (Python's deepcopy) takes the marks along. set_ and set_data: the new memory's mark holds; unmarked codes
// throw. An archive holds a text that names the scales (weight_copy.cpp), and a module whose scales are those takes
// the codes in. Watched weights (plain values): a copy is another weight, whose handler for_copy() may give; where
// set_data or set_ exchange the memory, the mark follows.
#pragma once

#include <utility>

#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::runtime {

/// Before copy_(to, from), one of which lies in marked memory. Throws c10::Error with the module's name.
void check_weight_copy(const at::Tensor& to, const at::Tensor& from);
/// After it.
void weight_copied(const at::Tensor& to, const at::Tensor& from);

/// Before self, whose tag is `tag`, gets the memory of source (same dtype, or set_ throws). Throws c10::Error with the
/// module's name.
void check_weight_replace(const WeightTag& tag, const at::Tensor& self, const at::Tensor& source);
/// Then: the mark on source, unless it has one.
void weight_replaced(const WeightTag& tag, const at::Tensor& source);

/// While it lives, codes of any scales may be put in place of a parameter that learns in fp8, on this thread: who loads
/// an archive gives it the scale right after.
class ScalesComeLater {
 public:
  ScalesComeLater();
  ~ScalesComeLater();
  ScalesComeLater& operator=(ScalesComeLater&&) = delete;

 private:
  bool before_;
};

// Codes on the host. A copy of a converted weight in CPU memory carries its mark (device/block.h), and a dispatch
// key that no other CPU tensor has brings every op on it here first:
//
//   views, same-dtype copies (to(hpu), clone), empty_like, pickling     go on; copies are marked in their turn
//   mm, addmm, bmm, convolution, embedding                              compute with the values, and warn once
//   to(kFloat), cat, index_select, tolist, ...                          throw with the module's and the op's name
//
// The key is the one that upstream keeps for libraries outside of it (DeferredInit); views inherit it.

/// Gives a CPU tensor the key.
void guard_host_codes(const at::Tensor& cpu);
/// True if it has it: it, or what it is a view of, was a host copy of codes.
bool is_guarded(const at::Tensor& t);

// The handler of codes whose scales are not at hand: they came out of an archive, or their memory was exchanged
// unseen. Every use throws by name; what the archive said of the scales tells whether a converted module may take the
// codes in.

class UnknownScales final : public OpHandler {
 public:
  /// what: describe() of who answered before; scales, one_scale: as that one gave them.
  explicit UnknownScales(std::string what, std::string scales = "", bool one_scale = false)
      : what_(std::move(what)), scales_(std::move(scales)), one_scale_(one_scale) {}

  at::Tensor linear(const LinearCall& call) override { refuse(call.tag); }
  at::Tensor convolution(const ConvolutionCall& call) override { refuse(call.tag); }
  at::Tensor dequantize(const WeightTag& tag, const WeightView&, const at::Tensor&) override { refuse(tag); }
  bool owns_values() const override { return true; }
  bool has_known_scales() const override { return false; }
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
