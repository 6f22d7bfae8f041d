// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/rounded.h"

#include <cmath>
#include <limits>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr char kKey[] = "rounding", kCodes[] = ".codes", kScales[] = ".scale_inv";

double decibels(double signal, double error) {
  return error > 0 ? 10 * std::log10(signal / error) : std::numeric_limits<double>::infinity();
}

fs::path file_of(const fs::path& folder, const std::string& layer) { return folder / (layer + ".safetensors"); }

RoundedModule module_from(const io::Json& json) {
  RoundedModule m;
  m.module = json.at("name");
  m.signal = json.at("signal"), m.nearest = json.at("nearest"), m.rounded = json.at("rounded");
  m.columns = json.at("columns"), m.tokens = json.at("tokens"), m.held = json.at("held_back"),
  m.damping = json.at("damping");
  m.kept = json.value("nearest_because", "");
  return m;
}

io::Json stored(const RoundedModule& m) {
  io::Json json = {{"name", m.module},     {"signal", m.signal}, {"nearest", m.nearest}, {"rounded", m.rounded},
                   {"columns", m.columns}, {"tokens", m.tokens}, {"held_back", m.held},  {"damping", m.damping}};
  if (!m.kept.empty()) json["nearest_because"] = m.kept;
  return json;
}

}  // namespace

double RoundedModule::nearest_db() const { return decibels(signal, nearest); }
double RoundedModule::written_db() const { return decibels(signal, kept.empty() ? rounded : nearest); }

io::Json RoundedModule::json() const {
  const auto number = [&](double db) { return std::isfinite(db) ? io::Json(db) : io::Json(); };
  io::Json json = {{"name", module},
                   {"nearest_db", number(nearest_db())},
                   {"db", number(written_db())},
                   {"tokens", tokens},
                   {"held_back", held},
                   {"damping", damping}};
  if (!kept.empty()) json["nearest_because"] = kept;
  return json;
}

void RoundedLayer::write(const fs::path& folder, const std::string& layer, const io::Json& identity) const {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& w : weights) {
    entries.push_back({w.module + kCodes, io::DType::U8, {w.rows, w.cols}});
    entries.push_back({w.module + kScales, io::DType::F32, {static_cast<std::int64_t>(w.scale_inv.size())}});
  }
  io::Json json = {{"identity", identity}, {"modules", io::Json::array()}};
  for (const auto& m : modules) json["modules"].push_back(stored(m));
  io::SafetensorsWriter writer(file_of(folder, layer), entries, {{kKey, json.dump()}});
  for (const auto& w : weights) {
    writer.write(w.module + kCodes, w.codes.data());
    writer.write(w.module + kScales, w.scale_inv.data());
  }
  writer.commit();
}

bool RoundedCodes::add(const std::string& layer, const io::Json& identity) {
  const fs::path path = file_of(folder_, layer);
  if (!fs::exists(path)) return false;
  auto file = std::make_shared<const io::SafetensorsFile>(path);
  const auto found = file->metadata().find(kKey);
  if (found == file->metadata().end()) return false;
  const io::Json json = io::parse_json(found->second, path.string());
  std::vector<RoundedModule> modules;
  try {
    if (json.at("identity") != identity) return false;
    for (const auto& m : json.at("modules")) modules.push_back(module_from(m));
  } catch (const io::Json::exception& error) {
    io::fail_at(path.string(), "no outcome of a rounding: {}", error.what());
  }
  for (const auto& m : modules) {
    if (!m.kept.empty()) continue;
    const io::TensorInfo *codes = file->find(m.module + kCodes), *scales = file->find(m.module + kScales);
    if (codes == nullptr || codes->dtype != io::DType::U8 || codes->shape.size() != 2 || scales == nullptr ||
        scales->dtype != io::DType::F32)
      io::fail_at(path.string(), "has no codes and scales of {}", m.module);
    files_[m.module] = file;
  }
  identity_ = identity;
  modules_.insert(modules_.end(), modules.begin(), modules.end());
  return true;
}

io::Json RoundedCodes::json() const {
  io::Json modules = io::Json::array();
  for (const auto& m : modules_) modules.push_back(m.json());
  return {{"method", "gptq"}, {"modules", std::move(modules)}};
}

std::int64_t RoundedCodes::rows(const std::string& module) const {
  return files_.at(module)->find(module + kCodes)->shape.at(0);
}

void RoundedCodes::require_scales(const std::string& module, std::int64_t first, std::int64_t rows, std::int64_t cols,
                                  const Scheme& scheme, const std::vector<float>& scale_inv) const {
  const auto& file = *files_.at(module);
  const io::TensorInfo &codes = *file.find(module + kCodes), &scales = *file.find(module + kScales);
  const std::int64_t all = codes.shape[0];
  const bool fits = all >= first + rows && codes.shape[1] == cols &&
                    scales.numel() == scale_grid(scheme, all, cols).size() &&
                    (!scheme.has_blocks() || first % scheme.block.rows == 0);
  std::vector<float> made(static_cast<std::size_t>(fits ? scales.numel() : 0));
  if (fits) file.read(scales, made.data());
  if (!fits || WeightScales{made, made}.of_rows(first, rows, scheme, cols).scale_inv != scale_inv)
    io::fail_at(module, "its codes were rounded for other sizes or scales than the checkpoint gets");
}

void RoundedCodes::read(const std::string& module, std::int64_t row, std::int64_t rows, std::int64_t cols,
                        std::uint8_t* codes) const {
  const auto& file = *files_.at(module);
  file.read(*file.find(module + kCodes), codes, static_cast<std::uint64_t>(row * cols),
            static_cast<std::uint64_t>(rows * cols));
}

}  // namespace fp8::quant
