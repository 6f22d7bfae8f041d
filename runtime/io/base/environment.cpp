// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>

#include "fp8/runtime/io/base/closest.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

bool anything(const Variable&, std::string_view) { return true; }

/// One of the words that stand in `allowed`.
bool one_of(const Variable& row, std::string_view value) {
  constexpr std::string_view kBetween = ", ";
  for (std::string_view rest = row.allowed; !rest.empty();) {
    const std::size_t end = std::min(rest.find(kBetween), rest.size());
    if (rest.substr(0, end) == value) return true;
    rest.remove_prefix(std::min(end + kBetween.size(), rest.size()));
  }
  return false;
}

bool one_of_in_any_case(const Variable& row, std::string_view value) { return one_of(row, lower(std::string(value))); }

template <int low, int high>
bool integer_from(const Variable&, std::string_view value) {
  return parse_integer(value, low, high).has_value();
}

bool byte_count(const Variable&, std::string_view value) { return parse_bytes(value).has_value(); }

constexpr const char* kRank = "an integer from 0 to 65535";
constexpr const char* kSize = "an integer from 1 to 65536";
constexpr const char* kProcess =
    "this process among several: names of measurement files, shares of quantize and convert, who evaluates";
constexpr const char* kOps = "a file with one name on a line";
constexpr const char* kBool = "true, 1, false, 0";
constexpr const char* kFormulas = "scales are computed by the formulas of CALC_SCALE_WITH_CGUID=0";
constexpr const char* kNoLog = "no log is written; --quiet and --json decide what is printed";

constexpr Variable kVariables[] = {
    {"FP8_SIMD", "instruction set of the kernels", "scalar, avx2, avx512, avx512bf16, amx", "the best level",
     "runtime/kernels", one_of},
    {"FP8_HPU_DEVICE", "accelerator that the hpu device stands for", "gaudi, gaudi2, gaudi3", "gaudi3",
     "runtime/device", one_of},
    {"FP8_HPU_DEVICES", "number of hpu devices", "an integer from 1 to 16", "1", "runtime/device", integer_from<1, 16>},
    {"FP8_HPU_MEMORY", "memory of each hpu device", "a number of bytes > 0, K, M or G may follow", "the machine's",
     "runtime/device", byte_count},
    {"FP8_HPU_MOVE_HOST_OPERANDS", "1: operands on the CPU beside hpu ones are moved, with one warning", "0, 1", "0",
     "runtime/device", one_of},
    {"PT_HPU_STOCHASTIC_ROUNDING_MODE", "1 rounds stochastically below the smallest E5M2 number too, 0 flushes there",
     "0, 1", "1", "runtime/device", one_of},
    {"PT_TE_FORCE_SR_BWD", "whether gradients are rounded stochastically", "0, 1, false, true", "the recipe's",
     "runtime/device", one_of},
    {"PT_HPU_FP8_MINIMIZE_MEMORY", "1: modules cast their fp8 weight again in backward instead of keeping its codes",
     "0, 1", "0", "transformer_engine/modules", one_of},
    {"FP8_TRACE", "each operation on the device is a line on stderr", "0 is off, all else is on", "off",
     "runtime/profile", anything},
    {"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "the ops that autocast runs in bf16 or f16", kOps, "LOWER_LIST",
     "runtime/autocast", anything},
    {"PT_HPU_AUTOCAST_FP32_OPS_LIST", "the ops that autocast runs in f32", kOps, "FP32_LIST", "runtime/autocast",
     anything},
    {"LOWER_LIST", "as PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST, which wins", kOps, "the built-in list",
     "runtime/autocast", anything},
    {"FP32_LIST", "as PT_HPU_AUTOCAST_FP32_OPS_LIST, which wins", kOps, "the built-in list", "runtime/autocast",
     anything},

    {"QUANT_CONFIG", "what is measured or quantized, and how", "a JSON file", "none", "configs", anything},
    {"INC_TARGET_DEVICE", "the device is the one that --device names", "cpu, hpu, cuda, xpu", "none", "configs",
     one_of_in_any_case, false},
    {"RUNTIME_SCALE_PATCHING",
     "scales can be changed without a new graph, which they always can here; PCS methods are refused", kBool, "false",
     "configs", one_of_in_any_case},
    {"CALC_SCALE_WITH_CGUID", kFormulas, kBool, "true", "configs", one_of_in_any_case, false},
    {"CALC_ROUNDING_WITH_CGUID", kFormulas, kBool, "false", "configs", one_of_in_any_case, false},
    {"SCALE_METHOD_CONFIG_DUMP_PATH", "the method of every module is written there", "a path", "none", "configs",
     anything},
    {"MEASUREMENT_DUMP_METHOD",
     "1: files every calibration_sample_interval samples; 5: at the end only; 2, 3 (other threads): as 1", "1, 2, 3, 5",
     "1", "configs", one_of},
    {"VLLM_DYNAMIC_KV_QUANT", "VLLMKVCache may be quantized dynamically", "anything", "not set", "configs", anything},
    {"LOG_LEVEL_INC", kNoLog, "an integer from 0 to 6", "none", "configs", integer_from<0, 6>, false},
    {"LOG_LEVEL_ALL", kNoLog, "an integer from 0 to 6", "none", "configs", integer_from<0, 6>, false},
    {"ENABLE_CONSOLE", kNoLog, "anything", "none", "configs", anything, false},
    {"PRINT_TIME", kNoLog, "anything", "none", "configs", anything, false},
    {"INC_LOG_FILE_SIZE", kNoLog, "anything", "none", "configs", anything, false},
    {"INC_LOG_FILE_AMOUNT", kNoLog, "anything", "none", "configs", anything, false},
    {"HABANA_LOGS", "where convert_modules() without a config or folder has its measurements; no log is written",
     "a folder", "fp8_measure", "transformer_engine/convert", anything},

    {"LOCAL_RANK", kProcess, kRank, "none", "runtime/io", integer_from<0, 65535>},
    {"RANK", kProcess, kRank, "none", "runtime/io", integer_from<0, 65535>},
    {"WORLD_SIZE", kProcess, kSize, "none", "runtime/io", integer_from<1, 65536>},
    {"LOCAL_WORLD_SIZE", kProcess, kSize, "WORLD_SIZE", "runtime/io", integer_from<1, 65536>},
    {"NODE_RANK", kProcess, kRank, "GROUP_RANK", "runtime/io", integer_from<0, 65535>},
    {"GROUP_RANK", kProcess, kRank, "0", "runtime/io", integer_from<0, 65535>},
    {"OMPI_COMM_WORLD_RANK", kProcess, kRank, "none", "runtime/io", integer_from<0, 65535>},
    {"OMPI_COMM_WORLD_SIZE", kProcess, kSize, "none", "runtime/io", integer_from<1, 65536>},
    {"PMI_RANK", kProcess, kRank, "none", "runtime/io", integer_from<0, 65535>},
    {"PMI_SIZE", kProcess, kSize, "none", "runtime/io", integer_from<1, 65536>},
    {"SLURM_PROCID", kProcess, kRank, "none", "runtime/io", integer_from<0, 65535>},
    {"SLURM_STEP_NUM_TASKS", kProcess, kSize, "none", "runtime/io", integer_from<1, 65536>},
    {"MASTER_ADDR", "where a group of processes meets: the host of rank 0", "a name or an address", "none",
     "runtime/distributed", anything},
    {"MASTER_PORT", "where a group of processes meets: the port", "an integer from 1 to 65535", "none",
     "runtime/distributed", integer_from<1, 65535>},
    {"GLOO_SOCKET_IFNAME", "network of a group of processes", "an interface", "that of the host name", "LibTorch",
     anything},

    {"OMP_NUM_THREADS", "threads of LibTorch", "an integer from 1 on", "all CPUs", "LibTorch", anything},
    {"OMP_WAIT_POLICY", "how LibTorch's threads wait for work", "passive, active", "passive in fp8", "LibTorch",
     anything},
    {"TORCH_SHOW_CPP_STACKTRACES", "1: errors end in a backtrace", "0, 1", "0", "runtime", one_of},
    {"NO_COLOR", "nothing here is coloured", "anything", "not set", "nobody", anything, false},
};

