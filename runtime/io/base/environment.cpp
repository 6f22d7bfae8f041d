// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <unordered_map>

#include "fp8/runtime/io/base/key_table.h"
#include "fp8/runtime/io/base/text.h"
#include "vendor_variables_json.h"

namespace fp8::io {
namespace {

// The rules for values, by the names that rows of the table use. `allowed` of a row of words lists them: "0, 1".
//
//   kSwitch         boolean   one of the words of `allowed`, as written
//   kBoolean        boolean   the same in any case
//   kChoice         choice    one of the words of `allowed`, as written; kWord: in any case
//   kInteger<a, b>  integer   decimal, a to b
//   kCount          integer   decimal or 0x..., 0 to 2^64 - 1
//   kBytes          bytes     parse_bytes()
//   kCounts         list      integers from 1 on with commas between them
//   kPath, kText    anything  the reader of the file or the text checks it; kSecret: the same, and it is never shown

bool anything(const Variable&, std::string_view) { return true; }

/// Calls `each` with what stands between separators until it returns false; the last answer.
template <class Each>
bool all_parts(std::string_view text, std::string_view separator, Each each) {
  for (;;) {
    const std::size_t end = text.find(separator);
    if (!each(text.substr(0, end))) return false;
    if (end == std::string_view::npos) return true;
    text.remove_prefix(end + separator.size());
  }
}

bool one_of(const Variable& row, std::string_view value) {
  return !all_parts(row.allowed, ", ", [&](std::string_view word) { return word != value; });
}

bool one_of_in_any_case(const Variable& row, std::string_view value) { return one_of(row, lower(std::string(value))); }

template <int low, int high>
bool integer_from(const Variable&, std::string_view value) {
  return parse_integer(value, low, high).has_value();
}

bool count_in_64_bits(const Variable&, std::string_view value) {
  const bool hexadecimal = value.starts_with("0x");
  if (hexadecimal) value.remove_prefix(2);
  std::uint64_t count = 0;
  const char* end_of_value = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), end_of_value, count, hexadecimal ? 16 : 10);
  return error == std::errc() && end == end_of_value;
}

bool byte_count(const Variable&, std::string_view value) { return parse_bytes(value).has_value(); }

bool counts(const Variable&, std::string_view value) {
  return all_parts(value, ",", [](std::string_view part) { return parse_integer(part, 1, INT32_MAX).has_value(); });
}

bool triggers(const Variable&, std::string_view value) {
  return all_parts(value, ",", [](std::string_view part) {
    return part == "process_exit" || part == "mark_step" || part == "metric_change";
  });
}

constexpr Rule kSwitch{"boolean", one_of};
constexpr Rule kBoolean{"boolean", one_of_in_any_case};
constexpr Rule kChoice{"choice", one_of};
constexpr Rule kWord{"choice", one_of_in_any_case};
template <int low, int high>
constexpr Rule kInteger{"integer", integer_from<low, high>};
constexpr Rule kCount{"integer", count_in_64_bits};
constexpr Rule kBytes{"bytes", byte_count};
constexpr Rule kCounts{"list", counts};
constexpr Rule kPath{"path", anything};
template <Reach reach>
constexpr Rule kPathTo{"path", anything, reach};
constexpr Rule kText{"text", anything};
constexpr Rule kSecret{"secret", anything};

// Texts that several rows of both tables share.
constexpr const char* kFromZero = "an integer from 0 on";  ///< `allowed` of kCount
constexpr const char* kAnything = "anything";
constexpr const char* kNoLog = "no log is written; --quiet and --json decide what is printed";

constexpr const char* kRank = "an integer from 0 to 65535";
constexpr const char* kSize = "an integer from 1 to 65536";
constexpr const char* kProcess =
    "this process among several: its part of the work, names of measurement files, who prints";
constexpr const char* kHosts = "hosts, as in n[1-3],m7";
constexpr const char* kOneMachine =
    "MASTER_ADDR is 127.0.0.1 where it is not set and all processes are on this machine";
