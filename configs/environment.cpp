// SPDX-License-Identifier: Apache-2.0
// Environment variables as typed values (see environment.h).
#include "fp8/configs/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "fp8/configs/closest.h"
#include "fp8/configs/quant_config.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/launcher.h"

namespace fp8::configs {
namespace {

[[noreturn]] void reject(const char* name, std::string_view found, const std::string& allowed) {
  throw io::Error(std::string("environment variable '") + name + "': found " + io::in_quotes(found) +
                  ", allowed: " + allowed);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

// Looks variables up, keeps those that are set for the report.
class Reader {
 public:
  Reader(const GetVariable& get, std::vector<EnvironmentVariable>& report) : get_(get), report_(report) {}

  // The value; nullptr if it is unset or empty.
  const char* text(const char* name, bool in_effect, const char* effect) {
    const char* value = get_(name);
    if (value == nullptr || *value == '\0') return nullptr;
    report_.push_back({name, io::printable(value, 4096), in_effect, effect});
    return value;
  }

  std::optional<int> integer(const char* name, int low, int high, bool in_effect, const char* effect) {
    const char* value = text(name, in_effect, effect);
    if (value == nullptr) return std::nullopt;
    const std::string_view view(value);
    int number = 0;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), number);
    if (error != std::errc() || end != view.data() + view.size() || number < low || number > high) {
      const bool open = high == std::numeric_limits<int>::max();
      reject(name, view,
             open ? "an integer >= " + std::to_string(low)
                  : "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return number;
  }

  bool flag(const char* name, bool absent, bool in_effect, const char* effect) {
    const char* value = text(name, in_effect, effect);
    if (value == nullptr) return absent;
    const std::string word = lower(value);
    if (word == "true" || word == "1") return true;
    if (word == "false" || word == "0") return false;
    reject(name, value, "true, 1, false, 0");
  }

 private:
  const GetVariable& get_;
  std::vector<EnvironmentVariable>& report_;
};

std::optional<std::string> read_target_device(Reader& reader) {
  const char* value = reader.text("INC_TARGET_DEVICE", false, "the device is the one that --device names");
  if (value == nullptr) return std::nullopt;
  const std::vector<std::string> allowed{"cpu", "hpu", "cuda", "xpu"};
  std::string word = lower(value);
  if (std::find(allowed.begin(), allowed.end(), word) == allowed.end()) {
    reject("INC_TARGET_DEVICE", value, "cpu, hpu, cuda, xpu; did you mean '" + closest(word, allowed) + "'?");
  }
  return word;
}

/// Environment::process() makes them a rank when somebody asks.
void read_processes(Reader& reader) {
  for (const auto& name : io::launcher_variables()) {
    reader.text(
        name.c_str(), true,
        "this process among several: names of measurement files, shares of quantize and convert, who evaluates");
  }
}

void read_dump_method(Reader& reader, Environment& result) {
  const auto method =
      reader.integer("MEASUREMENT_DUMP_METHOD", 1, 5, true,
                     "1: files every calibration_sample_interval samples; 5: at the end only; 2, 3 (other "
                     "threads): as 1");
  if (method == 4) reject("MEASUREMENT_DUMP_METHOD", "4", "1, 2, 3, 5");
  result.measurement_dump_method = method.value_or(1);
}

void read_logging(Reader& reader, Environment& result) {
  constexpr const char* kLogging = "no log is written; --quiet and --json decide what is printed";
  result.log_level = reader.integer("LOG_LEVEL_INC", 0, 6, false, kLogging);
  const auto all = reader.integer("LOG_LEVEL_ALL", 0, 6, false, kLogging);
  if (!result.log_level) result.log_level = all;
  for (const char* name : {"ENABLE_CONSOLE", "PRINT_TIME", "HABANA_LOGS", "INC_LOG_FILE_SIZE", "INC_LOG_FILE_AMOUNT"}) {
    reader.text(name, false, kLogging);
  }
}

}  // namespace

Environment environment(const GetVariable& get) {
  Environment result;
  Reader reader(get, result.report);
  if (const char* path = reader.text("QUANT_CONFIG", true, "what is measured or quantized, and how")) {
    result.quant_config = path;
  }
  read_processes(reader);
  result.target_device = read_target_device(reader);
  result.runtime_scale_patching =
      reader.flag("RUNTIME_SCALE_PATCHING", false, true,
                  "scales can be changed without a new graph, which they always can here; PCS "
                  "methods are refused");
  constexpr const char* kCguid = "scales are computed by the formulas of CALC_SCALE_WITH_CGUID=0";
  result.calc_scale_with_cguid = reader.flag("CALC_SCALE_WITH_CGUID", true, false, kCguid);
  result.calc_rounding_with_cguid = reader.flag("CALC_ROUNDING_WITH_CGUID", false, false, kCguid);
  if (const char* path =
          reader.text("SCALE_METHOD_CONFIG_DUMP_PATH", true, "the method of every module is written there")) {
    result.scale_method_dump = path;
  }
  read_dump_method(reader, result);
  result.vllm_dynamic_kv_quant =
      reader.text("VLLM_DYNAMIC_KV_QUANT", true, "VLLMKVCache may be quantized dynamically") != nullptr;
  read_logging(reader, result);
  return result;
}

Environment environment() {
  return environment([](const char* name) -> const char* { return std::getenv(name); });
}

std::optional<Rank> Environment::process() const {
  const auto found = io::launched([this](const char* name) -> const char* {
    const auto variable =
        std::find_if(report.begin(), report.end(), [&](const EnvironmentVariable& v) { return v.name == name; });
    return variable == report.end() ? nullptr : variable->value.c_str();
  });
  return found.has_value() ? std::optional(Rank{found->rank, found->size}) : std::nullopt;
}

std::optional<Rank> file_rank(const QuantConfig& config, const Environment& environment) {
  return config.separate_measure_files ? environment.process() : std::nullopt;
}

}  // namespace fp8::configs
