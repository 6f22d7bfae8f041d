// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <system_error>

#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/tools/commands/work/snapshots.h"

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
  if (entries.empty()) io::fail<io::Error>("{}: holds no step yet", log.string());
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

/// All of a run but its label.
std::vector<std::string> cells_of(const io::Json& run) {
  return {run["steps"].dump(),
          text_of(run["first_loss"], 4),
          text_of(run["loss_last20"], 5),
          text_of(run["eval_loss"], 5),
          text_of(run["tokens_per_second"], 0),
          run["skipped_steps"].dump(),
          run["steps_with_stale_scales"].dump()};
}

std::string label_of(const io::Json& run) {
  auto label = run["path"].get<std::string>();
  if (run["precision"].is_string())
    label += " (" + run["precision"].get<std::string>() +
             (run["recipe"].is_string() ? ", " + run["recipe"].get<std::string>() : "") + ")";
  return label;
}

/// A number of the steps that have it, in a log.
struct Series {
  const char *title, *what;
  std::function<double(const io::Json& fp8)> of;  ///< of a step's "fp8", NaN where it has none
};

double share(const io::Json& counts, const char* key) { return number(counts, key) / number(counts, "elements"); }

/// Below the losses; each is drawn if a run has it.
const std::vector<Series>& series() {
  static const std::vector<Series> list = {
      {"Largest amax of inputs and weights", "amax", [](const io::Json& e) { return number(e, "amax"); }},
      {"Saturated", "% of the values cast", [](const io::Json& e) { return 100 * share(e, "saturated"); }},
      {"Underflow", "% of the values cast", [](const io::Json& e) { return 100 * share(e, "underflowed"); }}};
  return list;
}

LossCurve curve_of(const std::vector<io::Json>& entries, const io::Json& run) {
  LossCurve curve{label_of(run)};
  for (const auto& e : entries) {
    const auto step = e["step"].get<std::int64_t>();
    curve.steps.emplace_back(step, number(e, "loss"));
    if (e.contains("eval_loss")) curve.evaluations.emplace_back(step, number(e, "eval_loss"));
  }
  return curve;
}

/// {"name", "type": run, "saturation", "underflow", "amax"} over the steps that counted casts; amax: the largest.
void add_modules(const std::vector<io::Json>& entries, const io::Json& run, io::Json& modules) {
  struct Sum {
    double elements = 0, saturated = 0, underflowed = 0, amax = std::nan("");
  };
  std::map<std::string, Sum> sums;
  for (const auto& e : entries) {
    if (!e.contains("fp8") || !e["fp8"].contains("modules")) continue;
    for (const auto& [name, m] : e["fp8"]["modules"].items()) {
      Sum& sum = sums[name];
      sum.elements += number(m, "elements");
      sum.saturated += number(m, "saturated");
      sum.underflowed += number(m, "underflowed");
      sum.amax = std::fmax(sum.amax, number(m, "amax"));
    }
  }
  for (const auto& [name, sum] : sums)
    modules.push_back({{"name", name},
                       {"type", run["path"]},
                       {"saturation", io::number_or_null(sum.saturated / sum.elements)},
                       {"underflow", io::number_or_null(sum.underflowed / sum.elements)},
                       {"amax", io::number_or_null(sum.amax)}});
}

std::string figure(const char* title, const std::string& svg, const char* note) {
  return fmt::format("<h2>{}</h2>\n<div class=\"scroll figure\">{}</div>\n<p class=\"dim\">{}</p>\n", title, svg, note);
}

/// The runs as a table; the text has it too, but pages have tables.
std::string runs_table(const Inspection& inspection) {
  std::string html = "<h2>Runs</h2>\n<div class=\"scroll\"><table><thead><tr><th class=\"text\">run</th>";
  for (const char* head : {"steps", "first loss", "last 20", "eval", "tokens/s", "left out", "stale"})
    html += fmt::format("<th>{}</th>", head);
  html += "</tr></thead><tbody>";
  for (const auto& run : inspection.json["runs"]) {
    html += "<tr><td class=\"text\">" + xml_text(label_of(run)) + "</td>";
    for (const auto& cell : cells_of(run)) html += "<td>" + xml_text(cell) + "</td>";
    html += "</tr>";
  }
  return html + "</tbody></table></div>\n";
}

