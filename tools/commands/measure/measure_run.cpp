// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/measure_run.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <system_error>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/io/base/checksum.h"
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

constexpr std::int64_t kSamples = 512, kLeastTokens = 128 * 256;
constexpr double kOperations = 6e13;  // ten minutes at 100 GFLOP/s

std::int64_t parameters_of(const std::filesystem::path& model) {
  std::int64_t count = 0;
  const io::Checkpoint checkpoint(model);
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) count += checkpoint.info(i).numel();
  return count;
}

constexpr std::int64_t kPartBytes = std::int64_t{8} << 20;  ///< of an embedding that is looked at in parts

}  // namespace

std::int64_t default_samples(std::int64_t parameters, std::int64_t seq_len) {
  const double tokens = kOperations / (2.0 * static_cast<double>(std::max<std::int64_t>(parameters, 1)));
  const auto affordable =
      static_cast<std::int64_t>(std::min(tokens, static_cast<double>(kSamples * kTokensPerForward)));
  return std::clamp<std::int64_t>(std::max(affordable, kLeastTokens) / seq_len, 1, kSamples);
}

MeasureOptions sized(const MeasureOptions& options) {
  MeasureOptions o = options;
  o.sized_here = o.samples == 0;
  if (is_script(o.model)) {
    if (o.samples == 0) o.samples = 128;
    return o;
  }
  quant::require_model_folder(o.model);
  const std::int64_t context = models::read_config(o.model).values->shape.context;
  o.fit_length(context);
  if (o.samples == 0) o.samples = default_samples(parameters_of(o.model), o.seq_len);
  if (o.batch == 0) o.batch = default_batch(o.seq_len);
  return o;
}

std::int64_t warn_of_lacking(const MeasureRun& run, std::int64_t count) {
  const auto& o = run.options;
  if (o.sized_here || count * 10 >= o.samples * 9) return 0;
  run.context.warn(
      fmt::format("--samples: found {}, but the data gives {}; the measurement says so, and quantize warns of it",
                  o.samples, count));
  return o.samples - count;
}

std::string size_note(const MeasureOptions& o) {
  if (is_script(o.model)) return "";
  std::string note = " of " + std::to_string(o.seq_len) + " tokens";
  if (o.sized_here && o.samples < kSamples)
    note += " (at most " + std::to_string(o.samples) + " by default for a model of this size; --samples " +
            std::to_string(kSamples) + " for more)";
  return note;
}

models::LoadOptions stream_options(const MeasureRun& run) {
  return {
      .dtype = compute_dtype(run.context), .device = resolve_device(run.context), .attention = run.options.attention};
}

LayerRun::LayerRun(MeasureRun& run, models::LayerStream& stream, Samples samples)
    : run_(run), stream_(stream), samples_(std::move(samples)), batch_(run.options.batch_or_default()) {}

void LayerRun::plan(measure::CalibrationOptions calibration) {
  const auto& model = *stream_.loaded().model;
  if (!calibration.prefix.empty()) measure::check_writable(calibration.prefix);
  session_ = measure::StagedCalibration::plan(measure::weight_modules(model), measure::op_nodes(model),
                                              std::move(calibration));
  session_->plan_samples(run_.planned);
  run_.session = session_;
  run_.require_selection();
  head_ = session_->record_of(stream_.head_name()).has_value();
  const auto after = stream_.after_modules();
  after_ =
      std::any_of(after.begin(), after.end(), [&](const auto& m) { return session_->record_of(m.name).has_value(); });
  layers_ = last_layer() + 1;
}

/// The last decoder layer that must run: all where the head is measured, else the last with a module that is.
std::int64_t LayerRun::last_layer() const {
  std::int64_t last = stream_.shape().layers - 1;
  if (head_ || after_) return last;
  auto measured = session_->result().selected;
  if (const auto& caches = run_.calibration.kv_cache) {  // watched beside the selected modules
    for (const auto& node : measure::op_nodes(*stream_.loaded().model))
      if (configs::type_is(node.type, &configs::KindInfo::cache) && caches(node.name)) measured.push_back(node.name);
  }
  const auto has_none = [&](std::int64_t layer) {
    const std::string prefix = stream_.layer_name(layer) + ".";
    return std::none_of(measured.begin(), measured.end(), [&](const auto& name) { return name.starts_with(prefix); });
  };
  while (last >= 0 && has_none(last)) --last;
  return last;
}

std::int64_t LayerRun::batches() const {
  std::int64_t batches = 0;
  for (std::int64_t first = 0; first < samples_.count(); ++batches) first += samples_.together(first, batch_);
  return batches;
}

at::Tensor LayerRun::empty_hidden(std::int64_t first, std::int64_t count) const {
  const std::int64_t columns = samples_.column(first + count) - samples_.column(first);
  return at::empty({count, columns / count, stream_.shape().hidden},
                   at::TensorOptions(stream_.loaded().dtype).device(at::kHPU));
}

std::int64_t LayerRun::element_bytes() const {
  return static_cast<std::int64_t>(c10::elementSize(stream_.loaded().dtype));
}

std::int64_t LayerRun::batch_tokens() const { return std::min(batch_, samples_.count()) * samples_.longest(); }

std::int64_t LayerRun::batch_bytes() const {
  const auto& shape = stream_.shape();
  const std::int64_t size = element_bytes(), tokens = batch_tokens();
  std::int64_t work = tokens * (shape.hidden * (12 + 6 * size) + 3 * shape.inner * size) + (std::int64_t{8} << 20);
  if (run_.options.attention == models::AttentionKind::eager)
    work += tokens * shape.heads * samples_.longest() * (8 + 2 * size);
  return work;
}

void LayerRun::look_at_embedding() {
  const auto modules = stream_.embedding_modules();
  if (modules.empty() || !session_->record_of(modules[0].name).has_value()) return;
  const auto& weight = modules[0].weight;
  if (!session_->takes_parts()) {
    auto whole = modules[0];
    whole.weight = stream_.rows(/*head=*/false, 0, weight.size(0));
    session_->enter({whole});
    session_->leave({whole});
    return;
  }
  const std::int64_t rows = std::max<std::int64_t>(1, kPartBytes / (weight.size(1) * element_bytes()));
  for (std::int64_t first = 0; first < weight.size(0); first += rows) {
    check_interrupted();
    session_->look_at_part(modules[0], stream_.rows(false, first, std::min(rows, weight.size(0) - first)), first);
  }
}

std::vector<measure::WeightModule> LayerRun::end_modules() const {
  auto modules = stream_.after_modules();
  if (head_)
    for (auto& m : stream_.head_modules()) modules.push_back(std::move(m));
  return modules;
}

}  // namespace fp8::commands
