// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/graph/metrics.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime {
namespace {

using Json = nlohmann::ordered_json;

/// Statistics of one metric, at a time.
Json statistics(const std::string& name, const CompiledGraphs& counts, const CompiledGraphs& since) {
  if (name == "graph_compilation")
    return {{"TotalNumber", counts.compiled - since.compiled}, {"TotalTime", 0}, {"AvgTime", 0.0}};
  if (name == "memory_defragmentation") return {{"TotalNumber", 0}, {"TotalTime", 0}, {"AvgTime", 0.0}};
  if (name == "cpu_fallback") return {{"TotalNumber", 0}, {"FallbackOps", Json::object()}};
  TORCH_CHECK(name == "recipe_cache", "metric: found '", name,
              "', allowed: graph_compilation, cpu_fallback, memory_defragmentation, recipe_cache");
  Json hits = Json::object(), misses = Json::object();
  for (const auto& [graph, runs] : counts.runs) {
    const auto before = since.runs.find(graph);
    const std::int64_t earlier = before == since.runs.end() ? 0 : before->second;
    std::array<char, 17> number{};
    std::snprintf(number.data(), number.size(), "%016llx", static_cast<unsigned long long>(graph));
    const std::int64_t missed = earlier == 0 && runs > 0;
    if (missed != 0) misses[number.data()] = missed;
    if (runs - earlier - missed > 0) hits[number.data()] = runs - earlier - missed;
  }
  return {{"TotalHit", counts.reused - since.reused},
          {"RecipeHit", std::move(hits)},
          {"TotalMiss", counts.compiled - since.compiled},
          {"RecipeMiss", std::move(misses)}};
}

std::string now() {
  const auto time = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%F %T", &parts);
  std::snprintf(text.data() + length, text.size() - length, ".%03d", static_cast<int>(milliseconds));
  return text.data();
}

Json record(const std::string& name, const std::string& triggered_by, const CompiledGraphs& counts) {
  return {{"metric_name", name},
          {"triggered_by", triggered_by},
          {"generated_on", now()},
          {"statistics", statistics(name, counts, {})}};
}

std::string as_text(const Json& record) {
  std::string text;
  for (const auto& [key, value] : record.items())
    if (key != "statistics") text += key + ": " + value.get<std::string>() + "\n";
  for (const auto& [key, value] : record["statistics"].items()) text += "  " + key + ": " + value.dump() + "\n";
  return text;
}

/// The file of the environment, whole after each record.
class File {
 public:
  File(const std::string& path, bool text) : path_(path), text_(text), file_(path, std::ios::trunc) {
    if (!text_) file_ << "[\n]\n";
    check();
  }
  void add(const Json& record) {
    if (text_) {
      file_ << as_text(record) << "\n";
    } else {
      file_.seekp(empty_ ? -2 : -3, std::ios::end);  // "[\n]\n" or "}\n]\n": over the list's end
      file_ << (empty_ ? "" : ",\n") << record.dump() << "\n]\n";
    }
    empty_ = false;
    file_.flush();
    check();
  }

 private:
  void check() {
    if (file_ || said_) return;
    said_ = true;
    std::fprintf(stderr, "fp8: warning: PT_HPU_METRICS_FILE: %s: can't be written\n", io::printable(path_).c_str());
  }

  std::string path_;
  bool text_, empty_ = true, said_ = false;
  std::ofstream file_;
};

/// What the process counts, and the file that it writes.
class Process {
 public:
  static Process& get() {
    static Process& process = *new Process;  // not destroyed: threads may outlive main()
    return process;
  }
  CompiledGraphs counts() const { return counter_->counts(); }

  /// Of the environment.
  void write_file(const std::string& path, bool text, const std::string& triggers) {
    const auto has = [&](const char* word) {
      return ("," + triggers + ",").find(std::string(",") + word + ",") != std::string::npos;
    };
    file_.emplace(path, text);
    marks_ = has("mark_step"), changes_ = has("metric_change");
    if (has("process_exit")) std::atexit([] { get().add(kMetrics, "process_exit"); });
  }

 private:
  Process() : counter_(std::make_unique<GraphCounter>([this](bool is_new) { graph_ended(is_new); })) {}

  void graph_ended(bool is_new) {
    if (!file_.has_value()) return;
    constexpr std::array kChanged = {"graph_compilation", "recipe_cache"};
    if (changes_) add(std::span(kChanged).subspan(is_new ? 0 : 1), "metric_change");
    if (marks_) add(kMetrics, "mark_step");
  }
  void add(std::span<const char* const> names, const std::string& trigger) {
    const auto counted = counter_->counts();
    const std::lock_guard lock(mutex_);
    for (const char* name : names) file_->add(record(name, trigger, counted));
  }

  std::mutex mutex_;
  std::optional<File> file_;
  bool marks_ = false, changes_ = false;
  std::unique_ptr<GraphCounter> counter_;
};

/// "metrics.json" of rank 3 of several: "metrics-rank3.json".
std::string of_rank(const std::string& path) {
  const char* rank = io::environment_value("RANK");
  const char* size = io::environment_value("WORLD_SIZE");
  if (rank == nullptr || size == nullptr || std::string_view(size) == "1") return path;
  const std::filesystem::path whole(path);
  const std::string name = whole.stem().string() + "-rank" + rank + whole.extension().string();
  return (whole.parent_path() / name).string();
}

bool write_file_of_environment() {
  const char* path = io::environment_value("PT_HPU_METRICS_FILE");
  if (path == nullptr) return true;
  const char* format = io::environment_value("PT_HPU_METRICS_FILE_FORMAT");
  const char* triggers = io::environment_value("PT_HPU_METRICS_DUMP_TRIGGERS");
  Process::get().write_file(of_rank(path), format != nullptr && io::lower(format) == "text",
                            triggers != nullptr ? triggers : "process_exit");
  return true;
}

[[maybe_unused]] const bool g_written =
    may_register(reinterpret_cast<const void*>(&write_file_of_environment)) && write_file_of_environment();

}  // namespace

CompiledGraphs process_counts() { return Process::get().counts(); }

std::string metric_json(const std::string& name, const CompiledGraphs& counts, const CompiledGraphs& since) {
  return statistics(name, counts, since).dump();
}

void dump_metrics(const std::string& path, const std::string& format, const std::string& triggered_by) {
  TORCH_CHECK(format == "json" || format == "text", "metrics_dump: format: found '", format, "', allowed: json, text");
  const CompiledGraphs counts = process_counts();
  Json all = Json::array();
  std::string text;
  for (const char* name : kMetrics) {
    all.push_back(record(name, triggered_by, counts));
    text += as_text(all.back()) + "\n";
  }
  std::ofstream file(path, std::ios::trunc);
  file << (format == "json" ? all.dump(2) + "\n" : text);
  if (!file.flush()) io::fail(std::filesystem::path(path), "can't be written");
}

}  // namespace fp8::runtime
