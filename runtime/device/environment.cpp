// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/environment.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string_view>

#include "fp8/runtime/kernels/simd.h"

namespace fp8::runtime {
namespace {

/// Empty where it is not set.
std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

}  // namespace

DeviceKind kind_from_environment() {
  const auto text = variable("FP8_HPU_DEVICE");
  if (text.empty() || text == "gaudi3") return DeviceKind::gaudi3;
  if (text == "gaudi2") return DeviceKind::gaudi2;
  if (text == "gaudi") return DeviceKind::gaudi;
  TORCH_CHECK(false, "FP8_HPU_DEVICE: found '", text, "', allowed: gaudi, gaudi2, gaudi3");
}

int count_from_environment() {
  const auto text = variable("FP8_HPU_DEVICES");
  if (text.empty()) return 1;
  char* end = nullptr;
  const long value = std::strtol(text.data(), &end, 10);
  TORCH_CHECK(*end == '\0' && value >= 1 && value <= kMaxDevices, "FP8_HPU_DEVICES: found '", text,
              "', allowed: an integer from 1 to ", kMaxDevices);
  return static_cast<int>(value);
}

std::int64_t memory_limit_from_environment() {
  const auto text = variable("FP8_HPU_MEMORY");
  if (text.empty()) return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  char* end = nullptr;
  const double value = std::strtod(text.data(), &end);
  double unit = 1;
  if (*end == 'K') unit = 1024.0;
  if (*end == 'M') unit = 1024.0 * 1024;
  if (*end == 'G') unit = 1024.0 * 1024 * 1024;
  if (unit != 1) ++end;
  TORCH_CHECK(end != text.data() && *end == '\0' && value * unit >= 1 && value * unit < 9e18, "FP8_HPU_MEMORY: found '",
              text, "', allowed: a number of bytes > 0, K, M or G may follow");
  return static_cast<std::int64_t>(value * unit);
}

bool moves_host_operands() {
  const auto word = variable("FP8_HPU_MOVE_HOST_OPERANDS");
  TORCH_CHECK(word.empty() || word == "0" || word == "1", "[hpu] FP8_HPU_MOVE_HOST_OPERANDS: found \"", word,
              "\", allowed: 0, 1");
  return word == "1";
}

bool stochastic_rounding_flushes() {
  const auto text = variable("PT_HPU_STOCHASTIC_ROUNDING_MODE");
  TORCH_CHECK(text.empty() || text == "0" || text == "1", "PT_HPU_STOCHASTIC_ROUNDING_MODE: found '", text,
              "', allowed: 0, 1");
  return text == "0";
}

std::optional<bool> forced_stochastic_gradients() {
  const auto text = variable("PT_TE_FORCE_SR_BWD");
  if (text.empty()) return std::nullopt;
  const bool on = text == "1" || text == "true";
  TORCH_CHECK(on || text == "0" || text == "false", "PT_TE_FORCE_SR_BWD: found '", text,
              "', allowed: 0, 1, false, true");
  return on;
}

std::vector<std::string> environment_problems() {
  std::vector<std::string> problems;
  const std::function<void()> readers[] = {
      [] { kernels::simd_level(); },           [] { kind_from_environment(); }, [] { count_from_environment(); },
      [] { memory_limit_from_environment(); }, [] { moves_host_operands(); },   [] { stochastic_rounding_flushes(); },
      [] { forced_stochastic_gradients(); }};
  for (const auto& read : readers) {
    try {
      read();
    } catch (const c10::Error& error) {
      problems.emplace_back(error.what_without_backtrace());
    } catch (const std::exception& error) {
      problems.emplace_back(error.what());
    }
  }
  return problems;
}

}  // namespace fp8::runtime
