// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/kernels/device_kind.h"

#include <stdexcept>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::kernels {

DeviceKind kind_from_environment() {
  if (const std::string problem = io::environment_problem("FP8_HPU_DEVICE"); !problem.empty())
    throw std::invalid_argument(problem);
  const char* value = io::environment_value("FP8_HPU_DEVICE");
  const std::string_view word = value != nullptr ? value : "";
  return word == "gaudi" ? DeviceKind::gaudi : word == "gaudi2" ? DeviceKind::gaudi2 : DeviceKind::gaudi3;
}

}  // namespace fp8::kernels
