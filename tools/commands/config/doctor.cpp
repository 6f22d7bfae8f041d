// SPDX-License-Identifier: Apache-2.0
// fp8 doctor: what the kernels run with, which LibTorch, which flags are in force and why (--all: every one), and which
// dtypes the device takes (--device). What is wrong is listed under "problems" and makes the exit code 1.

#include <fstream>
#include <thread>

#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/kernels/device_kind.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/config/config.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

using kernels::DeviceKind;
using kernels::Dtype;
using kernels::DtypeUse;

/// Returns the device kind of FP8_HPU_DEVICE; none if its value is invalid, which is among doctor's problems.
std::optional<DeviceKind> kind_in_use() {
  if (!io::environment_problem("FP8_HPU_DEVICE").empty()) return std::nullopt;
  return kernels::kind_from_environment();
}
io::Json devices_in_use() {
  if (!io::environment_problem("FP8_HPU_DEVICES").empty()) return nullptr;
  const char* text = io::environment_value("FP8_HPU_DEVICES");
  return text == nullptr ? io::Json(1) : io::Json(io::parse_integer(text, 1, 16).value());
}

std::vector<std::string> uses_of(DeviceKind kind, Dtype dtype) {
  std::vector<std::string> names;
  for (const auto& use : enum_names<DtypeUse>)
    if (kernels::takes(kind, dtype, use.value)) names.emplace_back(use.name);
  return names;
}

/// fp8 doctor --device: the emulated accelerator, and the table of dtypes (runtime/kernels/device_kind.h), a row for
/// each dtype and a column for each generation.
/// {"name": "GAUDI3", "devices": 1, "lazy": false, "fp8": true, "fp16": true,
///  "dtypes": {"float16": {"GAUDI": [], "GAUDI2": ["tensors", "mm", "conv", "autocast"], ..., "emulation_only":
///  false}}}; name, devices, fp8 and fp16 are null where their variable can't be meant.
Report device_report() {
  const auto in_use = kind_in_use();
  const auto has = [&](Dtype dtype) {
    return in_use ? io::Json(kernels::takes(*in_use, dtype, DtypeUse::tensors)) : io::Json(nullptr);
  };
  std::vector<std::string> headers = {"dtype"};
  for (const auto& kind : enum_names<DeviceKind>)
    headers.push_back(kind.name + std::string(in_use == kind.value ? " (in use)" : ""));
  headers.emplace_back("on the vendor's list");
  Report report(std::move(headers));
  report.json = {{"name", in_use ? io::Json(name_of(*in_use)) : io::Json(nullptr)},
                 {"devices", devices_in_use()},
                 {"lazy", false},
                 {"fp8", has(Dtype::float8_e4m3fn)},
                 {"fp16", has(Dtype::float16)},
                 {"dtypes", io::Json::object()}};
  for (const auto& dtype : enum_names<Dtype>) {
    std::vector<std::string> cells = {dtype.name};
    io::Json row = {{"emulation_only", dtype.emulation_only}};
    for (const auto& kind : enum_names<DeviceKind>) {
      const auto uses = uses_of(kind.value, dtype.value);
      row[kind.name] = uses;
      cells.push_back(uses.empty() ? "no" : io::joined(uses));
    }
    cells.emplace_back(dtype.emulation_only ? "no, emulation only" : "yes");
    report.row(std::move(cells));
    report.json["dtypes"][dtype.name] = std::move(row);
  }
  return report;
}

/// The instruction sets that a kernel of ours or of LibTorch's asks for.
constexpr std::array kCpuFlags = {"avx2",        "fma",      "f16c",        "avx512f",     "avx512bw",
                                  "avx512dq",    "avx512vl", "avx512_vnni", "avx512_vbmi", "avx512_bf16",
                                  "avx512_fp16", "amx_tile", "amx_bf16",    "amx_int8"};

struct Cpu {
  std::string model = "unknown";
  std::vector<std::string> flags;
};

/// The first processor of /proc/cpuinfo.
Cpu read_cpu() {
  Cpu cpu;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.rfind("model name", 0) == 0) cpu.model = line.substr(colon + 2);
    if (line.rfind("flags", 0) != 0) continue;
    const auto all = " " + line.substr(colon + 2) + " ";
    for (const std::string flag : kCpuFlags)
      if (all.find(" " + flag + " ") != std::string::npos) cpu.flags.push_back(flag);
  }
  return cpu;
}

