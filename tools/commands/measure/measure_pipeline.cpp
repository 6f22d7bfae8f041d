// SPDX-License-Identifier: Apache-2.0
// Every rank loads its layers and keeps them; all batches go through all ranks, each of which works on another batch:
//
//   rank 0     rows of the embedding, layers [0, a)    batch k + 2  --hidden states, by c10d-->
//   rank 1     layers [a, b)                           batch k + 1  -->
//   last rank  layers [b, n), norm and head            batch k
//
// Each rank computes the tensors that layers share in one forward (rotary angles, masks, distances) from the hidden
// states' sizes, as streamed layers do. At the end rank 0 receives the other ranks' observers as snapshots, and resumes
// from all of them.
#include <fmt/format.h>

#include <deque>

#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/tools/commands/measure/measure_run.h"

namespace fp8::commands {
namespace {

namespace distributed = runtime::distributed;

/// Batches that a rank may be ahead of the next one; as many hidden states wait in its memory.
constexpr std::size_t kAhead = 2;

class PipelineRun : LayerRun {
 public:
  PipelineRun(MeasureRun& run, models::LayerStream& stream, Samples samples, distributed::ProcessGroup& group)
      : LayerRun(run, stream, std::move(samples)),
        group_(group),
        rank_(group.rank()),
        last_(rank_ + 1 == group.size()) {}
  void execute() {
    auto calibration = run_.calibration;
    if (rank_ > 0) calibration.prefix.clear();  // rank 0 alone writes
    plan(std::move(calibration));
    refuse_observer();
    divide();
    check_memory();
    load();
    flow();
    session_->leave(watched_);
    resident_.clear();
    run_.sources.check_unchanged();
    collect();
  }