/// nullptr: none.
const Variable* find(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kVariables), std::end(kVariables), [&](const Variable& row) { return name == row.name; });
  return found == std::end(kVariables) ? nullptr : found;
}

}  // namespace

std::span<const Variable> variables() { return kVariables; }

const Variable& variable(std::string_view name) {
  if (const Variable* row = find(name); row != nullptr) return *row;
  throw std::logic_error("[environment] expected a variable of the table, got " + std::string(name));
}

const char* environment_value(const char* name) {
  const char* value = std::getenv(variable(name).name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string problem_of(const Variable& row, std::string_view value) {
  if (row.allows(row, value)) return "";
  return std::string(row.name) + ": found " + in_quotes(value) + ", allowed: " + row.allowed;
}

std::string environment_problem(const char* name) {
  const char* value = environment_value(name);
  return value != nullptr ? problem_of(variable(name), value) : "";
}

std::string intended_variable(std::string_view name) {
  const bool like_ours = name.starts_with("FP8_") || name.starts_with("PT_HPU_") || name.starts_with("PT_TE_");
  if (!like_ours || find(name) != nullptr) return "";
  std::vector<std::string> names;
  for (const Variable& known : kVariables) names.emplace_back(known.name);
  const std::string nearest = closest(name, names);
  // Of the letters after "FP8_" a third may be wrong, three at most: FP8_SIZE and FP8_TYPE are somebody else's.
  const std::size_t most = std::min<std::size_t>((nearest.size() - 4) / 3, 3);
  return edit_distance(name.substr(0, 64), nearest) <= most ? nearest : "";
}

std::vector<std::string> misspelled_variables() {
  std::vector<std::string> problems;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    if (const std::string meant = intended_variable(name); !meant.empty())
      problems.push_back(printable(name) + ": nobody reads it, did you mean " + meant + "?");
  }
  std::sort(problems.begin(), problems.end());
  return problems;
}

std::optional<int> parse_integer(std::string_view text, int low, int high) {
  int value = 0;
  const char* end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, value);
  if (error != std::errc() || end != end_of_text || value < low || value > high) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const char* end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, value);
  const std::string_view letter(end, static_cast<std::size_t>(end_of_text - end));
  const double unit = letter.empty() ? 1 : letter == "K" ? 0x1p10 : letter == "M" ? 0x1p20 : letter == "G" ? 0x1p30 : 0;
  const double bytes = value * unit;
  if (error != std::errc() || !(bytes >= 1 && bytes < 9e18)) return std::nullopt;  // NaN is neither
  return static_cast<std::int64_t>(bytes);
}

}  // namespace fp8::io
