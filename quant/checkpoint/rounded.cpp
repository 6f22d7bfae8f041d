// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/rounded.h"

#include "fp8/quant/names/expert_weights.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr char kCodes[] = ".codes", kScales[] = ".scale_inv";

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

std::optional<RoundingSummary> RoundingSummary::of(const io::Json& rounding) {
  const io::Json modules = rounding.is_object() ? rounding.value("modules", io::Json()) : io::Json();
  if (!modules.is_array()) return std::nullopt;
  RoundingSummary sum;
  for (const auto& m : modules) {
    if (!m.is_object()) return std::nullopt;
    const auto number = [&](const char* key) {
      const auto found = m.find(key);
      return found != m.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
    };
    sum.nearest += m.contains("nearest_because") ? 1 : 0;
    const double tokens = number("tokens").value_or(0) + number("held_back").value_or(0);
    sum.tokens = std::max(sum.tokens, static_cast<std::int64_t>(std::clamp(tokens, 0.0, 0x1p62)));
    const auto from = number("nearest_db"), to = number("db");
    if (!from.has_value() || !to.has_value()) continue;
    ++sum.judged, sum.nearest_db += *from, sum.written_db += *to;
  }
  const double n = static_cast<double>(std::max<std::int64_t>(sum.judged, 1));
  sum.nearest_db /= n, sum.written_db /= n;
  return sum;
}

std::string RoundingSummary::text() const {
  char decibels[96];
  std::snprintf(decibels, sizeof decibels, "%.1f -> %.1f dB", nearest_db, written_db);
  return io::message("{}, {} kept nearest, {} tokens", static_cast<const char*>(decibels), nearest, tokens);
}

void RoundedLayer::write(const fs::path& folder, const std::string& layer, const io::Json& identity) const {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& w : weights) {
    entries.push_back({w.module + kCodes, io::DType::U8, {w.rows, w.cols}});
    entries.push_back({w.module + kScales, io::DType::F32, {static_cast<std::int64_t>(w.scale_inv.size())}});
  }
  io::Json json = {{"identity", identity}, {"modules", io::Json::array()}};
  for (const auto& m : modules) json["modules"].push_back(stored(m));
  io::SafetensorsWriter writer(file_of(folder, layer), entries, {{kRoundingKey, json.dump()}});
  for (const auto& w : weights) {
    writer.write(w.module + kCodes, w.codes.data());
    writer.write(w.module + kScales, w.scale_inv.data());
  }
  writer.commit();
}

RoundedCodes::Layer RoundedCodes::open(const std::string& layer) const {
  const fs::path path = file_of(folder_, layer);
  if (!fs::exists(path)) return {};
  Layer found{std::make_shared<const io::SafetensorsFile>(path), {}};
  const auto text = found.file->metadata().find(kRoundingKey);
  if (text == found.file->metadata().end()) return {};
  const io::Json json = io::parse_json(text->second, path.string());
  try {
    if (json.at("identity") != identity_) return {};
    for (const auto& m : json.at("modules")) found.modules.push_back(module_from(m));
  } catch (const io::Json::exception& error) {
    io::fail_at(path.string(), "no outcome of a rounding: {}", error.what());
  }
  for (const auto& m : found.modules) {
    if (!m.kept.empty()) continue;
    const io::TensorInfo *codes = found.file->find(m.module + kCodes), *scales = found.file->find(m.module + kScales);
    if (codes == nullptr || codes->dtype != io::DType::U8 || codes->shape.size() != 2 || scales == nullptr ||
        scales->dtype != io::DType::F32)
      io::fail_at(path.string(), "has no codes and scales of {}", m.module);
  }
  return found;
}

void RoundedCodes::add(const std::string& layer) {
  Layer found = open(layer);
  if (found.file == nullptr) io::fail_at(file_of(folder_, layer).string(), "is gone, or of another run");
  for (auto& m : found.modules) {
    if (m.kept.empty()) files_[m.module] = found.file;
    modules_.push_back(std::move(m));
  }
}

void RoundedCodes::erase(const std::function<bool(const std::string&)>& unwanted) {
  std::erase_if(files_, [&](const auto& entry) { return unwanted(entry.first); });
  std::erase_if(modules_, [&](const RoundedModule& m) { return unwanted(m.module); });
}

io::Json RoundedCodes::json(const io::Checkpoint* source) const {
  std::optional<NamesInCheckpoint> names;
  if (source != nullptr) names.emplace(std::shared_ptr<const io::Checkpoint>(std::shared_ptr<void>(), source));
  io::Json modules = io::Json::array();
  for (const auto& m : modules_) {
    for (auto& name : names.has_value() ? names->of(m.module) : std::vector<std::string>{m.module}) {
      RoundedModule called = m;
      called.module = std::move(name);
      modules.push_back(called.json());
    }
  }
  io::Json json = {{"modules", std::move(modules)}};
  for (const char* key : {"method", "dampening_frac", "actorder"}) json[key] = identity_.value(key, io::Json());
  return json;
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
