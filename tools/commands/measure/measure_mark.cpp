// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/measure_mark.h"

#include <filesystem>
#include <system_error>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"

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

}  // namespace fp8::commands
