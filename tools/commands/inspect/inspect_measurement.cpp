// SPDX-License-Identifier: Apache-2.0
// Measurement and scale files of the neural-compressor form, as .json or .npz:
//
//   {"Mode": "DynamicRange" | "Scale" | "Shape",
//    "Nodes": {module: {"inputs": [t, ...], "outputs": [t, ...], "params": {"weight": t}}}}
//   t = a number, nested lists of numbers, an array, or {axis: t}
#include <fmt/format.h>

#include "fp8/quant/names/folded_names.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inspect/inspect.h"

namespace fp8::commands {
namespace {

/// An object that is made member by member: the JSON type itself searches all keys for each new one.
class Members {
 public:
  void set(std::string key, io::Json value) {
    auto& pairs = object_.get_ref<io::Json::object_t&>();
    const auto [place, added] = places_.emplace(key, pairs.size());
    if (added)
      pairs.emplace_back(std::move(key), std::move(value));
    else
      (pairs.begin() + static_cast<std::ptrdiff_t>(place->second))->second = std::move(value);
  }
  io::Json take() { return std::move(object_); }

 private:
  io::Json object_ = io::Json::object();
  std::unordered_map<std::string, std::size_t> places_;
};

/// The value of a pickle as JSON; arrays become flat lists (their shape does not matter here).
io::Json to_json(const io::PyValue& value) {
  return std::visit(
      [](const auto& v) -> io::Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, io::PyList> || std::is_same_v<T, io::PyTuple>) {
          auto list = io::Json::array();
          for (const auto& item : v.items) list.push_back(to_json(item));
          return list;
        } else if constexpr (std::is_same_v<T, io::PyDict>) {
          Members members;
          for (const auto& [key, item] : v.items()) {
            const auto* number = std::get_if<std::int64_t>(&key);
            members.set(number != nullptr ? std::to_string(*number) : std::get<std::string>(key), to_json(item));
          }
          return members.take();
        } else if constexpr (std::is_same_v<T, io::NdArray>) {
          return io::Json(v.data);
        } else {
          return io::Json(v);
        }
      },
      value.value);
}

/// Number and range of the numbers in one tensor's entry, and how many of them can't be meant.
struct Range {
  std::int64_t count = 0, zero = 0, negative = 0, nonfinite = 0, absurd = 0;
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void add(double number) {
    ++count;
    zero += number == 0 ? 1 : 0;
    negative += number < 0 ? 1 : 0;
    nonfinite += std::isfinite(number) ? 0 : 1;
    absurd += std::isfinite(number) && number >= kAbsurd ? 1 : 0;
    low = std::min(low, number);
    high = std::max(high, number);
  }
  void merge(const Range& other) {
    count += other.count, zero += other.zero, negative += other.negative;
    nonfinite += other.nonfinite, absurd += other.absurd;
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
};

/// Reads a word that Python's json module writes for NaN or an infinity, and read_with_nonfinite() puts in quotes.
std::optional<double> nonfinite_word(const std::string& word) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (word == "Infinity") return kInfinity;
  if (word == "-Infinity") return -kInfinity;
  return std::nullopt;
}

/// JSON, but for NaN, Infinity and -Infinity, which become texts.
io::Json read_with_nonfinite(const std::filesystem::path& path) {
  constexpr std::uint64_t kMost = std::uint64_t{4} << 30;
  const std::string bytes = io::read_file(path, kMost);
  std::string quoted;
  std::size_t done = 0;
  bool text = false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (text && bytes[i] == '\\') {
      ++i;
    } else if (bytes[i] == '"') {
      text = !text;
    } else if (!text && (bytes[i] == 'N' || bytes[i] == 'I')) {
      const std::string_view word = bytes[i] == 'N' ? "NaN" : "Infinity";
      if (std::string_view(bytes).substr(i, word.size()) != word) continue;
      const std::size_t begin = word != "NaN" && i > done && bytes[i - 1] == '-' ? i - 1 : i, end = i + word.size();
      quoted.append(bytes, done, begin - done).append("\"").append(bytes, begin, end - begin).append("\"");
      done = end;
      i = end - 1;
    }
  }
  if (done == 0) return io::parse_json(bytes, path.string());
  return io::parse_json(quoted.append(bytes, done), path.string());
}

void collect(const io::Json& value, const std::string& where, Range& range) {
  if (value.is_number()) return range.add(value.get<double>());
  if (value.is_array() || value.is_object()) {
    for (const auto& item : value) collect(item, where, range);
    return;
  }
  if (value.is_string())
    if (const auto number = nonfinite_word(value.get<std::string>())) return range.add(*number);
  io::fail<io::Error>("{}: found {}, allowed: numbers, lists and objects of numbers", where,
                      one_line(value.dump(-1, ' ', true, io::Json::error_handler_t::replace)).substr(0, 60));
}