constexpr const char* kOps = "a file with one name on a line";
constexpr const char* kFormulas = "scales are computed by the formulas of CALC_SCALE_WITH_CGUID=0";
constexpr const char* kTrueOrFalse = "true, 1, false, 0";
constexpr Rule kTraced{"boolean", anything};

constexpr Variable kOwn[] = {
    {"FP8_SIMD", "instruction set of the kernels", "scalar, avx2, avx512, avx512bf16, amx", "the best level",
     "runtime/kernels", kChoice},
    {"FP8_SANDBOX",
     "0: the program keeps what no command needs: other programs, the network, files that were not named", "0, 1", "1",
     "tools", kSwitch},
    {"FP8_HPU_DEVICE", "accelerator that the hpu device stands for", "gaudi, gaudi2, gaudi3", "gaudi3",
     "runtime/device", kChoice},
    {"FP8_HPU_DEVICES", "number of hpu devices", "an integer from 1 to 16", "1", "runtime/device", kInteger<1, 16>},
    {"FP8_HPU_MEMORY", "memory of each hpu device", "a number of bytes > 0, K, M or G may follow", "the machine's",
     "runtime/device", kBytes},
    {"FP8_HPU_MOVE_HOST_OPERANDS", "1: operands on the CPU beside hpu ones are moved, with one warning", "0, 1", "0",
     "runtime/device", kSwitch},
    {"PT_HPU_STOCHASTIC_ROUNDING_MODE", "1 rounds stochastically below the smallest E5M2 number too, 0 flushes there",
     "0, 1", "1", "runtime/device", kSwitch},
    {"PT_TE_FORCE_SR_BWD", "whether gradients are rounded stochastically", "0, 1, false, true", "the recipe's",
     "runtime/device", kSwitch},
    {"PT_HPU_FP8_MINIMIZE_MEMORY", "1: modules cast their fp8 weight again in backward instead of keeping its codes",
     "0, 1", "0", "transformer_engine/modules", kSwitch},
    {"FP8_TRACE", "a switch: each operation on the device is a line on stderr, no file is written",
     "0 is off, all else is on", "off", "runtime/leaf", kTraced},
    {"PT_HPU_LAZY_MODE",
     "1: in Python and C++ the thread that loads the library is in lazy mode; of commands, fp8 train --lazy is",
     "0, 1, 2, 0x0, 0x1, 0x2", "0", "runtime/lazy", kWord},
    {"PT_HPU_MAX_COMPOUND_OP_SIZE", "operations that wait in lazy mode, at most", kFromZero, "65536", "runtime/lazy",
     kCount},
    {"PT_HPU_METRICS_FILE", "counts of graphs are written there (metric_global)", "a path", "none", "runtime/graph",
     kPathTo<Reach::file>},
    {"PT_HPU_METRICS_FILE_FORMAT", "of PT_HPU_METRICS_FILE", "json, text", "json", "runtime/graph", kWord},
    {"PT_HPU_METRICS_DUMP_TRIGGERS",
     "when PT_HPU_METRICS_FILE gets counts",
     "process_exit, mark_step, metric_change, commas between",
     "process_exit",
     "runtime/graph",
     {"list", triggers}},
    {"FP8_EXTENSIONS",
     "libraries of operators, loaded as --load by the commands that take that; the others do not look",
     "files, colons between", "none", "runtime/custom", kPathTo<Reach::code>},
    {"FP8_LIBTORCH", "the LibTorch that fp8 loads (lib/libtorch_cpu.so in it), and not the one it was installed with",
     "a folder", "the installed one", "tools/commands", kPathTo<Reach::read>},
    {"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "the ops that autocast runs in bf16 or f16", kOps, "LOWER_LIST",
     "runtime/autocast", kPathTo<Reach::read>},
    {"PT_HPU_AUTOCAST_FP32_OPS_LIST", "the ops that autocast runs in f32", kOps, "FP32_LIST", "runtime/autocast",
     kPathTo<Reach::read>},
    {"LOWER_LIST", "as PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST, which wins", kOps, "the built-in list",
     "runtime/autocast", kPathTo<Reach::read>},
    {"FP32_LIST", "as PT_HPU_AUTOCAST_FP32_OPS_LIST, which wins", kOps, "the built-in list", "runtime/autocast",
     kPathTo<Reach::read>},

    {"QUANT_CONFIG", "what is measured or quantized, and how", "a JSON file", "none", "configs",
     kPathTo<Reach::config>},
    {"INC_TARGET_DEVICE", "the device is the one that --device names", "cpu, hpu, cuda, xpu", "none", "configs", kWord,
     false},
    {"RUNTIME_SCALE_PATCHING",
     "scales can be changed without a new graph, which they always can here; PCS methods are refused", kTrueOrFalse,
     "false", "configs", kBoolean},
    {"CALC_SCALE_WITH_CGUID", kFormulas, kTrueOrFalse, "true", "configs", kBoolean, false},
    {"CALC_ROUNDING_WITH_CGUID", kFormulas, kTrueOrFalse, "false", "configs", kBoolean, false},
    {"SCALE_METHOD_CONFIG_DUMP_PATH", "the method of every module is written there", "a path", "none", "configs",
     kPathTo<Reach::file>},
    {"MEASUREMENT_DUMP_METHOD",
     "1: files every calibration_sample_interval samples; 5: at the end only; 2, 3 (other threads): as 1", "1, 2, 3, 5",
     "1", "configs", kChoice},
    {"VLLM_DYNAMIC_KV_QUANT", "VLLMKVCache may be quantized dynamically", kAnything, "not set", "configs", kText},
    {"LOG_LEVEL_INC", kNoLog, "an integer from 0 to 6", "none", "configs", kInteger<0, 6>, false},
    {"LOG_LEVEL_ALL", kNoLog, "an integer from 0 to 6", "none", "configs", kInteger<0, 6>, false},
    {"ENABLE_CONSOLE", kNoLog, kAnything, "none", "configs", kText, false},
    {"PRINT_TIME", kNoLog, kAnything, "none", "configs", kText, false},
    {"INC_LOG_FILE_SIZE", kNoLog, kAnything, "none", "configs", kText, false},
    {"INC_LOG_FILE_AMOUNT", kNoLog, kAnything, "none", "configs", kText, false},
    {"HABANA_LOGS", "where convert_modules() without a config or folder has its measurements; no log is written",
     "a folder", "fp8_measure", "quant/model", kPath},

    {"LOCAL_RANK", kProcess, kRank, "none", "runtime/io", kInteger<0, 65535>},
    {"RANK", kProcess, kRank, "none", "runtime/io", kInteger<0, 65535>},
    {"WORLD_SIZE", kProcess, kSize, "none", "runtime/io", kInteger<1, 65536>},
    {"LOCAL_WORLD_SIZE", kProcess, kSize, "WORLD_SIZE", "runtime/io", kInteger<1, 65536>},
    {"NODE_RANK", kProcess, kRank, "GROUP_RANK", "runtime/io", kInteger<0, 65535>},
    {"GROUP_RANK", kProcess, kRank, "0", "runtime/io", kInteger<0, 65535>},
    {"OMPI_COMM_WORLD_RANK", kProcess, kRank, "none", "runtime/io", kInteger<0, 65535>},
    {"OMPI_COMM_WORLD_SIZE", kProcess, kSize, "none", "runtime/io", kInteger<1, 65536>},
    {"PMI_RANK", kProcess, kRank, "none", "runtime/io", kInteger<0, 65535>},
    {"PMI_SIZE", kProcess, kSize, "none", "runtime/io", kInteger<1, 65536>},
    {"SLURM_PROCID", kProcess, kRank, "none", "runtime/io", kInteger<0, 65535>},
    {"SLURM_STEP_NUM_TASKS", kProcess, kSize, "none", "runtime/io", kInteger<1, 65536>},
    {"TORCHELASTIC_RUN_ID", "torchrun started this process: another launcher may have started torchrun", kAnything,
     "none", "runtime/io", kText},
    {"MASTER_ADDR", "where a group of processes meets: the host of rank 0", "a name or an address", "the launcher's",
     "runtime/distributed", kText},
    {"MASTER_PORT", "where a group of processes meets: the port", "an integer from 1 to 65535", "the launcher's",
     "runtime/distributed", kInteger<1, 65535>},
    {"FP8_JOB_SECRET", "seals what the ranks of a group write where they meet; it is never shown",
     "16 characters or more, the same for all ranks", "none", "runtime/distributed", kSecret},
    {"TORCHELASTIC_USE_AGENT_STORE", "a group of processes meets where torchrun waits, and no rank serves",
     kTrueOrFalse, "False", "runtime/distributed", kBoolean},
    {"TORCHELASTIC_RESTART_COUNT", "restarts by torchrun so far: what dead processes left there is not read", kFromZero,
     "0", "runtime/distributed", kCount},
    {"SLURM_STEP_NODELIST", "MASTER_ADDR is its first, where that is not set", kHosts, "SLURM_JOB_NODELIST",
     "runtime/distributed", kText},
    {"SLURM_JOB_NODELIST", "MASTER_ADDR is its first, where that is not set", kHosts, "none", "runtime/distributed",
     kText},
    {"SLURM_JOB_ID", "MASTER_PORT is 15000 and its last four digits, where that is not set", kAnything, "none",
     "runtime/distributed", kText},
    {"PMIX_NAMESPACE", "MASTER_PORT is made of it, where that is not set", kAnything, "none", "runtime/distributed",
     kText},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", kOneMachine, kSize, "none", "runtime/distributed", kInteger<1, 65536>},
    {"MPI_LOCALNRANKS", kOneMachine, kSize, "none", "runtime/distributed", kInteger<1, 65536>},
    {"GLOO_SOCKET_IFNAME", "network of a group of processes", "an interface", "that of the host name", "LibTorch",
     kText},

    {"OMP_NUM_THREADS", "threads of LibTorch", "integers from 1 on, commas between", "all CPUs", "LibTorch", kCounts},
    {"OMP_WAIT_POLICY", "how LibTorch's threads wait for work", "passive, active", "passive in fp8", "LibTorch", kWord},
    {"TORCH_CPP_LOG_LEVEL", "the least of what LibTorch says of its own accord", "INFO, WARNING, ERROR, FATAL",
     "ERROR in fp8", "LibTorch", kChoice},
    {"KINETO_LOG_LEVEL", "the least of what LibTorch's profiler says", kFromZero, "6 in fp8", "LibTorch", kCount},
    {"TORCH_SHOW_CPP_STACKTRACES", "1: errors end in a backtrace", "0, 1", "0", "runtime", kSwitch},
    {"COLUMNS", "how wide tables are, 0: as wide as they are", kFromZero, "the terminal's", "tools", kCount},
    {"NO_COLOR", "messages and bars have no colours; --color wins", kAnything, "not set", "tools", kText},
    {"CLICOLOR_FORCE", "1: colours without a terminal too, unless NO_COLOR is set", kAnything, "0", "tools", kText},
    {"FORCE_COLOR", "as CLICOLOR_FORCE", kAnything, "0", "tools", kText},
    {"CLICOLOR", "0: as NO_COLOR, but CLICOLOR_FORCE wins", kAnything, "1", "tools", kText},

    {"FP8_AUTOLOAD", "0: Python's import torch leaves the hpu device alone", "0, 1", "1", "tools", kSwitch},
    {"FP8_BUILD", "the build folder of ./tools/test, ./tools/demo and ./tools/release", "a folder", "build", "tools",
     kPath},
    {"FP8_ZSTD", "how hard ./tools/release packs: 1 is quick, 19 is small", kFromZero, "19", "tools", kCount},
    {"FP8_BUILD_DIR", "the build folder of ./tools/bench", "a folder", "build", "tools", kPath},
    {"FP8_BENCH", "the program that the scripts of ./tools/bench run", "a path", "./tools/bench sets it", "tools",
     kPath},
    {"FP8_COUNTS_REFRESH", "1: ctest -R instructions writes its baseline anew", "0, 1", "0", "tests", kSwitch},
    {"FP8_KILLS", "how often the tests of killed programs kill", kFromZero, "each test's own", "tests", kCount},
};

