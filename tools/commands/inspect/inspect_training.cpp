// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/inspect_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <system_error>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/json/numbers.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/table.h"
#include "fp8/tools/commands/inspect/loss_plot.h"
#include "fp8/tools/commands/train/train_log_file.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLast = 20;

fs::path log_of(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path / kTrainLogFile : path;
}

std::string name_of_run(const fs::path& path) {
  auto text = path.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

/// The precision and recipe that train.json beside the log names, if it is there.
io::Json settings_beside(const fs::path& log) {
  std::error_code ignored;
  const auto file = log.parent_path() / kTrainSettingsFile;
  return fs::exists(file, ignored) ? io::read_json(file) : io::Json::object();
}

double number(const io::Json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_number() ? found->get<double>() : std::nan("");
}

io::Json summary(const fs::path& path) {
  const auto log = log_of(path);
  const auto entries = read_log(log);
  if (entries.empty()) throw io::Error(log.string() + ": holds no step yet");
  const auto settings = settings_beside(log);
  double seconds = 0, tokens = 0, last = 0, evaluation = std::nan("");
  std::int64_t skipped = 0, counted = 0, stale = 0;
  for (const auto& e : entries) {
    seconds += number(e, "seconds");
    tokens += number(e, "tokens");
    if (e.contains("eval_loss")) evaluation = number(e, "eval_loss");
    skipped += e.contains("skipped") ? 1 : 0;
    stale += e.contains("fp8") && e["fp8"].contains("stale") ? 1 : 0;
  }
  for (auto it = entries.rbegin(); it != entries.rend() && counted < static_cast<std::int64_t>(kLast); ++it) {
    if (!std::isfinite(number(*it, "loss")) || it->contains("skipped")) continue;  // as the trainer counts
    last += number(*it, "loss");
    ++counted;
  }
  io::Json run = {
      {"path", name_of_run(path)},
      {"precision", settings.value("precision", io::Json(nullptr))},
      {"recipe", settings.value("recipe", io::Json(nullptr))},
      {"steps", entries.back()["step"]},
      {"first_loss", io::number_or_null(number(entries.front(), "loss"))},
      {"loss_last20", counted > 0 ? io::number_or_null(last / static_cast<double>(counted)) : io::Json(nullptr)},
      {"eval_loss", io::number_or_null(evaluation)},
      {"tokens", io::number_or_null(tokens)},
      {"seconds", io::number_or_null(seconds)},
      {"tokens_per_second", io::number_or_null(seconds > 0 ? tokens / seconds : 0)},
      {"skipped_steps", skipped},
      {"steps_with_stale_scales", stale}};
  return run;
}

std::string text_of(const io::Json& value, int digits) {
  return value.is_number() ? fmt::format("{:.{}f}", value.get<double>(), digits) : "-";
}

std::string label_of(const io::Json& run) {
  auto label = run["path"].get<std::string>();
  if (run["precision"].is_string())
    label += " (" + run["precision"].get<std::string>() +
             (run["recipe"].is_string() ? ", " + run["recipe"].get<std::string>() : "") + ")";
  return label;
}

LossCurve curve_of(const fs::path& path, const io::Json& run) {
  LossCurve curve{label_of(run)};
  for (const auto& e : read_log(log_of(path))) {
    const auto step = e["step"].get<std::int64_t>();
    curve.steps.emplace_back(step, number(e, "loss"));
    if (e.contains("eval_loss")) curve.evaluations.emplace_back(step, number(e, "eval_loss"));
  }
  return curve;
}

/// xml_text() of each line: line breaks stay.
std::string lines(const std::string& text) {
  std::string out;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    out += xml_text(text.substr(begin, end - begin)) + "\n";
  }
  return out;
}

std::string page(const std::string& svg, const Inspection& inspection) {
  return "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">"
         "<title>fp8 training</title>\n<style>:root { color-scheme: light dark; } body { font: 14px/1.45 system-ui, "
         "sans-serif; margin: 0 auto; max-width: 960px; padding: 1.5rem; }"
         " svg { width: 100%; height: auto; } pre { overflow: auto; }</style></head>\n<body>\n<h1>Training "
         "loss</h1>\n" +
         svg + "<p>Faint: every step; strong: smoothed; dots: evaluations.</p>\n<pre>" + lines(inspection.text) +
         "</pre>\n</body>\n</html>\n";
}

}  // namespace

bool is_training(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? fs::exists(path / kTrainLogFile, ignored) : path.extension() == ".jsonl";
}

Inspection inspect_training(const std::vector<fs::path>& paths) {
  Inspection inspection;
  inspection.json = {{"kind", "training"}, {"runs", io::Json::array()}};
  Table table({"run", "steps", "first loss", "last 20", "eval", "tokens/s", "left out", "stale"});
  for (const auto& path : paths) {
    auto run = summary(path);
    table.row({label_of(run), run["steps"].dump(), text_of(run["first_loss"], 4), text_of(run["loss_last20"], 5),
               text_of(run["eval_loss"], 5), text_of(run["tokens_per_second"], 0), run["skipped_steps"].dump(),
               run["steps_with_stale_scales"].dump()});
    inspection.json["runs"].push_back(std::move(run));
  }
  inspection.text = table.text();
  return inspection;
}

void write_training_page(const fs::path& file, const std::vector<fs::path>& paths, const Inspection& inspection) {
  std::vector<LossCurve> curves;
  for (std::size_t i = 0; i < paths.size(); ++i) curves.push_back(curve_of(paths[i], inspection.json["runs"][i]));
  const auto svg = loss_svg(curves);
  io::AtomicFile out(file);
  out.append(file.extension() == ".svg" ? svg : page(svg, inspection));
  out.commit();
}

}  // namespace fp8::commands
