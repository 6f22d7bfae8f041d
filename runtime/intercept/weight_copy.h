// SPDX-License-Identifier: Apache-2.0
// What a write into, a copy out of and an exchange of marked memory mean, where the memory holds codes
// (OpHandler::owns_values). Codes never lie where nobody, or somebody else's scale, answers for them:
//
//   from \ to      unmarked (hpu or cpu)           all of a weight          a part of a weight
//   all of it      the mark goes along             its scales go along      only with the same one scale
//   a part         so, where the scale is one      -                        (or the same place and scales)
//   unmarked       not looked at                   throws                   throws
//
// A host copy is guarded (host_codes.h): views, copies and pickling go on, any other op throws with the module's name.
// Memory read as bytes (view(kByte)) is nobody's codes: who copies bytes says by that what they mean; a copy of a whole
// storage (Python's deepcopy) takes the marks along. set_ and set_data: the new memory's mark holds; unmarked codes
// throw. An archive holds a text that names the scales (archived_codes.cpp), and a module whose scales are those takes
// the codes in. Watched weights (plain values): a copy is another weight, whose handler for_copy() may give; where
// set_data or set_ exchange the memory, the mark follows.
#pragma once
#include <ATen/core/Tensor.h>

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
  ScalesComeLater(const ScalesComeLater&) = delete;
  ScalesComeLater& operator=(const ScalesComeLater&) = delete;

 private:
  bool before_;
};

}  // namespace fp8::runtime