/// DELETE and NFS: true or false.
bool is_recipe_cache(const Variable& row, std::string_view value) {
  int part = 0;
  return all_parts(value, ",", [&](std::string_view text) {
    const int i = part++;
    if (i == 2) return count_in_64_bits(row, text);
    return i == 0 || (i <= 3 && (lower(std::string(text)) == "true" || lower(std::string(text)) == "false"));
  });
}

Variable vendor_variable(const KeyRow& row) {
  const auto with = [&](const char* allowed, Rule rule) {
    return Variable{row.path, row.note, allowed, row.standard, "nobody", rule, false};
  };
  switch (row.allowed.type) {
    case KeyKind::boolean: return with("true, 1, yes, on, false, 0, no, off", kBoolean);
    case KeyKind::integer:
      return row.allowed.high == 100 ? with("an integer from 0 to 100", kInteger<0, 100>) : with(kFromZero, kCount);
    case KeyKind::words: return with(row.allowed.words, kWord);
    case KeyKind::text: return with("a path", kPath);
    case KeyKind::texts: return with(row.allowed.words, {"list", is_recipe_cache});
    default: return with(kAnything, kText);
  }
}

// Never destroyed, as whatever may be asked for by threads that outlive main().

/// Our rows, with room for the vendor's behind them: rows stay where they are.
std::vector<Variable>& own() {
  constexpr std::size_t kMostRows = 1024;
  static auto& rows = *[] {
    auto* rows = new std::vector<Variable>;
    rows->reserve(kMostRows);
    rows->assign(std::begin(kOwn), std::end(kOwn));
    return rows;
  }();
  return rows;
}

