// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/environment.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <string_view>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::runtime {
namespace {

/// The value, refused where it is not allowed; empty where it is not set.
std::string_view checked(const char* name) {
  const std::string problem = io::environment_problem(name);
  TORCH_CHECK(problem.empty(), problem);
  const char* value = io::environment_value(name);
  return value != nullptr ? value : "";
}

}  // namespace

DeviceKind kind_from_environment() {
  checked("FP8_HPU_DEVICE");
  return kernels::kind_from_environment();
}

int count_from_environment() {
  const auto text = checked("FP8_HPU_DEVICES");
  if (text.empty()) return 1;
  const auto count = io::parse_integer(text, 1, kMaxDevices);
  TORCH_INTERNAL_ASSERT(count.has_value(), "FP8_HPU_DEVICES: the table of variables allows more than kMaxDevices");
  return *count;
}

std::int64_t memory_limit_from_environment() {
  const auto text = checked("FP8_HPU_MEMORY");
  if (text.empty()) return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return io::parse_bytes(text).value();
}

bool moves_host_operands() { return checked("FP8_HPU_MOVE_HOST_OPERANDS") == "1"; }

bool stochastic_rounding_flushes() { return checked("PT_HPU_STOCHASTIC_ROUNDING_MODE") == "0"; }

std::optional<bool> forced_stochastic_gradients() {
  const auto text = checked("PT_TE_FORCE_SR_BWD");
  return text.empty() ? std::nullopt : std::optional(text == "1" || text == "true");
}

}  // namespace fp8::runtime
