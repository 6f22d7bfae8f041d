// SPDX-License-Identifier: Apache-2.0
// fp8 measure with one decoder layer in memory at a time:
//
//   embedding   rows that the data needs                    -> hidden states of all samples
//   layer i     loaded, watched; every batch through it     -> hidden states; freed            snapshot
//   head        norm and head, if it is measured: whole, or as many rows at a time as fit
//
// The batches are those of the whole model's run, so every operation sees the same tensors and every observer the same
// calls.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "fp8/configs/module_types.h"
#include "fp8/measure/calibration/staged.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/inputs/samples.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/tools/commands/measure/measure_shares.h"
#include "fp8/tools/commands/work/memory_budget.h"
#include "fp8/tools/models/hidden_states.h"
#include "fp8/tools/models/layer_stream.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kPartBytes = std::int64_t{8} << 20;  ///< of an embedding that is looked at in parts
/// Rows of the head at a time: a matrix product's result does not depend on how many columns it has, down to blocks
/// this wide.
constexpr std::int64_t kLeastRows = 256;

class BlockRun {
 public:
  /// The samples: those that are looked at, as this run's.
  BlockRun(MeasureRun& run, models::LayerStream& stream, Samples samples)
      : run_(run), stream_(stream), samples_(std::move(samples)), batch_(run.options.batch_or_default()) {}
  void execute();

 private:
  /// Calls f(first, count) for every batch; begin_samples() and Ctrl-C are seen to.
  template <class F>
  void for_batches(const F& f);
  std::int64_t needed_memory() const;
  void check_memory() const;
  void plan_memory();
  bool any_selected(const std::vector<measure::WeightModule>& modules) const;
  void embed();
  void look_at_embedding();
  void run_layer(std::int64_t layer);
  void run_head();
  void run_head_in_parts(std::size_t record);
  /// One pass over the head's rows; returns the batches with a NaN or Inf among their logits. skip: not run.
  std::set<std::int64_t> head_pass(std::size_t record, bool first_pass, const std::set<std::int64_t>& skip);
  at::Tensor hidden(std::int64_t first, std::int64_t count) const;
  void keep(std::int64_t first, std::int64_t count, const at::Tensor& h);
  void save_snapshot(std::int64_t next_layer);
  std::int64_t last_layer() const;

  MeasureRun& run_;
  std::shared_ptr<measure::StagedCalibration> session_;  ///< run_.session
  models::LayerStream& stream_;
  Samples samples_;
  std::int64_t batch_, layers_ = 0, head_rows_ = 0;  ///< layers that are run; head_rows_ 0: all at once
  std::int64_t steps_ = 0, total_ = 1;  ///< of the progress bar: a batch through a layer or a part of the head
  bool head_ = false, after_ = false;   ///< it is measured; so is something between it and the layers
  std::optional<models::HiddenStates> hidden_;
  std::optional<Progress> bar_;
};

template <class F>
void BlockRun::for_batches(const F& f) {
  for (std::int64_t first = 0, count = 0; first < samples_.count(); first += count) {
    check_interrupted();
    count = samples_.together(first, batch_);
    session_->begin_samples(first, count);
    timed_forward(run_, [&] { f(first, count); });
    bar_->update(std::min(total_, ++steps_));
  }
}

