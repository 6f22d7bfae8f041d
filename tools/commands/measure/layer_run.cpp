// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/layer_run.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fp8/configs/module_types.h"
#include "fp8/tools/commands/inputs/torch_scope.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kPartBytes = std::int64_t{8} << 20;  ///< of an embedding that is looked at in parts

}  // namespace

models::LoadOptions stream_options(const MeasureRun& run) {
  return {
      .dtype = compute_dtype(run.context), .device = resolve_device(run.context), .attention = run.options.attention};
}

void warn_unused(const MeasureRun& run, const models::LayerStream& stream) {
  for (const auto& warning : stream.loaded().warnings) run.context.warn(run.options.model.string() + ": " + warning);
  const auto& unused = stream.loaded().unused;
  if (!unused.empty())
    run.context.warn(fmt::format("{}: {} tensors are not used, the first is '{}'", run.options.model.string(),
                                 unused.size(), unused[0]));
}

LayerRun::LayerRun(MeasureRun& run, models::LayerStream& stream, Samples samples)
    : run_(run), stream_(stream), samples_(std::move(samples)), batch_(run.options.batch_or_default()) {}

void LayerRun::plan(measure::CalibrationOptions calibration) {
  const auto& model = *stream_.loaded().model;
  if (!calibration.prefix.empty()) measure::check_writable(calibration.prefix);
  session_ = measure::StagedCalibration::plan(measure::weight_modules(model), measure::op_nodes(model),
                                              std::move(calibration));
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
    for (const auto& node : measure::op_nodes(*stream_.loaded().model)) {
      if (configs::type_is(node.type, &configs::KindInfo::cache) && caches(node.name)) measured.push_back(node.name);
    }
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
