// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/measure_run.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/registry.h"

namespace fp8::commands {

io::Json identity_of(const MeasureRun& run, bool blocks) {
  const auto& o = run.options;
  const auto& c = run.calibration;
  io::Json parameters = io::Json::object();
  for (const auto& [name, value] : c.parameters) parameters[name] = value;
  io::Json identity = {
      {"command", "measure"},
      {"mode", blocks ? "block-wise" : "whole"},
      {"files", run.sources.to_json()},
      {"data",
       {{"samples", o.samples}, {"seq-len", o.seq_len}, {"skip", o.skip}, {"batch", o.batch}, {"chunk", o.chunk}}},
      {"options",
       {{"model", std::filesystem::absolute(o.model).string()},
        {"dtype", run.context.dtype ? name_of(*run.context.dtype) : ""},
        {"attention", o.attention == models::AttentionKind::fused ? "fused" : "eager"},
        {"exclude", o.exclude},
        {"prefix", std::filesystem::absolute(c.prefix).string()},
        {"observer", c.observer},
        {"format", recipes::name_of(c.format)},
        {"fp8_max", c.fp8_max},
        {"inputs", c.inputs},
        {"outputs", c.outputs},
        {"weights", c.weights}}},
      {"observer parameters", std::move(parameters)}};
  if (o.data[0] == text::kBuiltInText) identity["data"]["text"] = "built-in";  // a file's are among the files
  if (run.share.world_size > 1) identity["share"] = {{"rank", run.share.rank}, {"world-size", run.share.world_size}};
  return identity;
}

io::Json causes_of(const MeasureRun& run) {
  const io::Json identity = identity_of(run, /*blocks=*/false);
  io::Json causes = {{"data", identity["data"]},
                     {"options", identity["options"]},
                     {"parameters", identity["observer parameters"]},
                     {"files", io::Json::array()}};
  for (const char* place : {"model", "prefix"}) causes["options"].erase(place);
  if (!is_script(run.options.model))
    causes["data"].erase("batch");  // the same numbers in any, but of a model that keeps state
  for (const auto& [path, file] : identity["files"].items())
    causes["files"].push_back({std::filesystem::path(path).filename().string(), file});
  return causes;
}

std::string mark_of(const MeasureRun& run, const Share& share) {
  io::Json causes = causes_of(run);
  if (share.world_size > 1 && !share.shares.has_value())
    causes["share"] = {share.rank, share.world_size, run.options.batch_or_default()};
  return io::checksum_text(io::checksum(causes.dump(-1, ' ', true, io::Json::error_handler_t::replace)));
}

measure::StatsName stats_name(const MeasureRun& run) {
  return {run.calibration.prefix, run.calibration.observer, {}, run.calibration.rank};
}

bool has_mark(const measure::StatsName& name, const measure::MeasurementFile& file, const std::string& mark) {
  std::error_code error;
  if (!std::filesystem::exists(name.fingerprint(), error)) return false;
  const io::Json fingerprint = io::read_json(name.fingerprint());
  return fingerprint.is_object() && fingerprint.value("run", io::Json()) == mark &&
         fingerprint.value("measurement", io::Json()) == file.fingerprint();
}

std::string with_mark(const std::filesystem::path& path, const std::string& fingerprint, const std::string& mark) {
  io::Json json = io::parse_json(fingerprint, path.string());
  json["run"] = mark;
  return io::json_text(path, json, -1);
}

void mark_finished(const measure::StatsName& name, const std::string& mark) {
  const auto path = name.fingerprint();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  io::Json fingerprint = io::read_json(path);
  fingerprint["run"] = mark;
  io::write_json(path, fingerprint, -1);
}

std::optional<measure::MeasurementFile> finished_before(const MeasureRun& run) {
  const auto name = stats_name(run);
  std::error_code error;
  if (!std::filesystem::exists(name.fingerprint(), error) || !name.exists()) return std::nullopt;
  auto file = measure::read_measurements(name);
  if (!has_mark(name, file, run.mark)) return std::nullopt;
  return file;
}

namespace {

constexpr std::int64_t kSamples = 512, kTokens = 2048, kLeastTokens = 128 * 256;
constexpr double kOperations = 6e13;  // ten minutes at 100 GFLOP/s

std::int64_t parameters_of(const std::filesystem::path& model) {
  std::int64_t count = 0;
  const io::Checkpoint checkpoint(model);
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) count += checkpoint.info(i).numel();
  return count;
}

}  // namespace

std::int64_t default_samples(std::int64_t parameters, std::int64_t seq_len) {
  const double tokens = kOperations / (2.0 * static_cast<double>(std::max<std::int64_t>(parameters, 1)));
  const auto affordable = static_cast<std::int64_t>(std::min(tokens, static_cast<double>(kSamples * kTokens)));
  return std::clamp<std::int64_t>(std::max(affordable, kLeastTokens) / seq_len, 1, kSamples);
}

std::int64_t default_batch(std::int64_t seq_len) { return std::clamp<std::int64_t>(kTokens / seq_len, 1, 8); }

MeasureOptions sized(const MeasureOptions& options) {
  MeasureOptions o = options;
  o.sized_here = o.samples == 0;
  if (is_script(o.model)) {
    if (o.samples == 0) o.samples = 128;
    return o;
  }
  quant::require_model_folder(o.model);
  const std::int64_t context = models::read_config(o.model).values->shape.context;
  o.shorter = o.seq_len == 0;
  if (o.seq_len == 0) o.seq_len = std::clamp<std::int64_t>(context, 2, kTokens);
  if (o.samples == 0) o.samples = default_samples(parameters_of(o.model), o.seq_len);
  if (o.batch == 0) o.batch = default_batch(o.seq_len);
  return o;
}

std::string size_note(const MeasureOptions& o) {
  if (is_script(o.model)) return "";
  std::string note = " of " + std::to_string(o.seq_len) + " tokens";
  if (o.sized_here && o.samples < kSamples)
    note += " (at most " + std::to_string(o.samples) + " by default for a model of this size; --samples " +
            std::to_string(kSamples) + " for more)";
  return note;
}

}  // namespace fp8::commands