struct Diagnosis : Report {
  Diagnosis() : Report({"what", "value", "from"}) {}
  std::vector<std::string> problems;

  void add(const std::string& key, const std::string& what, const io::Json& value, const std::string& from) {
    json[key] = value;
    row({what, value.is_string() ? value.get<std::string>() : value.dump(), from});
  }
  void add_problems(const std::vector<std::string>& found) {
    for (const auto& problem : found) problems.push_back(one_line(problem));
  }
};

const char* from_option(const Context& context) { return context.threads ? "--threads" : "default"; }

/// Returns the result of `ask`, or "error" if it throws (environment_problems() says why).
std::string guarded(const std::function<std::string()>& ask) {
  try {
    return ask();
  } catch (const std::exception&) {
    return "error";
  }
}

/// Adds the environment variables: all of them to the JSON, to the table those that are set (all with --all).
void add_flags(Diagnosis& report, bool all) {
  io::Json variables = io::Json::object();
  for (const io::Flag& flag : io::RuntimeFlags::from_env().all()) {
    const io::Variable& row = *flag.row;
    const bool set = flag.source != io::FlagSource::default_value;
    variables[row.name] = {{"value", set ? io::Json(flag.value) : io::Json(nullptr)},
                           {"source", name_of(flag.source)},
                           {"by", flag.by},
                           {"type", row.rule.type},
                           {"default", row.fallback},
                           {"allowed", row.allowed},
                           {"effect", row.effect},
                           {"in_effect", row.in_effect},
                           {"read_by", row.reader}};
    const std::string nothing = set && !row.in_effect ? std::string("; no effect: ") + row.effect : "";
    if (set || all) report.row({row.name, one_line(flag.value), one_line(flag.source_text() + nothing)});
  }
  report.json["environment"] = std::move(variables);
}

/// Adds LibTorch's facts, or that it is missing: files are read, checked and converted without it.
void add_torch(Diagnosis& report, const Context& context) {
  try {
    load_program();
  } catch (const std::runtime_error& error) {  // of the static program a UsageError
    report.json["libtorch"] = nullptr;
    report.json["libtorch_missing"] = error.what();
    if (io::environment_value("FP8_LIBTORCH") != nullptr) report.problems.emplace_back(error.what());
    report.row({"LibTorch", "not found", "measure, evaluate, generate, train and run need it"});
    return;
  }
  const TorchFacts facts = torch_facts(context);
  report.add("libtorch", "LibTorch", facts.version, "build");
  const bool by_openmp = !context.threads && io::environment_value("OMP_NUM_THREADS") != nullptr;
  report.add("libtorch_threads", "threads, LibTorch", facts.threads,
             by_openmp ? "OMP_NUM_THREADS" : from_option(context));
  report.add("hpu", "hpu device", facts.hpu, "build");
  const runtime::autocast::AutocastLists& lists = facts.lists;
  const auto count = [](const std::vector<std::string>& names) { return std::to_string(names.size()) + " ops"; };
  report.row({"autocast in bf16/f16", count(lists.lower), one_line(lists.lower_from)});
  report.row({"autocast in f32", count(lists.fp32), one_line(lists.fp32_from)});
  report.json["autocast"] = {{"lower", lists.lower},
                             {"lower_from", lists.lower_from},
                             {"fp32", lists.fp32},
                             {"fp32_from", lists.fp32_from},
                             {"promote", lists.promote}};
  report.json["extensions"] = io::Json::array();
  for (const auto& [file, ops, parts] : facts.extensions) {
    report.json["extensions"].push_back({{"file", file}, {"ops", ops}, {"parts", parts}});
    auto names = ops;
    names.insert(names.end(), parts.begin(), parts.end());
    report.row({"extension", one_line(names.empty() ? "nothing" : io::joined(names)), one_line(file)});
  }
  report.add_problems(facts.problems);
}

/// Checks the launcher's variables against each other, unless one is wrong by itself: that is reported already.
void check_launcher(Diagnosis& report) {
  for (const auto& name : io::launcher_variables())
    if (!io::environment_problem(name.c_str()).empty()) return;
  try {
    io::launched();
  } catch (const io::Error& error) {
    report.problems.emplace_back(error.what());
  }
}