/// Both tables.
const std::vector<Variable>& all() {
  static const auto& rows = []() -> auto& {
    static const auto& tables = *new KeyTables(kVendorVariablesJson);
    auto& rows = own();
    ensure(rows.size() + tables["variables"].size() <= rows.capacity(), "room for the vendor's variables");
    for (const KeyRow& row : tables["variables"]) rows.push_back(vendor_variable(row));
    return rows;
  }();
  return rows;
}

/// nullptr: none. Some readers ask at each call of theirs. The vendor's table is read for a name that is not ours.
const Variable* find(std::string_view name) {
  using ByName = std::unordered_map<std::string_view, const Variable*>;
  const auto by_name = [](std::span<const Variable> rows) {
    auto* names = new ByName;
    for (const Variable& row : rows) names->emplace(row.name, &row);
    return names;
  };
  static const ByName& ours = *by_name({own().data(), std::size(kOwn)});
  if (const auto found = ours.find(name); found != ours.end()) return found->second;
  static const ByName& theirs = *by_name(vendor_variables());
  const auto found = theirs.find(name);
  return found != theirs.end() ? found->second : nullptr;
}

/// "NAME=VALUE" of the process' variables for which wanted(name, value) is true, sorted.
template <class Wanted>
std::vector<std::string> entries_where(const Wanted& wanted) {
  std::vector<std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    if (wanted(name, text.substr(std::min(name.size() + 1, text.size())))) found.emplace_back(text);
  }
  std::ranges::sort(found);
  return found;
}

