// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/environment.h"

#include "fp8/configs/quant_config.h"

namespace fp8::configs {
namespace {

[[noreturn]] void reject(const io::Variable& row, std::string_view found, const std::string& advice = "") {
  io::fail<io::Error>("environment variable '{}': found {}, allowed: {}{}", row.name, io::in_quotes(found), row.allowed,
                      advice);
}

// Looks variables up, keeps those that are set for the report.
class Reader {
 public:
  Reader(const GetVariable& get, std::vector<EnvironmentVariable>& report) : get_(get), report_(report) {}

  // The value, whatever it is; nullptr if it is unset or empty.
  const char* any(const char* name) {
    const char* value = get_(name);
    if (value == nullptr || *value == '\0') return nullptr;
    const io::Variable& row = io::variable(name);
    report_.push_back({name, io::printable(value, 4096), row.in_effect, row.effect});
    return value;
  }

  // The same, refused where the table does not allow it.
  const char* text(const char* name) {
    const char* value = any(name);
    const io::Variable& row = io::variable(name);
    if (value != nullptr && !row.allows(value)) reject(row, value);
    return value;
  }

  std::optional<int> integer(const char* name) {
    const char* value = text(name);
    return value != nullptr ? io::parse_integer(value, 0, std::numeric_limits<int>::max()) : std::nullopt;
  }

  bool flag(const char* name, bool absent) {
    const char* value = text(name);
    return value != nullptr ? io::lower(value) == "true" || io::lower(value) == "1" : absent;
  }

 private:
  const GetVariable& get_;
  std::vector<EnvironmentVariable>& report_;
};

std::optional<std::string> read_target_device(Reader& reader) {
  const char* value = reader.any("INC_TARGET_DEVICE");
  if (value == nullptr) return std::nullopt;
  const io::Variable& row = io::variable("INC_TARGET_DEVICE");
  std::string word = io::lower(value);
  if (!row.allows(word)) reject(row, value, "; did you mean '" + closest(word, {"cpu", "hpu", "cuda", "xpu"}) + "'?");
  return word;
}

void read_logging(Reader& reader, Environment& result) {
  result.log_level = reader.integer("LOG_LEVEL_INC");
  const auto all = reader.integer("LOG_LEVEL_ALL");
  if (!result.log_level) result.log_level = all;
  for (const char* name : {"ENABLE_CONSOLE", "PRINT_TIME", "HABANA_LOGS", "INC_LOG_FILE_SIZE", "INC_LOG_FILE_AMOUNT"})
    reader.any(name);
}

}  // namespace

Environment environment(const GetVariable& get) {
  Environment result;
  Reader reader(get, result.report);
  if (const char* path = reader.text("QUANT_CONFIG")) result.quant_config = path;
  for (const auto& name : io::launcher_variables()) reader.any(name.c_str());  // process() makes them a rank
  result.target_device = read_target_device(reader);
  result.runtime_scale_patching = reader.flag("RUNTIME_SCALE_PATCHING", false);
  result.calc_scale_with_cguid = reader.flag("CALC_SCALE_WITH_CGUID", true);
  result.calc_rounding_with_cguid = reader.flag("CALC_ROUNDING_WITH_CGUID", false);
  if (const char* path = reader.text("SCALE_METHOD_CONFIG_DUMP_PATH")) result.scale_method_dump = path;
  result.measurement_dump_method = reader.integer("MEASUREMENT_DUMP_METHOD").value_or(1);
  result.vllm_dynamic_kv_quant = reader.text("VLLM_DYNAMIC_KV_QUANT") != nullptr;
  read_logging(reader, result);
  return result;
}

Environment environment() { return environment(io::environment_value); }

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

std::string rank_suffix(const std::optional<Rank>& rank) {
  if (!rank) return "";
  if (rank->index < 0 || rank->index >= rank->world)
    io::fail<std::invalid_argument>("rank is {}, allowed: 0 to world size - 1, which is {}", rank->index,
                                    rank->world - 1);
  return "_" + std::to_string(rank->index) + "_" + std::to_string(rank->world);
}

}  // namespace fp8::configs
