// SPDX-License-Identifier: Apache-2.0
// fp8 measure with one decoder layer in memory at a time:
//
//   embedding   rows that the data needs                    -> hidden states of all samples
//   layer i     loaded, watched; every batch through it     -> hidden states; freed            snapshot
//   head        norm and head, if it is measured: whole, or as many rows at a time as fit
#include <fmt/format.h>

#include "fp8/runtime/device/block.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/tools/models/hidden_states.h"

namespace fp8::commands {
namespace {

/// Rows of the head at a time: a matrix product's result does not depend on how many columns it has, down to blocks
/// this wide.
constexpr std::int64_t kLeastRows = 256;

class BlockRun : LayerRun {
 public:
  BlockRun(MeasureRun& run, models::LayerStream& stream, Samples samples) : LayerRun(run, stream, std::move(samples)) {}
  void execute() {
    check_memory();
    auto calibration = run_.calibration;
    if (!run_.progress.is_null()) calibration.resume = run_.progress.value("session", io::Json());
    plan(std::move(calibration));
    plan_memory();
    const std::int64_t rows = stream_.shape().vocab, batches = this->batches();
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

 private:
  /// for_batches(), timed and shown.
  template <class F>
  void run_batches(const F& f) {
    for_batches([&](std::int64_t first, std::int64_t count) {
      timed_forward(run_, [&] { f(first, count); });
      bar_->update(std::min(total_, ++steps_));
    });
  }
  /// A decoder layer and a batch in it.
  std::int64_t needed_memory() const { return stream_.layer_bytes() + batch_bytes(); }
  /// Throws UsageError where --memory-limit does not leave that.
  void check_memory() const {
    const std::int64_t needed = needed_memory(), batch = std::min(batch_, samples_.count());
    const std::string what = fmt::format("one decoder layer with a batch of {} samples", batch);
    run_.require_memory(needed, what);
    if (needed > run_.memory)
      run_.context.warn(fmt::format("{} takes about {}, more than the {} that are free", what, human_bytes(needed),
                                    human_bytes(run_.memory)));
  }
  /// Keeps the hidden states in memory if they fit beside a layer and its batch, else in files; splits the head's rows
  /// if its logits do not fit.
  void plan_memory() {
    const auto& shape = stream_.shape();
    const std::int64_t size = element_bytes(), tokens = batch_tokens();
    const std::int64_t columns = samples_.column(samples_.count()), states = columns * shape.hidden * size;
    const bool in_memory = needed_memory() + states <= run_.memory;
    hidden_.emplace(columns, shape.hidden * size, in_memory ? run_.snapshots.path() : run_.snapshots.folder(),
                    in_memory);
    say_forecast(forward_work("measure", *stream_.loaded().model, columns, samples_.longest(),
                              run_.process + needed_memory() + (in_memory ? states : 0)),
                 stream_.loaded().dtype, run_.context);
    const std::int64_t left = run_.memory - (in_memory ? states : 0) - (std::int64_t{8} << 20);
    const std::int64_t per_row = (shape.hidden + 2 * tokens) * size;  // of the weight, and its column of the logits
    if (head_ && !after_ && session_->takes_parts() && per_row * shape.vocab > left)
      head_rows_ = std::min(shape.vocab, std::max(kLeastRows, left / 2 / per_row / kLeastRows * kLeastRows));
  }
  void embed() {
    look_at_embedding();
    const auto resident = stream_.load_before();
    const auto modules = stream_.before_modules();
    session_->enter(modules);
    for_batches([&](std::int64_t first, std::int64_t count) {
      const auto batch = samples_.batch(first, count);
      keep(first, count, stream_.embed(batch.ids, /*load=*/false, batch.source));
    });
    session_->leave(modules);
    hidden_->advance();
  }
  void run_layer(std::int64_t layer) {
    run_.sources.check_unchanged();
    {
      const auto resident = stream_.load_layer(layer);
      const auto modules = stream_.layer_modules(layer);
      session_->enter(modules);
      run_batches([&](std::int64_t first, std::int64_t count) {
        keep(first, count, stream_.run_layer(layer, hidden(first, count), samples_.batch(first, count).source));
      });
      session_->leave(modules);
    }
    trim_heap();
    hidden_->advance();
    if (run_.snapshots.due()) save_snapshot(layer + 1);
  }
  void run_head() {
    run_.sources.check_unchanged();
    if (head_rows_ > 0) return run_head_in_parts(*session_->record_of(stream_.head_name()));
    const auto resident = stream_.load_head();
    const auto modules = end_modules();
    session_->enter(modules);
    run_batches([&](std::int64_t first, std::int64_t count) {
      const auto n = stream_.run_norm(hidden(first, count), samples_.batch(first, count).source);
      if (head_) stream_.run_head(n);
    });
    session_->leave(modules);
  }
  /// Logits with a NaN or Inf are not shown to observers, not even their finite parts: the pass is made again without
  /// them.
  void run_head_in_parts(std::size_t record) {
    const auto bad = head_pass(record, /*first_pass=*/true, {});
    if (bad.empty()) return;
    session_->forget_outputs(record);
    head_pass(record, /*first_pass=*/false, bad);
  }
  /// One pass over the head's rows; returns the batches with a NaN or Inf among their logits. skip: not run.
  std::set<std::int64_t> head_pass(std::size_t record, bool first_pass, const std::set<std::int64_t>& skip) {
    const auto vocabulary = stream_.shape().vocab;
    auto whole = stream_.head_modules()[0];
    whole.weight =
        whole.weight.detach();  // the placeholder, which has the sizes, and keeps them when the module gets rows
    std::set<std::int64_t> bad;
    for (std::int64_t row = 0; row < vocabulary; row += head_rows_) {
      const std::int64_t rows = std::min(head_rows_, vocabulary - row);
      const auto resident = stream_.load_head(row, rows);
      if (first_pass) session_->look_at_part(whole, stream_.head_modules()[0].weight, row);
      run_batches([&](std::int64_t first, std::int64_t count) {
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
  at::Tensor hidden(std::int64_t first, std::int64_t count) const {
    const auto begin = samples_.column(first);
    const auto h = empty_hidden(first, count);
    hidden_->read(begin, samples_.column(first + count) - begin, runtime::cpu_alias(h).mutable_data_ptr());
    return h;
  }
  void keep(std::int64_t first, std::int64_t count, const at::Tensor& h) {
    const auto begin = samples_.column(first);
    hidden_->write(begin, samples_.column(first + count) - begin, runtime::cpu_alias(h.contiguous()).const_data_ptr());
  }
  void save_snapshot(std::int64_t next_layer) {
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

  std::int64_t head_rows_ = 0;          ///< 0: all at once
  std::int64_t steps_ = 0, total_ = 1;  ///< of the progress bar: a batch through a layer or a part of the head
  std::optional<models::HiddenStates> hidden_;
  std::optional<Progress> bar_;
};

}  // namespace

void measure_blocks(MeasureRun& run) {
  const auto& o = run.options;
  models::LayerStream stream(o.model, stream_options(run));
  const Samples samples = load_samples(o, o.model, stream.shape());
  warn_of(stream.loaded(), o.model, run.context);
  const Forwards forwards(samples.count(),
                          [&](std::int64_t first) { return samples.together(first, o.batch_or_default()); });
  for_samples(run, forwards, [&](MeasureRun& part, SampleRange range) {
    BlockRun(part, stream, samples.part(range.first, range.count)).execute();
  });
}

}  // namespace fp8::commands