/// How the names of our own variables begin.
constexpr std::array<std::string_view, 4> kOurs = {"FP8_", "PT_HPU_", "PT_TE_", "HABANA_"};
constexpr std::string_view kTests = "FP8_TEST_";
/// Of names that launchers set themselves: PMIX_RANK is no slip of the hand for PMI_RANK.
constexpr std::array<std::string_view, 6> kLaunchers = {"SLURM_", "PMI_", "PMIX_", "OMPI_", "MPI_", "TORCHELASTIC_"};

bool begins_with_one_of(std::string_view name, std::span<const std::string_view> starts) {
  return std::ranges::any_of(starts, [&](std::string_view start) { return name.starts_with(start); });
}

/// The variable of another beginning that is read here and one letter from `name`, two of a long name; "": none. Short
/// names are near too many others.
std::string_view near_variable(std::string_view name) {
  constexpr std::size_t kLeast = 9, kLong = 12;
  if (name.size() + 2 < kLeast || begins_with_one_of(name, kLaunchers)) return "";
  for (const Variable& row : kOwn) {
    const std::string_view known = row.name;
    const std::size_t most = known.size() < kLong ? 1 : 2;
    if (!row.in_effect || known.size() < kLeast || begins_with_one_of(known, kOurs)) continue;
    if (name.size() > known.size() + most || known.size() > name.size() + most || name == known) continue;
    if (edit_distance(name, known) <= most && find(name) == nullptr) return known;
  }
  return "";
}

}  // namespace