/// "6 steps of 2 runs; the lowest loss over the last 20 steps is 2.1 (run a); nothing saturates".
std::string sentence(const Inspection& inspection, const io::Json& modules) {
  const auto& runs = inspection.json["runs"];
  std::string text =
      runs.size() == 1 ? fmt::format("{} steps", runs[0]["steps"].dump()) : fmt::format("{} runs", runs.size());
  const io::Json* best = nullptr;
  for (const auto& run : runs)
    if (run["loss_last20"].is_number() && (best == nullptr || run["loss_last20"] < (*best)["loss_last20"])) best = &run;
  if (best != nullptr)
    text += fmt::format("; {} {} over its last 20 steps", runs.size() == 1 ? "a loss of" : "the lowest loss is",
                        text_of((*best)["loss_last20"], 4));
  if (best != nullptr && runs.size() > 1) text += " (" + (*best)["path"].get<std::string>() + ")";
  if (modules.empty()) return text;
  const auto saturating = std::ranges::count_if(
      modules, [](const io::Json& m) { return m["saturation"].is_number() && m["saturation"] > 0; });
  return text + (saturating == 0 ? "; no module saturates" : fmt::format("; {} modules saturate", saturating));
}

}  // namespace

bool is_training(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? fs::exists(path / kTrainLogFile, ignored) : path.extension() == ".jsonl";
}

Inspection inspect_training(const std::vector<fs::path>& paths) {
  Report report({"run", ">steps", ">first\nloss", ">loss of\nlast 20", ">eval\nloss", ">tokens/s", ">steps\nleft out",
                 ">steps with\nstale scales"});
  report.json["kind"] = "training";
  for (const auto& path : paths) {
    auto run = summary(path);
    auto cells = cells_of(run);
    cells.insert(cells.begin(), label_of(run));
    report.add_entry("runs", std::move(run), std::move(cells));
  }
  return {std::move(report.json), report.text(), ""};
}

void write_training_page(const fs::path& file, const std::vector<fs::path>& paths, const Inspection& inspection) {
  const auto& runs = inspection.json["runs"];
  std::vector<LossCurve> losses;
  std::vector<std::vector<LossCurve>> others(series().size());
  io::Json modules = io::Json::array();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto entries = read_log(log_of(paths[i]));
    losses.push_back(curve_of(entries, runs[i]));
    add_modules(entries, runs[i], modules);
    for (std::size_t k = 0; k < series().size(); ++k) {
      LossCurve curve{label_of(runs[i])};
      for (const auto& e : entries)
        if (e.contains("fp8") && std::isfinite(series()[k].of(e["fp8"])))
          curve.steps.emplace_back(e["step"].get<std::int64_t>(), series()[k].of(e["fp8"]));
      if (!curve.steps.empty()) others[k].push_back(std::move(curve));
    }
  }
  const auto svg = loss_svg(losses);
  if (file.extension() == ".svg") return write_output_file(file, svg);
  std::string figures = figure("Training loss", svg, "Faint: every step; strong: smoothed; dots: evaluations.");
  for (std::size_t k = 0; k < series().size(); ++k)
    if (!others[k].empty())
      figures += figure(series()[k].title, loss_svg(others[k], series()[k].what), "At the steps that counted casts.");
  std::vector<std::string> names;
  for (const auto& path : paths) names.push_back(name_of_run(path));
  const io::Json report = {{"kind", "training"},
                           {"title", io::joined(names)},
                           {"summary", sentence(inspection, modules)},
                           {"modules", modules}};
  write_report_page(file, report, figures + runs_table(inspection));
}

namespace {

using Points = std::vector<std::pair<std::int64_t, double>>;

constexpr double kWidth = 900, kHeight = 420, kLeft = 62, kRight = 20, kTop = 18, kBottom = 46;
constexpr std::size_t kMostPoints = 600;
constexpr const char* kColors[] = {"#3b82c4", "#d0602e", "#2f9e63", "#9a5fc0", "#b8952a", "#c2477f"};

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  /// Never empty and never of width 0.
  Extent usable() const {
    if (!(low <= high)) return {0, 1};
    const double pad = high > low ? 0 : std::max(1.0, std::abs(low)) * 0.05;
    const Extent range{low - pad, high + pad};
    io::ensure(range.low < range.high, "a range of some width");
    return range;
  }
};

Points finite(const Points& points) {
  Points kept;
  for (const auto& p : points)
    if (std::isfinite(p.second)) kept.push_back(p);
  return kept;
}