/// The last decoder layer that must run: all where the head is measured, else the last with a module that is.
std::int64_t BlockRun::last_layer() const {
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

/// A decoder layer and a batch in it, at its largest: the norm in f32 and its result, q, k, v; or gate, up and their
/// product.
std::int64_t BlockRun::needed_memory() const {
  const auto& shape = stream_.shape();
  const auto size = static_cast<std::int64_t>(c10::elementSize(stream_.loaded().dtype));
  const std::int64_t batch = std::min(batch_, samples_.count()), length = samples_.longest(), tokens = batch * length;
  std::int64_t work = tokens * (shape.hidden * (12 + 6 * size) + 3 * shape.inner * size) + (std::int64_t{8} << 20);
  if (run_.options.attention == models::AttentionKind::eager)
    work += batch * shape.heads * length * length * (8 + 2 * size);
  return stream_.layer_bytes() + work;
}

/// Throws UsageError where --memory-limit does not leave that.
void BlockRun::check_memory() const {
  const std::int64_t needed = needed_memory(), batch = std::min(batch_, samples_.count());
  const std::string what = fmt::format("one decoder layer with a batch of {} samples", batch);
  run_.require_memory(needed, what);
  if (needed > run_.memory)
    run_.context.warn(fmt::format("{} takes about {}, more than the {} that are free", what, human_bytes(needed),
                                  human_bytes(run_.memory)));
}

/// What stays in memory beside a layer and what a batch needs there; the rest goes to files, or is done in parts.
void BlockRun::plan_memory() {
  const auto& shape = stream_.shape();
  const auto size = static_cast<std::int64_t>(c10::elementSize(stream_.loaded().dtype));
  const std::int64_t tokens = std::min(batch_, samples_.count()) * samples_.longest();
  const std::int64_t columns = samples_.column(samples_.count()), states = columns * shape.hidden * size;
  const bool in_memory = needed_memory() + states <= run_.memory;
  hidden_.emplace(columns, shape.hidden * size, in_memory ? run_.snapshots.path() : run_.snapshots.folder(), in_memory);
  const std::int64_t left = run_.memory - (in_memory ? states : 0) - (std::int64_t{8} << 20);
  const std::int64_t per_row = (shape.hidden + 2 * tokens) * size;  // of the weight, and its column of the logits
  if (head_ && !after_ && session_->takes_parts() && per_row * shape.vocab > left)
    head_rows_ = std::min(shape.vocab, std::max(kLeastRows, left / 2 / per_row / kLeastRows * kLeastRows));
}

bool BlockRun::any_selected(const std::vector<measure::WeightModule>& modules) const {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const auto& m) { return session_->record_of(m.name).has_value(); });
}

void BlockRun::execute() {
  check_memory();
  const auto& model = *stream_.loaded().model;
  auto calibration = run_.calibration;
  if (!run_.progress.is_null()) calibration.resume = run_.progress.value("session", io::Json());
  measure::check_writable(calibration.prefix);
  session_ = measure::StagedCalibration::plan(measure::weight_modules(model), measure::op_nodes(model),
                                              std::move(calibration));
  run_.session = session_;
  run_.require_selection();
  head_ = session_->record_of(stream_.head_name()).has_value();
  after_ = any_selected(stream_.after_modules());
  layers_ = last_layer() + 1;
  plan_memory();
  std::int64_t batches = 0;
  for (std::int64_t first = 0; first < samples_.count(); ++batches) first += samples_.together(first, batch_);
  const std::int64_t rows = stream_.shape().vocab;
  total_ = std::max<std::int64_t>(1, batches * (layers_ + (!head_ && !after_ ? 0
                                                           : head_rows_ > 0  ? (rows + head_rows_ - 1) / head_rows_
                                                                             : 1)));
  bar_.emplace(run_.context, "measure", total_);
  std::int64_t layer = run_.progress.is_null() ? 0 : run_.progress.value("next_layer", std::int64_t{0});
  const runtime::ProfiledStage stage(run_.profiler.get(), "measure", total_ - layer * batches);
  if (run_.progress.is_null()) {
    embed();
  } else {
    hidden_->restore(run_.progress.value("hidden", io::Json()));
    steps_ = layer * batches;
  }
  for (; layer < layers_; ++layer) run_layer(layer);
  if (head_ || after_) run_head();
  run_.sources.check_unchanged();
}

at::Tensor BlockRun::hidden(std::int64_t first, std::int64_t count) const {
  const auto begin = samples_.column(first), columns = samples_.column(first + count) - begin;
  const auto h = at::empty({count, columns / count, stream_.shape().hidden},
                           at::TensorOptions(stream_.loaded().dtype).device(at::kHPU));
  hidden_->read(begin, columns, runtime::cpu_alias(h).mutable_data_ptr());
  return h;
}

void BlockRun::keep(std::int64_t first, std::int64_t count, const at::Tensor& h) {
  const auto begin = samples_.column(first);
  hidden_->write(begin, samples_.column(first + count) - begin, runtime::cpu_alias(h.contiguous()).const_data_ptr());
}

/// The embedding is measured: all of it is looked at, though only some of its rows are needed.
void BlockRun::look_at_embedding() {
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
  const std::int64_t row_bytes = weight.size(1) * static_cast<std::int64_t>(c10::elementSize(stream_.loaded().dtype));
  const std::int64_t rows = std::max<std::int64_t>(1, kPartBytes / row_bytes);
  for (std::int64_t first = 0; first < weight.size(0); first += rows) {
    check_interrupted();
    session_->look_at_part(modules[0], stream_.rows(false, first, std::min(rows, weight.size(0) - first)), first);
  }
}

