// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint, for fp8 weights what their scales look like, in what form it is, and what is wrong with its
// numbers.
#include <fmt/format.h>

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inspect/inspect.h"

namespace fp8::commands {
namespace {

using Weights = std::map<std::string, quant::StoredWeight>;  // by tensor

bool is_fp8(io::DType dtype) {
  return dtype == io::DType::F8_E4M3 || dtype == io::DType::F8_E5M2 || dtype == io::DType::F8_E4M3FNUZ ||
         dtype == io::DType::F8_E5M2FNUZ;
}

/// Scales of one module's weight: how many weights share one, and their range.
struct Scales {
  std::string name, granularity;
  double low = 0, high = 0;
};

/// Returns the granularity that the form declares.
std::string granularity_of(const quant::StoredWeight& weight) {
  const auto& scheme = weight.spec.scheme;
  std::string text = quant::name_of(scheme.weights);
  if (scheme.weights == recipes::Granularity::block)
    text += fmt::format(" {}x{}", scheme.block.rows, scheme.block.cols);
  return text + (weight.transposed ? ", weight transposed" : "");
}

/// Returns the granularity that the shapes imply, where the config declares none. tensor: one scale. channel: one per
/// row (or column) of the weight. block AxB: one per rectangle.
std::string granularity_of(const io::TensorInfo& weight, const io::TensorInfo& scale) {
  if (scale.numel() == 1) return "tensor";
  if (weight.shape.size() < 2) return io::shape_text(scale.shape);
  const auto rows = weight.shape[weight.shape.size() - 2], columns = weight.shape.back();
  const bool plain = weight.shape.size() == 2;
  if (plain && scale.shape.size() <= 2 && scale.numel() == rows && scale.shape[0] == rows) return "channel";
  if (plain && scale.shape.size() == 1 && scale.numel() == columns) return "channel, weight transposed";
  const bool blocks =
      scale.shape.size() == 2 || (scale.shape.size() == 4 && scale.shape[1] == 1 && scale.shape[3] == 1);
  if (!plain || !blocks || scale.numel() == 0) return io::shape_text(scale.shape);
  const auto ceil = [](std::int64_t n, std::int64_t parts) { return (n + parts - 1) / parts; };
  return fmt::format("block {}x{}", ceil(rows, scale.shape[0]),
                     ceil(columns, scale.shape[scale.shape.size() == 4 ? 2 : 1]));
}

bool is_scale_dtype(io::DType dtype) { return quant::is_float(dtype) || dtype == io::DType::F8_E8M0; }

float value_at(const std::uint8_t* bytes, io::DType dtype, std::int64_t i) {
  if (io::size_of(dtype) == 1) return kernels::e8m0_value(bytes[i]);
  return kernels::load_element(bytes, quant::float_type(dtype), i);
}

/// Calls visit(value) for each value of a tensor, read chunk by chunk, until it returns false.
template <class Visit>
void each_value(const io::Checkpoint& checkpoint, const io::TensorInfo& info, Visit visit) {
  constexpr std::uint64_t kChunk = 1 << 20;  // a multiple of every size
  const auto size = static_cast<std::uint64_t>(io::size_of(info.dtype));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min(kChunk, info.bytes())));
  for (std::uint64_t at = 0; at < info.bytes(); at += kChunk) {
    const auto n = std::min(kChunk, info.bytes() - at);
    checkpoint.read(info.name, bytes.data(), at, n);
    for (std::uint64_t i = 0; i < n / size; ++i)
      if (!visit(value_at(bytes.data(), info.dtype, static_cast<std::int64_t>(i)))) return;
  }
}

/// Smallest and largest value of a tensor. NaN if there is one, or no value.
void find_range(const io::Checkpoint& checkpoint, const io::TensorInfo& info, double& low, double& high) {
  low = high = std::nan("");
  each_value(checkpoint, info, [&, first = true](double v) mutable {
    if (first || std::isnan(v) || v < low) low = v;
    if (first || std::isnan(v) || v > high) high = v;
    first = false;
    return !std::isnan(v);
  });
}

