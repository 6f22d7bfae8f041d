// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/capabilities.h"

#include <c10/util/Exception.h>

#include <vector>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime {
bool takes(c10::ScalarType type, DtypeUse use) { return takes(device_kind(), type, use); }

std::string allowed_dtypes(DtypeUse use) {
  std::vector<std::string> names;
  for (const DtypePair& pair : kDtypes)
    if (!kernels::row_of(pair.row).emulation_only && takes(pair.type, use))
      names.emplace_back(c10::toString(pair.type));
  return io::joined(names);
}

std::string second_generation_required(const char* what) {
  return std::string(what) + " not supported on Gaudi, Gaudi2 or higher required";
}

void capabilities::check_of_kind(c10::ScalarType type, DtypeUse use, const char* op) {
  const DeviceKind kind = device_kind();
  if (takes(kind, type, use)) return;
  const char* what = use == DtypeUse::tensors ? " tensors" : "";
  TORCH_CHECK_NOT_IMPLEMENTED(!takes(DeviceKind::gaudi2, type, use), "[", op, "] ",
                              second_generation_required((c10::toString(type) + std::string(what)).c_str()),
                              " (FP8_HPU_DEVICE); allowed on ", name_of(kind), ": ", allowed_dtypes(use));
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op, "] ", c10::toString(type), what, " not supported on ", name_of(kind),
                              ", allowed: ", allowed_dtypes(use));
}

}  // namespace fp8::runtime
