// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint, and for fp8 weights what their scales look like.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/error.h"
#include "fp8/runtime/io/safetensors.h"
#include "fp8/tools/commands/inspect.h"
#include "fp8/tools/commands/output.h"
#include "fp8/tools/commands/table.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

bool is_fp8(io::DType dtype) {
  return dtype == io::DType::F8_E4M3 || dtype == io::DType::F8_E5M2 || dtype == io::DType::F8_E4M3FNUZ ||
         dtype == io::DType::F8_E5M2FNUZ;
}

/// Scales of one module's weight: how many weights share one, and their range.
struct Scales {
  std::string name, granularity;
  double low = 0, high = 0;
};

/// tensor: one scale. channel: one per row (or column) of the weight. block AxB: one per rectangle.
std::string granularity_of(const io::TensorInfo& weight, const io::TensorInfo& scale) {
  if (scale.numel() == 1) return "tensor";
  if (weight.shape.size() < 2) return shape_text(scale.shape);
  const auto rows = weight.shape[weight.shape.size() - 2], columns = weight.shape.back();
  const bool plain = weight.shape.size() == 2;
  if (plain && scale.shape.size() <= 2 && scale.numel() == rows && scale.shape[0] == rows) return "channel";
  if (plain && scale.shape.size() == 1 && scale.numel() == columns) return "channel";  // weights stored [in, out]
  if (!plain || scale.shape.size() != 2 || scale.shape[0] == 0 || scale.shape[1] == 0) return shape_text(scale.shape);
  const auto ceil = [](std::int64_t n, std::int64_t parts) { return (n + parts - 1) / parts; };
  return fmt::format("block {}x{}", ceil(rows, scale.shape[0]), ceil(columns, scale.shape[1]));
}

std::optional<Scales> scales_of(const io::Checkpoint& checkpoint, const io::TensorInfo& weight) {
  constexpr std::string_view kWeight = "weight";
  const auto& name = weight.name;
  if (name.size() < kWeight.size() || name.compare(name.size() - kWeight.size(), kWeight.size(), kWeight) != 0) return std::nullopt;
  const auto module = name.substr(0, name.size() - kWeight.size());
  for (const char* suffix : {"weight_scale", "weight_scale_inv", "scale_weight"}) {
    if (!checkpoint.contains(module + suffix)) continue;
    const auto& info = checkpoint.info(module + suffix);
    if (info.numel() == 0) return std::nullopt;
    if (info.dtype != io::DType::F32 && info.dtype != io::DType::BF16 && info.dtype != io::DType::F16) return std::nullopt;
    const auto values = models::read_tensor(checkpoint, info.name).to(at::kDouble);
    return Scales{suffix, granularity_of(weight, info), values.min().item<double>(), values.max().item<double>()};
  }
  return std::nullopt;
}

std::string range_text(const Scales& scales) {
  if (scales.low == scales.high) return fmt::format("{} {:.4g}", scales.granularity, scales.low);
  return fmt::format("{} {:.4g} .. {:.4g}", scales.granularity, scales.low, scales.high);
}

/// The quantization_config of config.json in a few words; empty if there is none.
std::string quantization_of(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto path = folder / "config.json";
  if (!std::filesystem::exists(path, ignored)) return {};
  const auto config = io::read_json(path);
  const auto it = config.is_object() ? config.find("quantization_config") : config.end();
  if (!config.is_object() || it == config.end() || !it->is_object()) return {};
  const auto method = it->find("quant_method");
  return method != it->end() && method->is_string() ? method->get<std::string>() : "unnamed";
}

}  // namespace

Inspection inspect_checkpoint(const std::filesystem::path& path, bool as_json) {
  const io::Checkpoint checkpoint(path);
  Table table({"tensor", "dtype", ">shape", ">bytes", "scale"});
  io::Json tensors = io::Json::array();
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> by_dtype;  // tensors, bytes
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    const auto bytes = static_cast<std::int64_t>(info.bytes());
    const auto scales = is_fp8(info.dtype) ? scales_of(checkpoint, info) : std::nullopt;
    auto& [count, sum] = by_dtype[io::name_of(info.dtype)];
    ++count;
    sum += bytes;
    if (!as_json) {
      table.row({one_line(info.name), io::name_of(info.dtype), shape_text(info.shape), grouped(bytes), scales ? range_text(*scales) : ""});
      continue;
    }
    io::Json entry = {{"name", info.name}, {"dtype", io::name_of(info.dtype)}, {"shape", info.shape}, {"bytes", bytes}};
    if (scales)
      entry["scale"] = {{"name", scales->name}, {"granularity", scales->granularity}, {"min", scales->low}, {"max", scales->high}};
    tensors.push_back(std::move(entry));
  }
  const auto method = std::filesystem::is_directory(path) ? quantization_of(path) : std::string();
  std::string text = as_json ? "" : table.text();
  io::Json totals = io::Json::object();
  for (const auto& [dtype, total] : by_dtype) {
    text += fmt::format("{}: {} tensors, {}\n", dtype, total.first, human_bytes(total.second));
    totals[dtype] = {{"tensors", total.first}, {"bytes", total.second}};
  }
  text += fmt::format("total: {} tensors, {}\n", checkpoint.names().size(), human_bytes(static_cast<std::int64_t>(checkpoint.total_bytes())));
  if (!method.empty()) text += "quantization: " + one_line(method) + "\n";
  Inspection result;
  result.json["kind"] = "checkpoint";
  result.json["path"] = path.string();
  result.json["quantization"] = method.empty() ? io::Json(nullptr) : io::Json(method);
  if (as_json) result.json["tensors"] = std::move(tensors);
  result.json["dtypes"] = std::move(totals);
  result.json["total_bytes"] = checkpoint.total_bytes();
  result.text = std::move(text);
  return result;
}

}  // namespace fp8::commands