std::optional<Scales> scales_of(const io::Checkpoint& checkpoint, const io::TensorInfo& weight, const Weights& known) {
  constexpr std::string_view kWeight = "weight";
  const auto& name = weight.name;
  if (!name.ends_with(kWeight)) return std::nullopt;
  const auto module = name.substr(0, name.size() - kWeight.size());
  for (const char* suffix : {"weight_scale", "weight_scale_inv", "scale_weight", "dequant_weights.scale"}) {
    if (!checkpoint.contains(module + suffix)) continue;
    const auto& info = checkpoint.info(module + suffix);
    const auto it = known.find(name);
    const bool exponents = it != known.end() && info.dtype == io::DType::U8;  // of a form that was read
    if (info.numel() == 0 || (!is_scale_dtype(info.dtype) && !exponents)) return std::nullopt;
    Scales scales{suffix, it == known.end() ? granularity_of(weight, info) : granularity_of(it->second), 0, 0};
    find_range(checkpoint, info, scales.low, scales.high);
    return scales;
  }
  return std::nullopt;
}

std::string range_text(double low, double high) {
  return low == high ? fmt::format("{:.4g}", low) : fmt::format("{:.4g} .. {:.4g}", low, high);
}

/// The quantization that the folder's config declares, and its contradictions to the tensors.
struct Form {
  std::string method;                           ///< its quant_method; empty: none
  std::string problem;                          ///< why fp8 weights can't be read by it
  std::map<std::string, std::int64_t> schemes;  ///< number of weights by description
  Weights weights;
  std::vector<quant::KvScales> kv;
  std::vector<std::string> warnings, strays;
};

Form form_of(const io::Checkpoint& checkpoint) {
  Form form;
  if (!std::filesystem::is_directory(checkpoint.folder())) return form;
  try {
    const auto config = quant::read_quantization_config(checkpoint);
    if (config.is_null()) {
      if (const std::string found = quant::describe_codes(checkpoint); !found.empty())
        form.problem = "config.json has no quantization_config that says what its codes are: " +
                       io::spelled(found, flag_of_option) + " (fp8 convert --assume FORM)";
      return form;
    }
    const auto it = config.find("quant_method");
    form.method = it != config.end() && it->is_string() ? it->get<std::string>() : "unnamed";
    form.method = quant::form_of_config(config, (checkpoint.folder() / io::kConfigFile).string()).name();
    auto stored = quant::read_stored(checkpoint);
    for (auto& w : stored.weights) {
      ++form.schemes[w.spec.scheme.describe() + (w.transposed ? ", stored transposed" : "")];
      const std::string name = w.weight;
      form.weights.emplace(name, std::move(w));
    }
    form.kv = std::move(stored.kv);
    form.warnings = std::move(stored.warnings);
    form.strays = std::move(stored.strays);
  } catch (const io::Error& e) {
    form.problem = what_of(e);
  }
  return form;
}

/// "scheme  28 weights: ...": a line of the summary.
void add_summary(std::string& text, const std::string& what, const std::string& value) {
  text += summary_line(what, value, output_width());
}

/// The form in lines of text and as JSON.
void add_form(const Form& form, bool codes, io::Json& json, std::string& text) {
  json["quantization"] = form.method.empty() ? io::Json(nullptr) : io::Json(form.method);
  const char* const unnamed = codes ? "codes that no config beside them explains" : "high precision";
  add_summary(text, "form", form.method.empty() ? unnamed : one_line(form.method));
  for (const auto& [scheme, n] : form.schemes) {
    add_summary(text, "scheme", fmt::format("{} weights: {}", n, scheme));
    json["schemes"][scheme] = n;
  }
  if (!form.kv.empty()) {
    std::vector<float> k, v;
    for (const auto& kv : form.kv) {
      k.insert(k.end(), kv.k.begin(), kv.k.end());
      v.insert(v.end(), kv.v.begin(), kv.v.end());
      json["kv_scales"].push_back({{"attention", kv.attention}, {"k", kv.k}, {"v", kv.v}});
    }
    const auto range = [](const std::vector<float>& x) {
      const auto [low, high] = std::minmax_element(x.begin(), x.end());
      return range_text(*low, *high);
    };
    add_summary(text, "",
                fmt::format("key-value scales: {} layers, {}, keys {}, values {}", form.kv.size(),
                            k.size() > form.kv.size() ? "per head" : "per tensor", range(k), range(v)));
  }
  json["warnings"] = form.warnings;
  for (const auto& warning : form.warnings) text += "warning: " + one_line(warning) + "\n";
  if (!form.problem.empty()) {
    text += "can't be run: " + one_line(form.problem) + "\n";
    json["problem"] = form.problem;
  }
}

