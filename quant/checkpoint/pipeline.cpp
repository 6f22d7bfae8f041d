// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/pipeline.h"

#include "fp8/runtime/io/base/fail.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kCastElements = std::int64_t{1} << 18;

[[noreturn]] void fail(const io::Checkpoint& source, const std::string& tensor, const std::string& what) {
  io::fail<io::Error>("{}: {}: {}", source.folder().string(), tensor, what);
}

}  // namespace

Pipeline::Pipeline(const io::Checkpoint& source, const FolderPlan& plan)
    : source_(source), plan_(plan), weights_(std::make_unique<WeightUnits>(source, plan)) {
  for (const auto& piece : plan.pieces) {
    if (!piece.weights.empty()) {
      units_.push_back(weights_->unit_of(piece.weights));
      continue;
    }
    const auto& info = source.info(piece.from);
    const bool cast = plan.cast && is_float(info.dtype) && float_type(info.dtype) != plan.type;
    units_.push_back(cast ? cast_unit(info) : copy_unit(source, piece.from, piece.to));
  }
  const bool decodes = !plan.weights.empty() && plan.weights.front().in_codes();
  for (const auto& kv : plan.config.kv) {
    Unit unit;
    unit.name = kv.attention + (decodes ? " key-value cache" : "");  // names are part of a run's mark
    unit.entries = plan.form->kv_entries(kv, plan.config);
    unit.run = [this, &kv](UnitContext& context) {
      plan_.form->write_kv(context, kv, plan_.config);
      context.advance(0);
    };
    units_.push_back(std::move(unit));
  }
  std::set<std::string> outputs;
  for (const auto& unit : units_) {
    for (const auto& e : unit.entries) {
      if (!outputs.insert(e.name).second)
        fail(source, e.name, "the converted checkpoint would hold two tensors of this name");
    }
  }
}

Pipeline::~Pipeline() = default;

std::uint64_t Pipeline::weights_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& unit : units_) {
    for (const auto& e : unit.entries) bytes += bytes_of(e);
  }
  return bytes;
}

std::optional<double> Pipeline::max_error(std::size_t i) const { return weights_->max_error(i); }

Unit Pipeline::cast_unit(const io::TensorInfo& info) const {
  Unit unit{info.name, {{info.name, file_type(plan_.type), info.shape}}, info.bytes(), {}, {}};
  const auto cast = [this, &info](UnitContext& context, std::int64_t first, std::int64_t last) {
    for (std::int64_t at = first; at < last; at += kCastElements)
      cast_piece(context, info, at, std::min(kCastElements, last - at));
  };
  const std::int64_t n = info.numel();
  if (n < 2 * kPartCodes) {
    unit.run = [cast, n](UnitContext& context) { cast(context, 0, n); };
    return unit;
  }
  for (std::int64_t at = 0; at < n; at += kPartCodes)
    unit.parts.push_back(
        [cast, at, last = std::min(at + kPartCodes, n)](UnitContext& context) { cast(context, at, last); });
  return unit;
}

void Pipeline::cast_piece(UnitContext& context, const io::TensorInfo& info, std::int64_t first, std::int64_t n) const {
  const auto from_size = static_cast<std::uint64_t>(io::size_of(info.dtype)),
             to_size = static_cast<std::uint64_t>(kernels::size_of(plan_.type));
  context.in.resize(static_cast<std::uint64_t>(n) * from_size);
  context.out.resize(static_cast<std::uint64_t>(n) * to_size);
  source_.read(info.name, context.in.data(), static_cast<std::uint64_t>(first) * from_size, context.in.size());
  if (!plan_.nonfinite.contains(info.name) && has_nonfinite(context.in.data(), info.dtype, n))
    refuse_nonfinite(source_, info.name);
  if (!cast_floats(context.in.data(), float_type(info.dtype), n, plan_.type, context.out.data()))
    fail(source_, info.name, std::string("holds values that leave the range of ") + kernels::name_of(plan_.type));
  context.write(info.name, context.out.data(), static_cast<std::uint64_t>(first) * to_size, context.out.size());
  context.advance(context.in.size());
}

StreamResult Pipeline::write(const fs::path& out, StreamOptions stream, bool join) const {
  stream.source = source_.folder();
  for (const auto& [tensor, found] : plan_.nonfinite) stream.nonfinite.insert(tensor);
  std::vector<std::string> warnings;
  auto result = make_checkpoint(out, units_, stream, join, [&](OutputFolder& folder) {
    FolderTexts texts = plan_.texts;
    if (!plan_.nonfinite.empty()) texts.sidecar["nonfinite"] = nonfinite_json(plan_.nonfinite);
    if (texts.card.has_value())
      texts.card->weights_bytes = weights_bytes(), texts.card->source_bytes = source_.total_bytes();
    warnings = finish_folder(folder, source_.folder(), plan_.form,
                             plan_.form == nullptr ? io::Json() : plan_.form->config(plan_.config), std::move(texts),
                             run_mark(units_, stream));
  });
  for (auto& warning : weights_->lost().warnings(plan_.config.scale_method, "weights"))
    warnings.push_back(std::move(warning));
  result.warnings.insert(result.warnings.begin(), warnings.begin(), warnings.end());
  return result;
}

namespace {

/// Puts a section into the source's card, which has been carried through.
void write_card(OutputFolder& folder, const CardFacts& facts, std::vector<std::string>& notes) {
  constexpr std::uint64_t kMost = 1 << 20;
  const fs::path path = folder.path().file(kCardName);
  std::error_code error;
  if (const auto size = fs::file_size(path, error); !error && size > kMost)
    return notes.push_back(io::message("{}: {} bytes, no card: nothing is said in it", kCardName, size));
  folder.write_text(kCardName, model_card(error ? "" : io::read_file(path, kMost), facts));
}

}  // namespace

std::vector<std::string> finish_folder(OutputFolder& folder, const fs::path& source, const CheckpointForm* form,
                                       const io::Json& quantization, FolderTexts texts, const std::string& mark) {
  io::Json edits = {{"quantization_config", quantization}};
  edits.update(texts.edits);
  folder.write_config(source.empty() ? source : source / io::kConfigFile, edits);
  if (form != nullptr) {
    for (const auto& [name, value] : form->extra_files(quantization)) folder.write_json(name, value);
  }
  if (!mark.empty()) texts.sidecar["run"] = mark;
  if (!texts.sidecar.is_null()) folder.write_json(kSidecarName, texts.sidecar);
  auto left = source.empty() ? std::vector<std::string>() : folder.carry_through(source);
  if (texts.card.has_value()) write_card(folder, *texts.card, left);
  return left;
}

}  // namespace fp8::quant