/// True if numbers of a measurement or a scale file are zero, negative, not finite or absurd.
bool is_bad(const Range& range, const std::string& kind) {
  return kind != "shapes" && range.zero + range.negative + range.nonfinite + range.absurd > 0;
}

std::string range_text(const Range& range, const std::string& kind) {
  if (range.count == 0) return "-";
  const std::string bad = is_bad(range, kind) ? "BAD " : "";
  if (range.nonfinite == range.count && range.low > range.high) return bad + "nan";
  if (range.low == range.high) return bad + fmt::format("{:.6g}", range.high);
  return bad + fmt::format("{:.6g} .. {:.6g} ({})", range.low, range.high, range.count);
}

/// Returns the problems of the numbers; empty: none.
std::string problem_of(const Range& range, const std::string& kind) {
  if (!is_bad(range, kind)) return "";
  std::vector<std::string> problems;
  const auto add = [&](std::int64_t count, const std::string& what) {
    if (count > 0) problems.push_back(fmt::format("{} in {} of {}", what, count, range.count));
  };
  const std::string noun = kind == "scales" ? "scale" : "amax";
  add(range.zero, noun + " 0" + (kind == "scales" ? "" : " (nothing came through, or zeros alone)"));
  add(range.negative, "a negative " + noun);
  add(range.nonfinite, "NaN or Inf");
  add(range.absurd, "an absurd " + noun + " (from 2^64 on)");
  return io::joined(problems);
}

/// One entry per tensor of "inputs", "outputs" (lists) or "params" (an object).
struct Column {
  std::string text = "-";
  io::Json json;
  std::vector<std::pair<std::string, Range>> tensors;  ///< by name ("" of a weight) or number
};
/// By place in the file: "module.inputs.0".
using Problems = std::vector<std::pair<std::string, std::string>>;

Column column(const io::Json& node, const std::string& key, const std::string& where, const std::string& kind,
              Problems& problems) {
  const auto it = node.find(key);
  Column result;
  if (it == node.end()) return result;
  const auto place = where + "." + key;
  if (!it->is_array() && !it->is_object())
    io::fail<io::Error>("{}: found a {}, allowed: a list or an object", place, it->type_name());
  result.json = it->is_object() ? io::Json::object() : io::Json::array();
  std::string text;
  for (const auto& [name, tensor] : it->items()) {
    Range range;
    collect(tensor, place + "." + name, range);
    if (std::string problem = problem_of(range, kind); !problem.empty())
      problems.emplace_back(place + "." + name, std::move(problem));
    io::Json entry = {{"count", range.count}};
    if (range.count > 0) {
      entry["min"] = io::number_or_null(range.low);
      entry["max"] = io::number_or_null(range.high);
    }
    const auto prefix = it->is_object() && name != "weight" ? one_line(name) + " " : std::string();
    text += (text.empty() ? "" : ", ") + prefix + range_text(range, kind);
    result.tensors.emplace_back(prefix, range);
    if (it->is_object())
      result.json[name] = std::move(entry);
    else
      result.json.push_back(std::move(entry));
  }
  if (!text.empty()) result.text = text;
  return result;
}

/// "inputs" may also be spelt "input" in old files.
Column either(const io::Json& node, const char* key, const char* old_key, const std::string& where,
              const std::string& kind, Problems& problems) {
  return column(node, node.contains(key) ? key : old_key, where, kind, problems);
}

std::string measurement_kind(const io::Json& file, const std::string& name) {
  const auto mode = file.find("Mode");
  const auto word = mode != file.end() && mode->is_string() ? mode->get<std::string>() : "";
  if (word == "DynamicRange") return "measurement";
  if (word == "Scale") return "scales";
  if (word == "Shape") return "shapes";
  io::fail<io::Error>("{}: key 'Mode': found {}, allowed: DynamicRange, Scale, Shape", name,
                      mode == file.end()
                          ? "nothing"
                          : one_line(mode->dump(-1, ' ', true, io::Json::error_handler_t::replace)).substr(0, 60));
}

/// Modules of one folded name: the ranges of all of them.
class Folded {
 public:
  using Columns = std::array<const Column*, 3>;  // inputs, outputs, parameters