std::span<const Variable> variables() { return all(); }
std::span<const Variable> vendor_variables() { return variables().subspan(std::size(kOwn)); }

bool is_member(const Variable& row, std::string_view name) {
  const std::string_view start = std::string_view(row.name).substr(0, std::string_view(row.name).size() - 1);
  return is_family(row) && name.size() > start.size() && name.starts_with(start);
}

std::string members_of_process(const Variable& row) {
  return joined(entries_where(
      [&](std::string_view name, std::string_view value) { return is_member(row, name) && !value.empty(); }));
}

const Variable& variable(std::string_view name) {
  if (const Variable* row = find(name); row != nullptr) return *row;
  fail<std::logic_error>("[environment] expected a variable of the table, got {}", name);
}

bool is_secret(const Variable& row) { return std::string_view(row.rule.type) == kSecret.type; }

const char* environment_value(const char* name) {
  const char* value = std::getenv(variable(name).name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string problem_of(const Variable& row, std::string_view value) {
  if (row.allows(value)) return "";
  return message("{}: found {}, allowed: {}", row.name, in_quotes(value), row.allowed);
}

std::string environment_problem(const char* name) {
  const char* value = environment_value(name);
  return value != nullptr ? problem_of(variable(name), value) : "";
}

bool is_unknown_variable(std::string_view name) {
  if (!begins_with_one_of(name, kOurs)) return !near_variable(name).empty();
  const auto in_family = [&](const Variable& row) { return is_member(row, name); };
  return !name.starts_with(kTests) && find(name) == nullptr && std::ranges::none_of(vendor_variables(), in_family);
}

std::string intended_variable(std::string_view name) {
  if (!is_unknown_variable(name)) return "";
  if (!begins_with_one_of(name, kOurs)) return std::string(near_variable(name));
  std::vector<std::string> names;
  for (const Variable& known : all()) names.emplace_back(known.name);
  const std::string nearest = closest(name, names);
  // Of the letters after "FP8_" a third may be wrong, three at most: FP8_SIZE and FP8_TYPE mean something else.
  const std::size_t most = std::min<std::size_t>((nearest.size() - 4) / 3, 3);
  return edit_distance(name.substr(0, 64), nearest) <= most ? nearest : "";
}

std::vector<std::string> unknown_variables(bool misspelt) {
  std::vector<std::string> problems;
  for (const std::string& entry :
       entries_where([](std::string_view name, std::string_view) { return is_unknown_variable(name); })) {
    const std::string name = entry.substr(0, entry.find('=')), meant = intended_variable(name);
    if (misspelt && meant.empty()) continue;
    problems.push_back(printable(name) + ": nobody reads it" + (meant.empty() ? "" : ", did you mean " + meant + "?"));
  }
  std::ranges::sort(problems);
  return problems;
}

std::vector<std::string> environment_entries(std::string_view start) {
  return entries_where([&](std::string_view name, std::string_view) { return name.starts_with(start); });
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