/// `fp8 config check` says more of it. Its measurements stand where it says, whatever HABANA_LOGS is.
void check_config(Diagnosis& report) {
  const char* path = io::environment_value("QUANT_CONFIG");
  if (path == nullptr) return;
  try {
    const io::Json config = io::read_json(path);
    const auto prefix = config.is_object() ? config.find("dump_stats_path") : config.end();
    if (prefix != config.end() && prefix->is_string())
      io::override_flag("HABANA_LOGS", io::FlagSetting{prefix->get<std::string>(), io::FlagSource::config_file, path});
  } catch (const io::Error& error) {
    report.problems.push_back(std::string("QUANT_CONFIG: ") + error.what());
  }
}

void check_variables(Diagnosis& report) {
  report.add_problems(environment_problems());
  for (const io::Variable& row : io::variables()) {
    const std::string_view reader = row.reader;
    if (reader == "runtime/kernels" || reader == "runtime/device") continue;  // environment_problems() had them
    if (const std::string problem = io::environment_problem(row.name); !problem.empty())
      report.problems.push_back(problem);
  }
  check_launcher(report);
  check_config(report);
  report.add_problems(io::unknown_variables());
}

/// The one line that most people want.
std::string verdict_of(const Diagnosis& report) {
  if (!report.problems.empty()) return "not ready: what was set is not what runs, see the problems above";
  if (report.json["libtorch"].is_null())
    return "ready to quantize, convert and inspect; measure, evaluate, generate, train and run need LibTorch";
  const std::string level = report.json["simd_level"];
  return io::message("ready: every command runs here, the kernels with {}{}", level,
                     level == kernels::name_of(kernels::SimdLevel::scalar) ? " (slow)" : "");
}

void doctor(Context& context, bool all, bool device) {
  if (context.device != "hpu")
    io::fail<UsageError>("doctor: --device: found '{}', allowed: hpu, or nothing", context.device);
  Diagnosis report;
  report.add("version", "fp8", FP8_VERSION, "build");
  report.add("compiler", "compiler", __VERSION__, "build");
  const auto level = guarded([] { return std::string(kernels::name_of(kernels::simd_level())); });
  report.add("simd_level", "SIMD level in use", level,
             io::environment_value("FP8_SIMD") != nullptr ? "FP8_SIMD" : "CPU");
  report.add("simd_best", "SIMD level, best here", kernels::name_of(kernels::best_simd_level()), "CPU");
  report.add("threads", "threads, kernels", kernels::num_threads(), from_option(context));
  report.add("cpus", "CPUs online", std::thread::hardware_concurrency(), "system");
  const auto cpu = read_cpu();
  report.add("sandbox", "sandbox", context.sandbox, "kernel");
  report.add("cpu", "CPU", cpu.model, "/proc/cpuinfo");
  report.row({"CPU flags", io::joined(cpu.flags, " "), "/proc/cpuinfo"});
  report.json["cpu_flags"] = cpu.flags;
  add_torch(report, context);
  check_variables(report);
  add_flags(report, all);
  report.json["problems"] = report.problems;
  auto& below = report.below;
  if (report.json["libtorch"].is_null()) below += report.json["libtorch_missing"].get<std::string>() + "\n";
  if (device) {
    Report table = device_report();
    report.json["device"] = std::move(table.json);
    below += "\n" + table.text();
  }
  for (const auto& problem : report.problems) below += "problem: " + problem + "\n";
  const std::string verdict = verdict_of(report);
  report.json["verdict"] = verdict;
  below += "\n" + verdict + "\n";
  report.print(context);
  if (!report.problems.empty())
    io::fail<io::Error>("doctor found {} problem(s), the first: {}", report.problems.size(), report.problems[0]);
}

}  // namespace

decltype(torch_facts) torch_facts;

Action add_doctor(Options& options) {
  const auto all = std::make_shared<bool>(false);
  options.flag("--all", *all, "Every flag, not only those that are set");
  // --device is every command's, and added after this.
  return [all, &app = options.app()](Context& context) {
    doctor(context, *all || context.verbose, app.count("--device") > 0);
  };
}

}  // namespace fp8::commands