bool is_scale(const io::TensorInfo& info) {
  constexpr const char* kEndings[] = {
      ".weight_scale",     ".weight_scale_inv", ".scale_weight",      ".dequant_weights.scale", ".input_scale",
      ".activation_scale", ".scale_input",      ".quant_input.scale", ".quant_input.scale_inv", ".dequant_output.scale",
      ".k_scale",          ".v_scale",          ".kv_scale",          ".output_scale"};
  return is_scale_dtype(info.dtype) &&
         std::ranges::any_of(kEndings, [&](const char* end) { return info.name.ends_with(end); });
}

/// Returns the problems of a tensor of scales; empty: none.
std::string scale_problem(const io::Checkpoint& checkpoint, const io::TensorInfo& info) {
  std::uint64_t zero = 0, negative = 0, nonfinite = 0, absurd = 0;
  each_value(checkpoint, info, [&](float v) {
    if (!std::isfinite(v))
      ++nonfinite;
    else if (v == 0)
      ++zero;
    else if (v < 0)
      ++negative;
    else if (v >= kAbsurd || !std::isfinite(1 / v))
      ++absurd;
    return true;
  });
  std::vector<std::string> problems;
  for (const auto& [count, what] : {std::pair{zero, "scale 0"},
                                    {negative, "a negative scale"},
                                    {nonfinite, "NaN or Inf"},
                                    {absurd, "an absurd scale (from 2^64 on, or with an infinite reciprocal)"}}) {
    if (count > 0) problems.push_back(fmt::format("{} in {} of {}", what, count, info.numel()));
  }
  return io::joined(problems);
}

/// Of all tensors: what is wrong, by name.
std::map<std::string, std::string> problems_of(const io::Checkpoint& checkpoint, const Form& form, bool read_values) {
  std::map<std::string, std::string> problems;
  if (read_values) {
    const auto dialect =
        form.weights.empty() ? kernels::Dialect::ocp : form.weights.begin()->second.spec.scheme.dialect;
    for (const auto& [tensor, found] : quant::find_nonfinite(checkpoint, dialect, {}, [] { return interrupted(); })) {
      const auto& info = checkpoint.info(tensor);
      problems[tensor] =
          (is_fp8(info.dtype) ? "codes are " : "") + found.text(static_cast<std::uint64_t>(info.numel()));
    }
  }
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    if (!is_scale(info)) continue;
    if (std::string problem = scale_problem(checkpoint, info); !problem.empty())
      problems[info.name] = std::move(problem);
  }
  for (const auto& stray : form.strays) problems.erase(stray);  // a writer left it there, and no reader uses it
  return problems;
}

void add_problems(const std::map<std::string, std::string>& problems, io::Json& json, std::string& text) {
  constexpr std::size_t kShown = 20;
  json["problems"] = io::Json::array();
  for (const auto& [tensor, problem] : problems) {
    if (json["problems"].size() < kShown) text += "problem: " + one_line(tensor) + ": " + problem + "\n";
    json["problems"].push_back({{"tensor", tensor}, {"problem", problem}});
  }
  if (problems.size() > kShown)
    text += fmt::format("problem: {} more tensors (--json lists them)\n", problems.size() - kShown);
}

/// Matrices of an fp8 checkpoint that are not in fp8, with the reason that its writer left in fp8.json.
std::vector<quant::SkippedModule> kept_modules(const io::Checkpoint& checkpoint, const Form& form) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<quant::SkippedModule> kept;
  if (form.weights.empty()) return kept;
  io::Json reasons = io::Json::object();
  const auto sidecar = checkpoint.folder() / quant::kSidecarName;
  if (std::filesystem::exists(sidecar)) {
    const auto json = io::read_json(io::source_file(checkpoint.folder(), quant::kSidecarName));
    if (json.is_object() && json.contains("skipped") && json["skipped"].is_object()) reasons = json["skipped"];
  }
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    if (!quant::is_float(info.dtype) || info.shape.size() < 2 || !info.name.ends_with(kWeight) ||
        form.weights.contains(info.name))
      continue;
    const auto module = info.name.substr(0, info.name.size() - kWeight.size());
    const auto reason = reasons.find(module);
    kept.push_back({module, reason != reasons.end() && reason->is_string()
                                ? reason->get<std::string>()
                                : fmt::format("{} in its file", io::name_of(info.dtype))});
  }
  return kept;
}