/// Means of at most kMostPoints stretches of equal length.
Points thinned(const Points& points) {
  if (points.size() <= kMostPoints) return points;
  Points out;
  for (std::size_t i = 0; i < kMostPoints; ++i) {
    const auto begin = i * points.size() / kMostPoints, end = (i + 1) * points.size() / kMostPoints;
    double sum = 0;
    for (auto k = begin; k < end; ++k) sum += points[k].second;
    out.emplace_back(points[(begin + end - 1) / 2].first, sum / static_cast<double>(end - begin));
  }
  return out;
}

/// Mean of the points within a fortieth of the curve on either side.
Points smoothed(const Points& points) {
  const auto reach = static_cast<std::ptrdiff_t>(points.size() / 40);
  Points out;
  for (std::ptrdiff_t i = 0; i < std::ssize(points); ++i) {
    const auto near = std::min({reach, i, std::ssize(points) - 1 - i});
    double sum = 0;
    for (auto k = i - near; k <= i + near; ++k) sum += points[static_cast<std::size_t>(k)].second;
    out.emplace_back(points[static_cast<std::size_t>(i)].first, sum / static_cast<double>(2 * near + 1));
  }
  return out;
}

struct Axes {
  Extent x, y;
  double px(double v) const { return kLeft + (v - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight); }
  double py(double v) const { return kHeight - kBottom - (v - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom); }
};

Picture::Curve curve_of(const Points& points, const Axes& axes, const char* color, double width, double opacity) {
  Picture::Curve curve{{}, color, width, opacity};
  for (const auto& [step, loss] : points) curve.points.emplace_back(axes.px(static_cast<double>(step)), axes.py(loss));
  return curve;
}

void add_grid(const Axes& axes, const std::string& what, Picture& picture) {
  constexpr const char* kFaint = "#8886";
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  const auto add_text = [&](double x, double y, std::string text, Anchor anchor, bool upwards = false) {
    picture.texts.push_back({x, y, std::move(text), anchor, std::nullopt, upwards});
  };
  for (const double v : axis_ticks(axes.y.low, axes.y.high, 6)) {
    picture.lines.push_back({kLeft, axes.py(v), right, axes.py(v), false, kFaint});
    add_text(kLeft - 6, axes.py(v) + 4, fmt::format("{:.6g}", v), Anchor::end);
  }
  for (const double v : axis_ticks(axes.x.low, axes.x.high, 8)) {
    picture.lines.push_back({axes.px(v), bottom, axes.px(v), bottom + 4, false, kFaint});
    add_text(axes.px(v), bottom + 18, fmt::format("{:.10g}", v), Anchor::middle);
  }
  add_text(kWidth / 2, kHeight - 8, "step", Anchor::middle);
  add_text(14, kHeight / 2, what, Anchor::middle, /*upwards=*/true);
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int about) {
  if (!(high > low) || !std::isfinite(high - low)) return {};
  const double raw = (high - low) / about, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double k = std::ceil(low / step); k * step <= high; ++k) ticks.push_back(k * step);
  return ticks;
}

std::string loss_svg(const std::vector<LossCurve>& curves, const std::string& what) {
  Extent x, y;
  for (const auto& curve : curves)
    for (const auto* points : {&curve.steps, &curve.evaluations})
      for (const auto& [step, loss] : finite(*points)) {
        x.add(static_cast<double>(step));
        y.add(loss);
      }
  const Axes axes{x.usable(), y.usable()};
  Picture picture{.width = kWidth, .height = kHeight, .on_white = false};
  add_grid(axes, what, picture);
  double legend = kTop + 12;
  for (std::size_t i = 0; i < curves.size(); ++i, legend += 18) {
    const char* color = kColors[i % std::size(kColors)];
    const auto points = thinned(finite(curves[i].steps));
    picture.curves.push_back(curve_of(points, axes, color, 1, 0.3));
    picture.curves.push_back(curve_of(smoothed(points), axes, color, 1.8, 1));
    for (const auto& [step, loss] : finite(curves[i].evaluations))
      picture.dots.push_back({axes.px(static_cast<double>(step)), axes.py(loss), color,
                              fmt::format("{}: eval {:.5f} at step {}", curves[i].name, loss, step)});
    picture.lines.push_back({kWidth - kRight - 24, legend - 4, kWidth - kRight, legend - 4, false, color, 2.5});
    picture.texts.push_back({kWidth - kRight - 30, legend, curves[i].name, Anchor::end, std::nullopt});
  }
  return svg_of(picture);
}

}  // namespace fp8::commands
