// SPDX-License-Identifier: Apache-2.0
// The page and the pictures of a report.
#include <fmt/format.h>

#include <tuple>

#include "fp8/quant/names/folded_names.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "report_page_html.h"

namespace fp8::commands {
namespace {

constexpr std::string_view kDataMark = "@FP8_REPORT_DATA@", kFiguresMark = "@FP8_REPORT_FIGURES@",
                           kTitleMark = "@FP8_REPORT_TITLE@";

/// By module and part ("inputs"): what is wrong with its tensors.
using Bad = std::map<std::pair<std::string, std::string>, std::string>;

Bad bad_parts(const io::Json& inspected) {
  Bad bad;
  const std::string file = inspected["path"].get<std::string>() + ": ";
  for (const auto& p : inspected["problems"]) {
    const auto place = p["place"].get<std::string>().substr(file.size());  // "module.inputs.0"
    const auto last = place.rfind('.'), before = place.rfind('.', last - 1);
    auto& text = bad[{place.substr(0, before), place.substr(before + 1, last - before - 1)}];
    text += (text.empty() ? "" : "; ") + place.substr(before + 1) + ": " + p["problem"].get<std::string>();
  }
  return bad;
}

/// The largest of a list or an object of {"min", "max"}; null for none.
io::Json largest(const io::Json& tensors) {
  io::Json found = nullptr;
  for (const auto& tensor : tensors)
    if (tensor.contains("max") && (found.is_null() || tensor["max"] > found)) found = tensor["max"];
  return found;
}

io::Json measurement_report(const std::string& title, const io::Json& inspected) {
  io::Json page = {{"kind", "measurement"}, {"title", title}, {"modules", io::Json::array()}};
  const auto bad = bad_parts(inspected);
  std::size_t bad_modules = 0;
  for (const auto& [name, m] : inspected["modules"].items()) {
    io::Json module = {{"name", name}};
    std::string problems;
    for (const auto& [key, parts, old] :
         {std::tuple("input", "inputs", "input"), {"output", "outputs", "output"}, {"weight", "params", "params"}}) {
      std::string found;
      for (const char* part : {parts, old})
        if (const auto at = bad.find({one_line(name), part}); at != bad.end()) found = at->second;
      module[key] = found.empty() ? largest(m[parts]) : io::Json("bad");
      if (!found.empty()) problems += (problems.empty() ? "" : "; ") + found;
    }
    bad_modules += problems.empty() ? 0 : 1;
    module["bad"] = std::move(problems);
    page["modules"].push_back(std::move(module));
  }
  auto summary = fmt::format("{} of {} modules", inspected["kind"].get<std::string>(), page["modules"].size());
  if (inspected["samples"].is_number_integer())
    summary += fmt::format(", {} samples", inspected["samples"].get<std::int64_t>());
  page["summary"] =
      summary + (bad_modules == 0 ? "; nothing is bad" : fmt::format("; {} modules have bad values", bad_modules));
  return page;
}

/// Beside each module, by its name, the outcome of the rounding that made its codes.
void add_rounding(const io::Json& rounding, io::Json& modules) {
  std::map<std::string, const io::Json*> outcomes;
  for (const auto& outcome : rounding["modules"]) {
    const auto name = outcome.is_object() ? outcome.find("name") : outcome.end();
    if (outcome.is_object() && name != outcome.end() && name->is_string())
      outcomes[name->get<std::string>()] = &outcome;
  }
  for (auto& module : modules)
    if (const auto found = outcomes.find(module["name"].get<std::string>()); found != outcomes.end())
      module["rounding"] = *found->second;
}

/// What modules are called within a layer, in the order of the model.
std::vector<std::string> in_model_order(std::set<std::string> names) {
  std::vector<std::string> sorted(names.begin(), names.end());
  std::ranges::stable_sort(sorted, {}, [](const std::string& name) { return quant::place_in_layer(name); });
  return sorted;
}

}  // namespace

std::string script_json(const io::Json& value) {
  std::string out;
  for (const char c : value.dump(-1, ' ', /*ensure_ascii=*/true, io::Json::error_handler_t::replace))
    out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

std::string filled_page(std::string_view page, const std::vector<std::pair<std::string_view, std::string>>& texts) {
  std::string out;
  for (const auto& [mark, text] : texts) {
    const auto at = page.find(mark);
    out.append(page.substr(0, at)).append(text);
    page.remove_prefix(at + mark.size());
  }
  return out.append(page);
}

std::string report_page(const io::Json& report, const std::string& figures) {
  std::set<std::string> columns;
  for (const auto& module : report["modules"])
    if (auto [layer, name] = layer_of(module["name"]); layer >= 0) columns.insert(std::move(name));
  io::Json data = report;
  data["columns"] = in_model_order(std::move(columns));
  return filled_page(kReportPageHtml,
                     {{kTitleMark, "fp8 report"}, {kFiguresMark, figures}, {kDataMark, script_json(data)}});
}

void write_report_page(const std::filesystem::path& path, const io::Json& report, const std::string& figures) {
  write_output_file(path, report_page(report, figures));
}

io::Json report_of(const std::string& title, const io::Json& inspected) {
  if (inspected["kind"] != "checkpoint") return measurement_report(title, inspected);
  if (!inspected.contains("modules"))
    io::fail<io::Error>("{}: --html and --plot expect a checkpoint folder with config.json, or a measurement", title);
  io::Json page = {{"kind", "damage"},
                   {"title", title},
                   {"summary", inspected["summary"]},
                   {"modules", inspected["modules"]},
                   {"skipped", inspected["skipped"]}};
  if (inspected.contains("rounding")) add_rounding(inspected["rounding"], page["modules"]);
  if (!page["modules"].empty())
    page["about"] =
        page["modules"][0]["scheme"].get<std::string>() + ", " + inspected["order"].get<std::string>() + ".";
  return page;
}

namespace {

// The page's colours, one hue from "nothing to see" to "look here".
constexpr Rgb kBands[] = {{0xEE, 0xF4, 0xFA}, {0xB5, 0xD2, 0xEC}, {0x55, 0x98, 0xD0}, {0x0B, 0x3C, 0x6F}};
constexpr Rgb kBlack = {0x1B, 0x1F, 0x24}, kWhite = {0xFF, 0xFF, 0xFF}, kWeightBar = {0x2F, 0x74, 0xB5},
              kInputBar = {0x8A, 0x5A, 0x00};
constexpr double kCellWidth = 36, kCellHeight = 20, kMargin = 12, kLine = 18;

/// A number of a module and the anchors of its bands.
struct Metric {
  std::string name, unit;
  std::array<double, 3> anchors;
  bool up = false;  ///< the larger the worse
  std::optional<double> (*of)(const io::Json& module) = nullptr;

  std::size_t band(double x) const {
    return static_cast<std::size_t>(
        std::count_if(anchors.begin(), anchors.end(), [&](double a) { return up ? x >= a : x < a; }));
  }
  bool worse(double x, double y) const { return up ? x > y : x < y; }
  std::string anchor(std::size_t i) const { return fmt::format("{:g}{}", anchors[i], unit); }
  std::string band_text(std::size_t i) const {
    if (i == 0) return (up ? "below " : "from ") + anchor(0);
    if (i == anchors.size()) return (up ? "from " : "below ") + anchor(i - 1);
    return up ? anchor(i - 1) + " to " + anchor(i) : anchor(i) + " to " + anchor(i - 1);
  }
};

std::optional<double> number_at(const io::Json& module, const char* key) {
  const auto found = module.find(key);
  return found != module.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::optional<double> percent_saturated(const io::Json& m) {
  const auto share = m["weight"].is_object() ? number_at(m["weight"], "saturation") : std::nullopt;
  return share ? std::optional(100 * *share) : std::nullopt;
}

const std::vector<Metric>& metrics_of(const std::string& kind) {
  static const std::vector<Metric> damage = {
      {"SQNR", " dB", {kGoodDb, kFairDb, kPoorDb}, false, [](const io::Json& m) { return number_at(m, "sqnr_db"); }},
      {"weight saturated", " %", {0.01, 0.1, 1}, true, percent_saturated}};
  static const std::vector<Metric> measurement = {
      {"amax of the inputs", "", {10, 100, 1000}, true, [](const io::Json& m) { return number_at(m, "input"); }},
      {"amax of the weights", "", {1, 4, 16}, true, [](const io::Json& m) { return number_at(m, "weight"); }}};
  return kind == "measurement" ? measurement : damage;
}

/// [module kind][layer]: the worst value.
struct Grid {
  std::vector<std::string> rows;
  std::vector<std::int64_t> layers;  ///< -1: what stands outside of them, in the first column
  std::map<std::pair<std::string, std::int64_t>, double> cells;
};

Grid grid_of(const io::Json& modules, const Metric& metric) {
  Grid grid;
  for (const auto& m : modules) {
    const auto value = metric.of(m);
    if (!value) continue;
    auto [layer, name] = layer_of(m["name"]);
    if (layer < 0) name = quant::folded_name(name);  // of a hundred thousand outside of layers, a row is no picture
    const auto [at, fresh] = grid.cells.try_emplace({std::move(name), layer}, *value);
    if (!fresh && metric.worse(*value, at->second)) at->second = *value;
  }
  std::set<std::int64_t> layers;
  std::set<std::string> inside, outside;
  for (const auto& [place, value] : grid.cells) {
    (place.second < 0 ? outside : inside).insert(place.first);
    layers.insert(place.second);
  }
  grid.rows = in_model_order(std::move(inside));
  for (const auto& name : outside)
    if (std::ranges::find(grid.rows, name) == grid.rows.end()) grid.rows.push_back(name);
  grid.layers.assign(layers.begin(), layers.end());
  return grid;
}

/// How wide a text is at most.
double text_width(const std::string& text) {
  constexpr double kLetter = 7.2;  // of a text of 12 px: none is wider on average
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };  // a code point
  return kLetter * static_cast<double>(std::count_if(text.begin(), text.end(), begins));
}

void add_legend(const Metric& metric, double y, Picture& picture) {
  double x = kMargin;
  for (std::size_t i = 0; i < std::size(kBands); ++i) {
    const auto text = metric.band_text(i);
    picture.rectangles.push_back({x, y - 11, 14, 14, kBands[i]});
    picture.texts.push_back({x + 20, y, text, Anchor::start, kBlack});
    x += 32 + text_width(text);
  }
  picture.width = std::max(picture.width, x + kMargin);
}

/// One tensor's bars over [left, left + width), standing on `bottom`.
void add_bars(const io::Json& part, Rgb color, const std::string& title, double top, Picture& picture) {
  constexpr double kHeight = 130;
  const auto& octaves = part["octaves"];
  const auto counts = octaves["counts"].get<std::vector<double>>();
  const int first = octaves["first_exponent"];
  const auto smallest = number_at(part, "smallest"), largest = number_at(part, "largest");
  const double low = std::floor(std::min<double>(first, smallest ? std::log2(*smallest) : first)) - 1,
               high = std::ceil(std::max<double>(first + static_cast<double>(counts.size()),
                                                 largest ? std::log2(*largest) : first)) +
                      1,
               width = picture.width - 2 * kMargin, bottom = top + kLine + kHeight;
  const auto x = [&](double e) { return kMargin + (e - low) / (high - low) * width; };
  const double most = std::log1p(*std::ranges::max_element(counts));
  picture.texts.push_back({kMargin, top + 12, title, Anchor::start, kBlack});
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double h = kHeight * std::log1p(counts[i]) / most, left = x(first + static_cast<double>(i));
    if (counts[i] > 0) picture.rectangles.push_back({left, bottom - h, width / (high - low) - 1, h, color});
  }
  picture.lines.push_back({kMargin, bottom, kMargin + width, bottom});
  const double step = std::max(1.0, std::round((high - low) / 10));
  for (double e = low + 1; e < high; e += step)
    picture.texts.push_back({x(e), bottom + 14, fmt::format("2^{:.0f}", e), Anchor::middle, kBlack});
  for (const auto& [value, name] : {std::pair{smallest, "smallest"}, {largest, "largest"}}) {
    if (!value) continue;
    const double at = x(std::log2(*value));
    picture.lines.push_back({at, top + kLine, at, bottom, true});
    picture.texts.push_back({std::clamp(at, kMargin + 60, kMargin + width - 60), bottom + 30,
                             fmt::format("{} {:.3g}", name, *value), Anchor::middle, kBlack});
  }
}

std::string hex(Rgb c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

const char* anchor_word(Anchor anchor) {
  return anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
}

}  // namespace

std::pair<std::int64_t, std::string> layer_of(const std::string& module) {
  constexpr std::string_view kLayers[] = {"layer", "layers", "h", "block", "blocks", "stage", "stages"};
  for (std::size_t begin = 0; begin < module.size();) {
    const auto end = std::min(module.find('.', begin), module.size());
    const auto part = std::string_view(module).substr(begin, end - begin);
    const auto after = std::min(module.find('.', end + 1), module.size());
    const bool numbered =
        end < module.size() && after > end + 1 && after < module.size() && after - end < 10 &&
        std::all_of(module.begin() + static_cast<std::ptrdiff_t>(end) + 1,
                    module.begin() + static_cast<std::ptrdiff_t>(after), [](char c) { return c >= '0' && c <= '9'; });
    if (numbered && std::ranges::find(kLayers, part) != std::end(kLayers))
      return {std::stoll(module.substr(end + 1, after - end - 1)), quant::folded_name(module.substr(after + 1))};
    begin = end + 1;
  }
  return {-1, module};
}

Picture heat_map(const io::Json& report) {
  const auto& metrics = metrics_of(report["kind"]);
  const auto metric = std::ranges::find_if(metrics, [&](const Metric& m) {
    return std::ranges::any_of(report["modules"], [&](const io::Json& module) { return m.of(module).has_value(); });
  });
  if (metric == metrics.end())
    io::fail<io::Error>("{}: --plot expects modules with a number to draw, found none",
                        report["title"].get<std::string>());
  const Grid grid = grid_of(report["modules"], *metric);
  double label = 0;
  for (const auto& row : grid.rows) label = std::max(label, text_width(one_line(row)));
  Picture picture;
  const double left = kMargin + label + 8, top = kMargin + 4 * kLine;
  picture.width = left + kCellWidth * static_cast<double>(grid.layers.size()) + kMargin;
  picture.height = top + kCellHeight * static_cast<double>(grid.rows.size()) + kMargin;
  for (const auto& line :
       {one_line(report["title"].get<std::string>()), one_line(report["summary"].get<std::string>())})
    picture.texts.push_back(
        {kMargin, kMargin + 12 + kLine * static_cast<double>(picture.texts.size()), line, Anchor::start, kBlack});
  for (const auto& text : picture.texts) picture.width = std::max(picture.width, 2 * kMargin + text_width(text.text));
  picture.texts.push_back({kMargin, top - 6, metric->name + " by layer", Anchor::start, kBlack});
  add_legend(*metric, kMargin + 12 + 2 * kLine, picture);
  for (std::size_t c = 0; c < grid.layers.size(); ++c)
    if (grid.layers[c] >= 0)
      picture.texts.push_back({left + kCellWidth * (static_cast<double>(c) + 0.5), top - 6,
                               std::to_string(grid.layers[c]), Anchor::middle, kBlack});
  for (std::size_t r = 0; r < grid.rows.size(); ++r) {
    const double y = top + kCellHeight * static_cast<double>(r);
    picture.texts.push_back({left - 8, y + 14, one_line(grid.rows[r]), Anchor::end, kBlack});
    for (std::size_t c = 0; c < grid.layers.size(); ++c) {
      const auto cell = grid.cells.find({grid.rows[r], grid.layers[c]});
      if (cell == grid.cells.end()) continue;
      const std::size_t band = metric->band(cell->second);
      const double x = left + kCellWidth * static_cast<double>(c);
      picture.rectangles.push_back({x, y, kCellWidth - 1, kCellHeight - 1, kBands[band]});
      picture.texts.push_back({x + kCellWidth / 2, y + 14, fmt::format("{:.3g}", cell->second), Anchor::middle,
                               band + 1 == std::size(kBands) ? kWhite : kBlack});
    }
  }
  return picture;
}

Picture histogram(const io::Json& report, const std::string& module) {
  const auto& modules = report["modules"];
  const auto found = std::ranges::find_if(modules, [&](const io::Json& m) { return m["name"] == module; });
  if (found == modules.end())
    io::fail<io::Error>("--module: found '{}', allowed: one of the {} modules of {} (--all lists them)", module,
                        modules.size(), report["title"].get<std::string>());
  Picture picture{760, kMargin + kLine};
  picture.texts.push_back({kMargin, kMargin + 12, one_line(module), Anchor::start, kBlack});
  for (const auto& [part, title, color] :
       {std::tuple("weight", "Weight", kWeightBar), std::tuple("input", "Input", kInputBar)}) {
    const auto tensor = found->find(part);
    if (tensor == found->end() || !tensor->is_object() || !tensor->contains("octaves") ||
        (*tensor)["octaves"]["counts"].empty())
      continue;
    std::string facts = fmt::format("{}: values per power of two, logarithmic; amax {:.4g}", title,
                                    number_at(*tensor, "amax").value_or(0));
    if (const auto db = number_at(*tensor, "sqnr_db")) facts += fmt::format(", SQNR {:.1f} dB", *db);
    add_bars(*tensor, color, facts, picture.height, picture);
    picture.height += 2 * kLine + 130 + 36;
  }
  if (picture.height <= kMargin + kLine)
    io::fail<io::Error>("--module: '{}' has no histogram: it is drawn of a checkpoint's weights and inputs", module);
  return picture;
}

std::string xml_text(const std::string& text) {
  constexpr std::pair<char, const char*> kReferences[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : text) {
    const auto reference = std::ranges::find(kReferences, c, &std::pair<char, const char*>::first);
    if (reference != std::end(kReferences))
      out += reference->second;
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // control characters are not XML
  }
  return out;
}

std::string svg_of(const Picture& p) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\"{2}>\n",
      p.width, p.height, p.on_white ? "" : " fill=\"#808080\"");
  if (p.on_white) svg += "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  for (const auto& r : p.rectangles)
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", r.x, r.y,
                       r.width, r.height, hex(r.color));
  for (const auto& l : p.lines)
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}{}/>\n", l.x1,
                       l.y1, l.x2, l.y2, l.color, l.width == 1 ? "" : fmt::format(" stroke-width=\"{}\"", l.width),
                       l.dashed ? " stroke-dasharray=\"4 4\"" : "");
  for (const auto& c : p.curves) {
    std::string points;
    for (const auto& [x, y] : c.points) points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x, y);
    svg +=
        fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" points=\"{}\"/>\n",
                    c.color, c.width, c.opacity, points);
  }
  for (const auto& d : p.dots)
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>\n", d.x,
                       d.y, d.color, xml_text(d.tip));
  for (const auto& t : p.texts)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}{}>{}</text>\n", t.x, t.y,
                       anchor_word(t.anchor), t.color ? fmt::format(" fill=\"{}\"", hex(*t.color)) : "",
                       t.upwards ? fmt::format(" transform=\"rotate(-90 {} {})\"", t.x, t.y) : "", xml_text(t.text));
  return svg + "</svg>\n";
}

}  // namespace fp8::commands
