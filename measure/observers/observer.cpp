// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/observers/observer.h"

#include <stdexcept>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {

const at::Tensor& Observed::values() const {
  if (!values_.defined()) {
    const auto type = tensor_.scalar_type();
    values_ = (runtime::ops::is_high_precision(type) ? tensor_ : tensor_.to(at::kFloat)).contiguous();
  }
  return values_;
}

void Observer::merge(const Observer&) {
  throw std::invalid_argument("this kind of observer does not merge: it has no merge()");
}

void Observer::observe_part(const Observed&, const PartOf&) {
  throw std::invalid_argument("this kind of observer takes whole tensors only: it has no observe_part()");
}

void Observer::restore(const io::Json&, const std::string& where) {
  throw io::Error(where + ": this kind of observer keeps no state");
}

double ObserverContext::parameter(const configs::ObserverParameter& parameter) const {
  const auto found = parameters.find(parameter.name);
  if (found == parameters.end()) return parameter.otherwise;
  if (!parameter.takes(found->second)) {
    throw std::invalid_argument(std::string(parameter.name) + ": found " + std::to_string(found->second) +
                                ", allowed: " + parameter.allowed());
  }
  return found->second;
}

}  // namespace fp8::measure