  void add(const std::string& module, const Columns& columns) {
    const auto [at, fresh] = places_.try_emplace(quant::folded_name(module), rows_.size());
    if (fresh) rows_.emplace_back();
    Row& row = rows_[at->second];
    row.modules.push_back(module);
    all_.push_back(module);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      auto& tensors = row.columns[c];
      for (std::size_t i = 0; i < columns[c]->tensors.size(); ++i) {
        if (i == tensors.size()) tensors.emplace_back(columns[c]->tensors[i].first, Range());
        tensors[i].second.merge(columns[c]->tensors[i].second);
      }
    }
  }
  std::string table(const std::string& kind) const {
    Table table({"module", ">modules", ">input", ">output", ">weight"});
    const quant::NameFolder folder(all_);
    for (const auto& row : rows_) {
      std::vector<std::string> names;
      for (const auto& folded : folder.fold(row.modules)) names.push_back(one_line(folded.name));
      std::vector<std::string> cells = {io::joined(names), std::to_string(row.modules.size())};
      for (const auto& tensors : row.columns) {
        std::string text;
        for (const auto& [prefix, range] : tensors)
          text += (text.empty() ? "" : ", ") + prefix + range_text(range, kind);
        cells.push_back(text.empty() ? "-" : text);
      }
      table.row(std::move(cells));
    }
    return table.text();
  }

 private:
  struct Row {
    std::vector<std::string> modules;
    std::array<std::vector<std::pair<std::string, Range>>, 3> columns;
  };
  std::vector<Row> rows_;
  std::vector<std::string> all_;
  std::map<std::string, std::size_t> places_;
};

/// "what  measurement of amax: 28 modules, 24 samples", and what is wrong with it.
std::string summary_of(const io::Json& json) {
  const std::string kind = json["kind"];
  std::string text = fmt::format("{}: {} modules", kind, json["modules"].size());
  const io::Json planned = json.value("planned_samples", io::Json());
  if (json["samples"].is_number_integer())
    text += fmt::format(", {}{} samples", json["samples"].get<std::int64_t>(),
                        planned.is_number_integer() ? " of " + planned.dump() : "");
  const auto& problems = json["problems"];
  text += problems.empty() ? "" : fmt::format("; {} bad tensors", problems.size());
  text += "\n";
  constexpr std::size_t kShown = 20;
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i)
    text += "bad: " + problems[i]["place"].get<std::string>() + ": " + problems[i]["problem"].get<std::string>() + "\n";
  if (problems.size() > kShown) text += fmt::format("bad: {} more (--json lists them)\n", problems.size() - kShown);
  return text;
}

}  // namespace

Inspection inspect_measurement(const std::filesystem::path& path, bool all) {
  const auto name = path.string();
  const auto file = path.extension() == ".npz" ? to_json(io::read_npz(path)) : read_with_nonfinite(path);
  if (!file.is_object())
    io::fail<io::Error>("{}: found a {}, allowed: a measurement or scale file", name, file.type_name());
  const auto nodes = file.find("Nodes");
  if (nodes == file.end() || !nodes->is_object())
    io::fail<io::Error>("{}: key 'Nodes': missing or not an object; is this a measurement?", name);
  const auto kind = measurement_kind(file, name);
  Table table({"module", ">inputs", ">outputs", ">weight"});
  Members modules;
  Problems problems;
  Folded folded;
  for (const auto& [module, node] : nodes->items()) {
    const auto where = name + ": " + one_line(module);
    if (!node.is_object()) io::fail<io::Error>("{}: found a {}, allowed: an object", where, node.type_name());
    const auto inputs = either(node, "inputs", "input", where, kind, problems),
               outputs = either(node, "outputs", "output", where, kind, problems);
    const auto params = column(node, "params", where, kind, problems);
    if (all)
      table.row({one_line(module), inputs.text, outputs.text, params.text});
    else
      folded.add(module, {&inputs, &outputs, &params});
    modules.set(module, {{"inputs", inputs.json}, {"outputs", outputs.json}, {"params", params.json}});
  }
  const auto samples = file.find("NumSamples"), planned = file.find("PlannedSamples");
  io::Json json = {{"kind", kind},
                   {"path", name},
                   {"samples", samples != file.end() ? *samples : io::Json(nullptr)},
                   {"modules", modules.take()},
                   {"problems", io::Json::array()}};
  if (planned != file.end()) json["planned_samples"] = *planned;
  for (const auto& [place, problem] : problems) json["problems"].push_back({{"place", place}, {"problem", problem}});
  auto text = summary_of(json);
  return {std::move(json), std::move(text), all ? table.text() : folded.table(kind)};
}

}  // namespace fp8::commands
