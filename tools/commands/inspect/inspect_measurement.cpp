// SPDX-License-Identifier: Apache-2.0
// Measurement and scale files of the neural-compressor form, as .json or .npz:
//
//   {"Mode": "DynamicRange" | "Scale" | "Shape",
//    "Nodes": {module: {"inputs": [t, ...], "outputs": [t, ...], "params": {"weight": t}}}}
//   t = a number, nested lists of numbers, an array, or {axis: t}
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/table.h"
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
  std::int64_t count = 0, zero = 0, negative = 0, absurd = 0;
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
};

void collect(const io::Json& value, const std::string& where, Range& range) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    ++range.count;
    range.zero += number == 0 ? 1 : 0;
    range.negative += number < 0 ? 1 : 0;
    range.absurd += !(number < kAbsurd) ? 1 : 0;  // NaN too
    range.low = std::min(range.low, number);
    range.high = std::max(range.high, number);
  } else if (value.is_array() || value.is_object()) {
    for (const auto& item : value) collect(item, where, range);
  } else {
    throw io::Error(where + ": found " +
                    one_line(value.dump(-1, ' ', true, io::Json::error_handler_t::replace)).substr(0, 60) +
                    ", allowed: numbers, lists and objects of numbers");
  }
}

std::string range_text(const Range& range) {
  if (range.count == 0) return "-";
  if (range.low == range.high) return fmt::format("{:.6g}", range.high);
  return fmt::format("{:.6g} .. {:.6g} ({})", range.low, range.high, range.count);
}

/// Why the numbers of a measurement or a scale file can't be what they should be; empty: they can.
std::string problem_of(const Range& range, const std::string& kind) {
  if (kind == "shapes") return "";
  std::vector<std::string> problems;
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0) problems.push_back(fmt::format("{} in {} of {}", what, count, range.count));
  };
  const bool scales = kind == "scales";
  if (scales) add(range.zero, "scale 0");
  add(range.negative, scales ? "a negative scale" : "a negative amax");
  add(range.absurd,
      scales ? "an absurd scale (from 2^64 on, Inf or NaN)" : "an absurd amax (from 2^64 on, Inf or NaN)");
  return io::joined(problems);
}

/// One entry per tensor of "inputs", "outputs" (lists) or "params" (an object).
struct Column {
  std::string text = "-";
  io::Json json;
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
    throw io::Error(place + ": found a " + it->type_name() + ", allowed: a list or an object");
  result.json = it->is_object() ? io::Json::object() : io::Json::array();
  std::string text;
  for (const auto& [name, tensor] : it->items()) {
    Range range;
    collect(tensor, place + "." + name, range);
    if (std::string problem = problem_of(range, kind); !problem.empty())
      problems.emplace_back(place + "." + name, std::move(problem));
    io::Json entry = {{"count", range.count}};
    if (range.count > 0) {
      entry["min"] = range.low;
      entry["max"] = range.high;
    }
    const auto prefix = it->is_object() && name != "weight" ? one_line(name) + " " : std::string();
    text += (text.empty() ? "" : ", ") + prefix + range_text(range);
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
  throw io::Error(name + ": key 'Mode': found " +
                  (mode == file.end()
                       ? "nothing"
                       : one_line(mode->dump(-1, ' ', true, io::Json::error_handler_t::replace)).substr(0, 60)) +
                  ", allowed: DynamicRange, Scale, Shape");
}

}  // namespace

Inspection inspect_measurement(const std::filesystem::path& path) {
  const auto name = path.string();
  const auto file = path.extension() == ".npz" ? to_json(io::read_npz(path)) : io::read_json(path);
  if (!file.is_object())
    throw io::Error(name + ": found a " + file.type_name() + ", allowed: a measurement or scale file");
  const auto nodes = file.find("Nodes");
  if (nodes == file.end() || !nodes->is_object())
    throw io::Error(name + ": key 'Nodes': missing or not an object; is this a measurement?");
  const auto kind = measurement_kind(file, name);
  Table table({"module", ">inputs", ">outputs", ">weight"});
  Members modules;
  Problems problems;
  for (const auto& [module, node] : nodes->items()) {
    const auto where = name + ": " + one_line(module);
    if (!node.is_object()) throw io::Error(where + ": found a " + node.type_name() + ", allowed: an object");
    const auto inputs = either(node, "inputs", "input", where, kind, problems),
               outputs = either(node, "outputs", "output", where, kind, problems);
    const auto params = column(node, "params", where, kind, problems);
    table.row({one_line(module), inputs.text, outputs.text, params.text});
    modules.set(module, {{"inputs", inputs.json}, {"outputs", outputs.json}, {"params", params.json}});
  }
  const auto samples = file.find("NumSamples");
  auto text = table.text() + fmt::format("{}: {} modules", kind, nodes->size());
  if (samples != file.end() && samples->is_number_integer())
    text += fmt::format(", {} samples", samples->get<std::int64_t>());
  io::Json json = {{"kind", kind},
                   {"path", name},
                   {"samples", samples != file.end() ? *samples : io::Json(nullptr)},
                   {"modules", modules.take()},
                   {"problems", io::Json::array()}};
  text += "\n";
  for (const auto& [place, problem] : problems) {
    json["problems"].push_back({{"place", place}, {"problem", problem}});
    text += "problem: " + place + ": " + problem + "\n";
  }
  return {std::move(json), text};
}

}  // namespace fp8::commands