 private:
  /// Hidden states on their way here.
  struct Incoming {
    at::Tensor h;
    distributed::Transfer transfer;
  };
  void refuse_observer() const {
    if (session_->keeps_states()) return;
    io::fail<io::Error>(
        "observer {}: what it keeps of several processes can't be put together (--pipeline), allowed: {}",
        io::in_quotes(run_.calibration.observer),
        io::joined(measure::observer_names(
            [](const measure::ObserverType& type) { return type.kept != measure::Kept::tensors; })));
  }
  void divide() {
    if (group_.size() > layers_)
      io::fail<UsageError>(
          "--pipeline: found {} processes for the {} decoder layers that have to run, allowed: as "
          "many as layers, or fewer",
          group_.size(), layers_);
    std::vector<std::int64_t> bytes;
    for (std::int64_t i = 0; i < layers_; ++i) bytes.push_back(stream_.layer_bytes(i));
    starts_ = layer_ranges(bytes, head_ || after_ ? stream_.head_bytes() : 0, group_.size());
  }
  /// This rank's layers and the head, a batch in them and its logits, and hidden states that come and go.
  std::int64_t needed_memory() const {
    const auto& shape = stream_.shape();
    std::int64_t bytes = batch_bytes();
    for (std::int64_t i = start(rank_); i < start(rank_ + 1); ++i) bytes += stream_.layer_bytes(i);
    if (last_ && (head_ || after_))
      bytes += stream_.head_bytes() + 2 * batch_tokens() * shape.outputs() * element_bytes();
    return bytes + (static_cast<std::int64_t>(kAhead) + 1) * batch_tokens() * shape.hidden * element_bytes();
  }
  /// Rank 0 speaks for all.
  void check_memory() const {
    const std::int64_t needed = needed_memory();
    const double mine[] = {static_cast<double>(needed), static_cast<double>(run_.memory)};
    const auto all = distributed::all_gather(mine, group_);
    const auto what = [&](std::int64_t rank) {
      return fmt::format("the {} decoder layers of rank {} with a batch of {} samples", start(rank + 1) - start(rank),
                         rank, std::min(batch_, samples_.count()));
    };
    for (std::size_t rank = 0; rank < all.size() / 2; ++rank)
      if (all[2 * rank] > all[2 * rank + 1])
        run_.context.warn(fmt::format("{} take about {}, more than the {} that are free there",
                                      what(static_cast<std::int64_t>(rank)),
                                      human_bytes(static_cast<std::int64_t>(all[2 * rank])),
                                      human_bytes(static_cast<std::int64_t>(all[2 * rank + 1]))));
    run_.require_memory(needed, what(rank_));
  }
  void load() {
    run_.sources.check_unchanged();
    if (rank_ == 0) {
      look_at_embedding();
      auto resident = stream_.load_before();
      keep(std::move(resident), stream_.before_modules());
    }
    for (std::int64_t i = start(rank_); i < start(rank_ + 1); ++i) {
      check_interrupted();
      auto resident = stream_.load_layer(i);
      keep(std::move(resident), stream_.layer_modules(i));
    }
    if (last_ && (head_ || after_)) {
      auto resident = stream_.load_head();
      keep(std::move(resident), end_modules());
    }
    trim_heap();
  }
  void keep(models::Resident resident, const std::vector<measure::WeightModule>& modules) {
    resident_.push_back(std::move(resident));
    session_->enter(modules);
    watched_.insert(watched_.end(), modules.begin(), modules.end());
  }
  void flow() {
    const std::int64_t total = std::max<std::int64_t>(1, batches());
    const runtime::ProfiledStage stage(run_.profiler.get(), "measure", total);
    Progress bar(run_.context, "measure", total);
    std::int64_t done = 0;
    std::optional<Incoming> next;
    if (rank_ > 0) next.emplace(expect(0));
    std::deque<distributed::Transfer> sent;
    for_batches([&](std::int64_t first, std::int64_t count) {
      at::Tensor h;
      if (next.has_value()) {
        next->transfer.wait();
        h = std::move(next->h);
        next.reset();
        if (first + count < samples_.count()) next.emplace(expect(first + count));
      }
      timed_forward(run_, [&] { h = run_batch(first, count, std::move(h)); });
      if (!last_) {
        if (sent.size() == kAhead) {
          sent.front().wait();
          sent.pop_front();
        }
        sent.push_back(distributed::send(h.contiguous(), static_cast<int>(rank_) + 1, group_));
      }
      bar.update(++done);
    });
    for (auto& one : sent) one.wait();
  }
  Incoming expect(std::int64_t first) const {
    const at::Tensor h = empty_hidden(first, samples_.together(first, batch_));
    return {h, distributed::receive(h, static_cast<int>(rank_) - 1, group_)};
  }
  at::Tensor run_batch(std::int64_t first, std::int64_t count, at::Tensor h) {
    const auto batch = samples_.batch(first, count);
    if (rank_ == 0) h = stream_.embed(batch.ids, /*load=*/false, batch.source);
    h = stream_.run_layers(start(rank_), start(rank_ + 1), std::move(h), batch.source);
    if (last_ && (head_ || after_)) {
      const auto n = stream_.run_norm(h, batch.source);
      if (head_) stream_.run_head(n);
    }
    return h;
  }
  /// Sends every rank's session to rank 0, which resumes from all of them.
  void collect() {
    io::Json mine = {{"layers", {start(rank_), start(rank_ + 1)}},
                     {"forward_seconds", run_.forward_seconds},
                     {"peak_rss_bytes", peak_resident_bytes()},
                     {"session", session_->snapshot()}};
    if (rank_ > 0) return distributed::send_text(mine.dump(), 0, group_);
    std::vector<io::Json> sessions;
    run_.ranks = io::Json::array();
    run_.forward_seconds = 0;
    for (int rank = 0; rank < group_.size(); ++rank) {
      io::Json part = rank == 0 ? std::move(mine)
                                : io::parse_json(distributed::receive_text(rank, group_), fmt::format("rank {}", rank));
      sessions.push_back(std::move(part.at("session")));
      part.erase("session");
      run_.forward_seconds += part.at("forward_seconds").get<double>();
      run_.ranks.push_back(std::move(part));
    }
    std::set<std::string> at_end;
    for (const auto& m : end_modules()) at_end.insert(m.name);
    auto calibration = run_.calibration;
    calibration.resume =
        measure::join_snapshots(sessions, [&](const std::string& module) { return owner(module, at_end); });
    session_->discard();
    plan(std::move(calibration));
  }
  /// Returns the rank that runs a module; at_end: the modules behind the layers.
  std::size_t owner(const std::string& module, const std::set<std::string>& at_end) const {
    const auto ranks = starts_.size() - 1;
    if (at_end.contains(module)) return ranks - 1;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (std::int64_t i = starts_[rank]; i < starts_[rank + 1]; ++i)
        if (module.starts_with(stream_.layer_name(i) + ".")) return rank;
    return 0;
  }
  std::int64_t start(std::int64_t rank) const { return starts_[static_cast<std::size_t>(rank)]; }

  distributed::ProcessGroup& group_;
  const std::int64_t rank_;
  const bool last_;
  std::vector<std::int64_t> starts_;        ///< of each rank's layers, and the end
  std::vector<models::Resident> resident_;  ///< all that this rank runs
  std::vector<measure::WeightModule> watched_;
};

/// Returns the facts that all ranks must share; the paths of their files may differ.
io::Json facts_of(const MeasureRun& run, const Samples& samples) {
  io::Json facts = causes_of(run);
  facts["files"] = run.sources.ends();
  facts["data"]["batch"] = run.options.batch_or_default();
  facts["samples"] = samples.fingerprint();
  return with_program(std::move(facts));
}

}  // namespace

void measure_in_pipeline(MeasureRun& run, const std::function<void()>& report) {
  const auto& o = run.options;
  auto options = distributed::group_options_from_environment();
  options.timeout = std::chrono::seconds(o.rank_timeout);
  if (options.rank > 0) run.context.quiet = true;
  const auto group = distributed::make_gloo_group(options);
  if (options.rank == 0) run.snapshots.begin(/*resume=*/false);
  models::LayerStream stream(o.model, stream_options(run));
  warn_of(stream.loaded(), o.model, run.context);
  const Samples samples = load_samples(o, o.model, stream.shape());
  distributed::check_same(facts_of(run, samples), *group, "measure");
  PipelineRun(run, stream, samples.part(0, samples.count()), *group).execute();
  const auto write = [&] {
    report();
    return std::string();
  };
  distributed::from_first(write, *group);
}

}  // namespace fp8::commands