/// The outcome of a rounding against inputs, as its run left it in fp8.json.
void add_rounding(const io::Checkpoint& checkpoint, const Form& form, io::Json& json, std::string& text) {
  const auto sidecar = checkpoint.folder() / quant::kSidecarName;
  if (form.weights.empty() || !std::filesystem::exists(sidecar)) return;
  const io::Json all = io::read_json(io::source_file(checkpoint.folder(), quant::kSidecarName));
  const io::Json rounding = all.is_object() ? all.value("rounding", io::Json()) : io::Json();
  const auto summary = quant::RoundingSummary::of(rounding);
  if (!summary.has_value()) return;
  json["rounding"] = rounding;
  add_summary(text, "codes",
              fmt::format("rounded against inputs: output error of {} modules {}", summary->judged, summary->text()));
}

/// Of the tensors: their number and bytes by dtype.
class Totals {
 public:
  void add(const io::TensorInfo& info) {
    auto& [count, sum] = by_dtype_[io::name_of(info.dtype)];
    ++count;
    sum += static_cast<std::int64_t>(info.bytes());
  }
  /// "F8_E4M3 1.6 MB (28), BF16 200.1 kB (11)", the largest first.
  std::string text() const {
    std::vector<std::pair<std::int64_t, std::string>> parts;
    for (const auto& [dtype, total] : by_dtype_)
      parts.emplace_back(total.second, fmt::format("{} {} ({})", dtype, human_bytes(total.second), total.first));
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    return io::joined(parts | std::views::values);
  }
  io::Json json() const {
    io::Json totals = io::Json::object();
    for (const auto& [dtype, total] : by_dtype_) totals[dtype] = {{"tensors", total.first}, {"bytes", total.second}};
    return totals;
  }

 private:
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> by_dtype_;  // tensors, bytes
};

}  // namespace

Inspection inspect_checkpoint(const std::filesystem::path& path, const InspectDetail& detail) {
  const auto opened = std::make_shared<const io::Checkpoint>(path);
  const auto& checkpoint = *opened;
  const Form form = form_of(checkpoint);
  Table table({"tensor", "dtype", ">shape", ">bytes", "granularity and range of scale_inv"});
  io::Json tensors = io::Json::array();
  Totals totals;
  bool codes = false;
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    totals.add(info);
    codes = codes || is_fp8(info.dtype);
    if (!detail.as_json && !detail.all) continue;
    const auto bytes = static_cast<std::int64_t>(info.bytes());
    const auto scales = is_fp8(info.dtype) ? scales_of(checkpoint, info, form.weights) : std::nullopt;
    if (!detail.as_json) {
      const auto shown = scales ? scales->granularity + " " + range_text(scales->low, scales->high) : "";
      table.row({one_line(info.name), io::name_of(info.dtype), io::shape_text(info.shape), grouped(bytes), shown});
      continue;
    }
    io::Json entry = {{"name", info.name}, {"dtype", io::name_of(info.dtype)}, {"shape", info.shape}, {"bytes", bytes}};
    if (scales)
      entry["scale"] = {{"name", scales->name},
                        {"granularity", scales->granularity},
                        {"min", io::number_or_null(scales->low)},
                        {"max", io::number_or_null(scales->high)}};
    tensors.push_back(std::move(entry));
  }
  Inspection result;
  if (detail.all && !detail.as_json) result.all = table.text();
  result.json["kind"] = "checkpoint";
  result.json["path"] = path.string();
  add_summary(result.text, "size",
              fmt::format("{} in {} tensors: {}", human_bytes(static_cast<std::int64_t>(checkpoint.total_bytes())),
                          checkpoint.names().size(), totals.text()));
  add_form(form, codes, result.json, result.text);
  add_rounding(checkpoint, form, result.json, result.text);
  add_problems(problems_of(checkpoint, form, detail.values), result.json, result.text);
  result.kept = kept_modules(checkpoint, form);
  result.checkpoint = opened;
  if (detail.as_json) result.json["tensors"] = std::move(tensors);
  result.json["dtypes"] = totals.json();
  result.json["total_bytes"] = result.json["weights_bytes"] = checkpoint.total_bytes();
  return result;
}

}  // namespace fp8::commands