void BlockRun::embed() {
  look_at_embedding();
  const auto resident = stream_.load_before();
  const auto modules = stream_.before_modules();
  session_->enter(modules);
  for (std::int64_t first = 0, count = 0; first < samples_.count(); first += count) {
    check_interrupted();
    count = samples_.together(first, batch_);
    session_->begin_samples(first, count);
    const auto batch = samples_.batch(first, count);
    keep(first, count, stream_.embed(batch.ids, /*load=*/false, batch.source));
  }
  session_->leave(modules);
  hidden_->advance();
}

void BlockRun::run_layer(std::int64_t layer) {
  run_.sources.check_unchanged();
  {
    const auto resident = stream_.load_layer(layer);
    const auto modules = stream_.layer_modules(layer);
    session_->enter(modules);
    for_batches([&](std::int64_t first, std::int64_t count) {
      keep(first, count, stream_.run_layer(layer, hidden(first, count), samples_.batch(first, count).source));
    });
    session_->leave(modules);
  }
  trim_heap();
  hidden_->advance();
  if (run_.snapshots.due()) save_snapshot(layer + 1);
}

void BlockRun::save_snapshot(std::int64_t next_layer) {
  run_.sources.check_unchanged();  // a snapshot of two models is worth nothing
  io::Json hidden;
  const bool saved = run_.snapshots.save([&]() -> io::Json {
    run_.snapshots.folder();
    io::Json session = session_->snapshot();
    if (session.is_null()) return nullptr;
    hidden = hidden_->save();
    return {{"next_layer", next_layer},
            {"hidden", hidden},
            {"session", std::move(session)},
            {"forward_seconds", run_.forward_seconds}};
  });
  if (saved) hidden_->keep_only(hidden);
}

void BlockRun::run_head() {
  run_.sources.check_unchanged();
  if (head_rows_ > 0) return run_head_in_parts(*session_->record_of(stream_.head_name()));
  const auto resident = stream_.load_head();
  auto modules = stream_.after_modules();
  if (head_)
    for (auto& m : stream_.head_modules()) modules.push_back(std::move(m));
  session_->enter(modules);
  for_batches([&](std::int64_t first, std::int64_t count) {
    const auto n = stream_.run_norm(hidden(first, count), samples_.batch(first, count).source);
    if (head_) stream_.run_head(n);
  });
  session_->leave(modules);
}

std::set<std::int64_t> BlockRun::head_pass(std::size_t record, bool first_pass, const std::set<std::int64_t>& skip) {
  const auto vocabulary = stream_.shape().vocab;
  auto whole = stream_.head_modules()[0];
  whole.weight =
      whole.weight.detach();  // the placeholder, which has the sizes, and keeps them when the module gets rows
  std::set<std::int64_t> bad;
  for (std::int64_t row = 0; row < vocabulary; row += head_rows_) {
    const std::int64_t rows = std::min(head_rows_, vocabulary - row);
    const auto resident = stream_.load_head(row, rows);
    if (first_pass) session_->look_at_part(whole, stream_.head_modules()[0].weight, row);
    for_batches([&](std::int64_t first, std::int64_t count) {
      if (skip.count(first) != 0) return;
      const auto n = stream_.run_norm(hidden(first, count), samples_.batch(first, count).source);
      if (first_pass && row == 0) session_->observe_input(record, n);
      if (!session_->observe_output_part(record, stream_.head_scores(n), row, vocabulary, bad.count(first) == 0))
        bad.insert(first);
    });
    trim_heap();
  }
  return bad;
}

/// Logits with a NaN or Inf are not shown to observers, not even their finite parts: the pass is made again without
/// them.
void BlockRun::run_head_in_parts(std::size_t record) {
  const auto bad = head_pass(record, /*first_pass=*/true, {});
  if (bad.empty()) return;
  session_->forget_outputs(record);
  head_pass(record, /*first_pass=*/false, bad);
}

}  // namespace

void measure_blocks(MeasureRun& run) {
  const auto& o = run.options;
  models::LayerStream stream(
      o.model, {.dtype = compute_dtype(run.context), .device = resolve_device(run.context), .attention = o.attention});
  const Samples samples = load_samples(o, o.model, stream.shape());
  const auto& unused = stream.loaded().unused;
  if (!unused.empty())
    run.context.warn(
        fmt::format("{}: {} tensors are not used, the first is '{}'", o.model.string(), unused.size(), unused[0]));
  const Forwards forwards(samples.count(),
                          [&](std::int64_t first) { return samples.together(first, o.batch_or_default()); });
  for_samples(run, forwards, [&](MeasureRun& part, SampleRange range) {
    BlockRun(part, stream, samples.part(range.first, range.count)).execute();
  });
}

}  // namespace fp8::commands
