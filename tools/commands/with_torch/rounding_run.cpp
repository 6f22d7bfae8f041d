// SPDX-License-Identifier: Apache-2.0
// round_weights(): all samples through one layer after the other.
#include <ATen/core/grad_mode.h>

#include <cerrno>
#include <cstdlib>

#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/model/layer_rounding.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/quantize/rounding.h"
#include "fp8/tools/models/hidden_states.h"
#include "fp8/tools/models/layer_stream.h"
#include "fp8/tools/models/registry.h"

namespace fp8::commands {
namespace {

using WeightModules = std::vector<measure::WeightModule>;
using Clock = std::chrono::steady_clock;

/// A folder for hidden states, which goes when they are no longer needed.
class HiddenFolder {
 public:
  explicit HiddenFolder(const std::filesystem::path& in) : path_((in / "hidden-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) io::fail_errno(in, "make a folder in it", errno);
  }
  ~HiddenFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  HiddenFolder(const HiddenFolder&) = delete;
  HiddenFolder& operator=(const HiddenFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class RoundingRun {
 public:
  RoundingRun(const std::filesystem::path& model, const quant::PlanOptions& plan, const RoundingOptions& options,
              const Context& context)
      : options_(options),
        context_(context),
        stream_(model, {.dtype = compute_dtype(context), .device = resolve_device(context)}),
        samples_(load_samples(options.data.for_rounding(stream_.shape().context), model, stream_.shape())),
        sources_(model, {}),
        plan_(plan_of_checkpoint(model, plan)),
        codes_(std::make_shared<quant::RoundedCodes>(options.folder, identity(plan))) {
    warn_of(stream_.loaded(), model, context);
  }

  std::shared_ptr<quant::RoundedCodes> run() {
    require_layers();
    if (stands()) return codes_;
    if (options_.judged) require_more_samples();
    for (;;) {
      if (options_.others.has_value() && !options_.collect)
        leases_.emplace(options_.folder, io::Json{{"rounding", codes_->identity()}}, *options_.others);
      if (leases_.has_value() && stands()) return codes_;  // joined before this process made the folder anew
      try {
        return collected(round_all());
      } catch (const std::exception&) {
        held_.clear();
        if (!leases_.has_value() || !leases_->removed()) throw;  // else others have joined the shares: it may stand now
      }
    }
  }

 private:
  bool stands() const { return options_.finished && options_.finished(codes_->identity()); }

  /// One behind the layers: the head.
  std::int64_t head() const { return stream_.shape().layers; }
  std::string name_of(std::int64_t layer) const {
    return layer == head() ? stream_.head_name() : stream_.layer_name(layer);
  }
  WeightModules modules_of(std::int64_t layer) const {
    return layer == head() ? stream_.head_modules() : stream_.layer_modules(layer);
  }

  std::vector<std::int64_t> layers_to_round() const {
    std::vector<std::int64_t> layers;
    for (std::int64_t layer = 0; layer <= head(); ++layer)
      if (!plan_of(modules_of(layer)).modules.empty()) layers.push_back(layer);
    return layers;
  }

  /// Those that are planned, when each of them has its file.
  std::vector<std::int64_t> round_all() {
    auto layers = layers_to_round();
    missing_ = layers;
    since_ = Clock::now();
    for (drop_finished(); !missing_.empty(); drop_finished()) {
      if (options_.collect)
        io::fail(options_.folder,
                 "has no codes of {} layers, the first is {}; the processes that round them leave them "
                 "there until all is joined",
                 missing_.size(), name_of(missing_.front()));
      if (take_one())
        pass();
      else
        wait();
    }
    return layers;
  }

  void drop_finished() {
    const auto gone = std::erase_if(missing_, [&](std::int64_t layer) { return codes_->has(name_of(layer)); });
    if (gone > 0) since_ = Clock::now();
  }

  /// True if this process is to round a layer that has no codes: one that no other process has taken.
  bool take_one() {
    if (!leases_.has_value()) return true;
    std::vector<std::string> pieces;
    for (const std::int64_t layer : missing_) pieces.push_back(std::to_string(layer));
    auto lease = leases_->take(pieces);
    if (lease == nullptr) return false;
    const std::int64_t layer = std::stoll(lease->piece());
    held_[layer] = std::move(lease);
    return true;
  }

  /// The same of one layer, in passing.
  bool take(std::int64_t layer) {
    if (!leases_.has_value() || held_.contains(layer)) return !codes_->has(name_of(layer));
    if (codes_->has(name_of(layer))) return false;
    auto lease = leases_->take({std::to_string(layer)});
    if (lease == nullptr || codes_->has(name_of(layer))) return false;  // its file appeared in between
    held_[layer] = std::move(lease);
    return true;
  }

  /// Until files of the others are there.
  void wait() {
    check_interrupted();
    if (leases_->removed()) io::fail(options_.folder, "was removed while this process waited for layers in it");
    if (options_.wait > 0 && std::chrono::duration<double>(Clock::now() - since_).count() > options_.wait)
      io::fail(options_.folder, "no news for {} s (--join wait) of {} layers that others round, the first is {} ({})",
               options_.wait, missing_.size(), name_of(missing_.front()),
               leases_->holder_of(std::to_string(missing_.front())));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }

  /// The codes of all layers, in their order whoever rounded them.
  std::shared_ptr<quant::RoundedCodes> collected(const std::vector<std::int64_t>& layers) {
    const auto codes = std::make_shared<quant::RoundedCodes>(*codes_);
    for (const std::int64_t layer : layers) codes->add(name_of(layer));
    sources_.check_unchanged();
    warn_of_few_tokens(*codes);
    return codes;
  }

  /// A budget judges on what stands behind the samples that the rounding takes.
  void require_more_samples() const {
    DataOptions behind = options_.data.for_rounding(stream_.shape().context);
    behind.skip += samples_.count();
    try {
      load_samples(behind, stream_.loaded().folder, stream_.shape());
    } catch (const io::Error& error) {
      io::fail<io::Error>("--budget judges on the text behind the {} samples that the rounding takes: {}",
                          samples_.count(), error.what());
    }
  }

  /// All layers up to the last that has no codes; those that this process can take are rounded.
  void pass() {
    const std::int64_t columns = samples_.column(samples_.count()), last = missing_.back(),
                       bytes = stream_.shape().hidden * static_cast<std::int64_t>(c10::elementSize(dtype()));
    const HiddenFolder folder(options_.folder);
    hidden_.emplace(columns, bytes, folder.path(), /*in_memory=*/columns * bytes <= available_memory() / 4);
    progress_.emplace(context_, "round", (last + 1) * samples_.count());
    steps_ = 0;
    forecast(columns, columns * bytes);
    embed();
    for (std::int64_t layer = 0; layer <= std::min(last, head() - 1); ++layer) run_layer(layer);
    if (last == head()) run_head();
    hidden_.reset();
  }

  /// Each layer runs twice, before and after its weights are rounded; of inputs of width W a matrix W x W is summed up,
  /// by which each row is corrected.
  void forecast(std::int64_t columns, std::int64_t hidden_bytes) const {
    const auto& model = *stream_.loaded().model;
    Work work = forward_work("quantize --rounding", model, columns, samples_.longest(), 0);
    work.operations *= 2;
    std::int64_t most = 0;
    for (const auto& m : plan_.modules) {
      const auto width = static_cast<double>(m.info.shape.back()), rows = static_cast<double>(m.info.shape.front());
      const double share = m.info.type == quant::kExpertType ? model.shape().expert_share : 1;
      work.operations += width * width * (share * static_cast<double>(columns) + 2 * rows);
      most = std::max(most, quant::LayerRounding::input_bytes(m.info.shape.back()));
    }
    work.bytes = process_bytes() + stream_.layer_bytes() + hidden_bytes + 4 * most;
    say_forecast(work, dtype(), context_);
  }

  at::ScalarType dtype() const { return stream_.loaded().dtype; }

  /// The modules in memory whose weight the checkpoint has in fp8. Throws UsageError where they run in another dtype
  /// than has all of the file's values, and for own scales of gate and up, of which experts have one in memory.
  quant::Plan plan_of_checkpoint(const std::filesystem::path& model, const quant::PlanOptions& options) const {
    std::set<std::string> names;
    std::set<std::pair<std::string, std::int64_t>> sources;
    for (const auto& m : options_.modules) names.insert(m.module), sources.insert({m.tensor, m.expert});
    const auto& root = *stream_.loaded().model;
    quant::Plan plan = quant::plan_for(
        measure::weight_modules(root),
        options.config.has_value() ? quant::nodes_of_checkpoint(root) : std::vector<measure::OpNode>(), options);
    const io::Checkpoint checkpoint(model);
    std::erase_if(plan.modules, [&](const quant::PlannedModule& m) {
      if (names.contains(m.info.name)) return false;
      const auto pieces = quant::pieces_of(m.info.name + ".weight", checkpoint);
      return m.info.type != quant::kExpertType || std::ranges::none_of(pieces, [&](const auto& piece) {
               return sources.contains({piece.tensor, piece.index.value_or(-1)});
             });
    });
    for (const auto& m : plan.modules) {
      if (m.info.type == quant::kExpertType && !options.fuse_scales && m.scheme.weights == recipes::Granularity::tensor)
        throw UsageError(
            "--rounding: --scheme tensor:unfused does not go with experts, whose gate and up are one weight");
      if (m.info.type != "Linear" && m.info.type != quant::kExpertType)
        io::fail<io::Error>("{}: --rounding takes Linear and experts, found {} (--exclude leaves it)", m.info.name,
                            m.info.type);
    }
    for (const auto& m : options_.modules) {
      const auto type = checkpoint.info(m.tensor).dtype;
      if (dtype() != at::kFloat && quant::is_float(type) &&
          quant::file_type(runtime::ops::float_type_of(dtype())) != type)
        io::fail<UsageError>("--rounding: {} is {}, and the model would run in {}: --dtype f32 keeps its values",
                             m.tensor, io::name_of(type), c10::toString(dtype()));
    }
    return plan;
  }

  /// Throws io::Error for a planned module that no layer has, before the work begins.
  void require_layers() const {
    std::set<std::string> found;
    const auto add = [&](const WeightModules& modules) {
      for (const auto& m : modules) found.insert(m.name);
    };
    for (std::int64_t layer = 0; layer <= head(); ++layer) add(modules_of(layer));
    for (const auto& m : plan_.modules)
      if (!found.contains(m.info.name))  // no expert: these stand in layers
        io::fail<io::Error>("{}: stands in no decoder layer, --rounding does not see its inputs (--exclude leaves it)",
                            m.info.name);
  }

  io::Json identity(const quant::PlanOptions& plan) const {
    io::Json modules = io::Json::array();
    for (const auto& m : plan_.modules) modules.push_back({m.info.name, m.scheme.describe(), m.fuse_group});
    constexpr int kRevision = 1;  // another one where the same inputs give other codes
    return with_program({{"revision", kRevision},
                         {"data", samples_.fingerprint()},
                         {"model", sources_.ends()},
                         {"dtype", c10::toString(dtype())},
                         {"method", options_.how.method},
                         {"dampening_frac", options_.how.dampening_frac},
                         {"actorder", options_.how.by_diagonal ? io::Json("static") : io::Json()},
                         {"scale_method", plan.config.has_value() ? plan_.scale_method : "amax"},
                         {"modules", std::move(modules)}});
  }

  /// f(first, count) for every batch.
  template <class F>
  void for_batches(const F& f) {
    for (std::int64_t first = 0, count = 0; first < samples_.count(); first += count) {
      check_interrupted();
      count = samples_.together(first, options_.data.batch);
      f(first, count);
      progress_->update(steps_ += count);
    }
  }

  void embed() {
    const auto resident = stream_.load_before();
    for (std::int64_t first = 0, count = 0; first < samples_.count(); first += count) {
      count = samples_.together(first, options_.data.batch);
      const auto batch = samples_.batch(first, count);
      keep(first, count, stream_.embed(batch.ids, /*load=*/false, batch.source));
    }
    hidden_->advance();
  }

  /// The modules of `modules` that are planned, and their plan.
  quant::Plan plan_of(const WeightModules& modules) const {
    quant::Plan plan;
    for (const auto& p : plan_.modules)
      if (std::ranges::find(modules, p.info.name, &measure::WeightModule::name) != modules.end())
        plan.modules.push_back(p);
    plan.scale_method = plan_.scale_method;
    return plan;
  }

  /// The plan in parts whose matrices fit into the memory that is left: the modules that are no experts, then as many
  /// experts at a time as there is room for, one at least.
  static std::vector<quant::Plan> in_parts(const quant::Plan& plan) {
    std::vector<quant::Plan> parts;
    std::int64_t most = 0;
    const auto bytes_of = [](const quant::PlannedModule& m) {
      return quant::LayerRounding::input_bytes(m.info.shape.back());
    };
    for (const auto& m : plan.modules) most = std::max(most, bytes_of(m));
    const std::int64_t room = available_memory() / 2 - 5 * most / 2;  // a factor in f64 and f32, of one at a time
    std::int64_t used = 0;
    bool experts = false;
    for (const bool expert : {false, true}) {
      for (const auto& m : plan.modules) {
        if ((m.info.type == quant::kExpertType) != expert) continue;
        used += bytes_of(m);
        if (parts.empty() || experts != expert || (expert && used > room)) {
          parts.emplace_back().scale_method = plan.scale_method;
          used = bytes_of(m), experts = expert;
        }
        parts.back().modules.push_back(m);
      }
    }
    return parts;
  }

  /// False where the layer calls a module a second time, on a tensor that others do not take: then each module has
  /// matrices of its own. The first sample tells.
  template <class F>
  bool shares_inputs(const WeightModules& modules, const quant::Plan& plan, const F& f) const {
    quant::LayerRounding trial(modules, plan, options_.how);
    trial.begin_samples(0, 1);
    f(0, 1, /*keep=*/false);
    return trial.shares_all();
  }

  /// Runs f(first, count, keep) for every batch with probes on the modules, then rounds them; once for each part of the
  /// plan, and keeps the outputs of the last. Where they are rounded already, the batches alone.
  template <class F>
  void round(std::int64_t layer, const F& f) {
    sources_.check_unchanged();
    const WeightModules modules = modules_of(layer);
    const quant::Plan plan = plan_of(modules);
    if (plan.modules.empty() || !take(layer))
      return for_batches([&](std::int64_t first, std::int64_t count) { f(first, count, /*keep=*/true); });
    const auto parts = in_parts(plan);
    quant::RoundedLayer rounded;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      quant::LayerRounding rounding(modules, parts[i], options_.how, shares_inputs(modules, parts[i], f));
      steps_ -= i > 0 ? samples_.count() : 0;
      for_batches([&](std::int64_t first, std::int64_t count) {
        rounding.begin_samples(first, count);
        f(first, count, /*keep=*/i + 1 == parts.size());
      });
      trim_heap();  // the forwards' memory must not stand beside the factors
      auto part = rounding.finish();
      std::ranges::move(part.weights, std::back_inserter(rounded.weights));
      std::ranges::move(part.modules, std::back_inserter(rounded.modules));
    }
    rounded.write(options_.folder, name_of(layer), codes_->identity());
    held_.erase(layer);  // the file is the mark that it is finished
  }

  void run_layer(std::int64_t layer) {
    {
      const auto resident = stream_.load_layer(layer);
      round(layer, [&](std::int64_t first, std::int64_t count, bool stays) {
        const auto h = stream_.run_layer(layer, hidden(first, count), samples_.batch(first, count).source);
        if (stays) keep(first, count, h);
      });
    }
    trim_heap();
    hidden_->advance();
  }

  void run_head() {
    const auto resident = stream_.load_head();
    round(head(), [&](std::int64_t first, std::int64_t count, bool) {
      stream_.run_head(stream_.run_norm(hidden(first, count), samples_.batch(first, count).source));
    });
  }

  at::Tensor hidden(std::int64_t first, std::int64_t count) const {
    const std::int64_t begin = samples_.column(first), columns = samples_.column(first + count) - begin;
    const at::Tensor h =
        at::empty({count, columns / count, stream_.shape().hidden}, at::TensorOptions(dtype()).device(at::kHPU));
    hidden_->read(begin, columns, runtime::cpu_alias(h).mutable_data_ptr());
    return h;
  }

  void keep(std::int64_t first, std::int64_t count, const at::Tensor& h) {
    const std::int64_t begin = samples_.column(first);
    hidden_->write(begin, samples_.column(first + count) - begin, runtime::cpu_alias(h.contiguous()).const_data_ptr());
  }

  void warn_of_few_tokens(const quant::RoundedCodes& codes) const {
    const auto few = std::ranges::count_if(codes.modules(), [](const auto& m) { return m.tokens < m.columns; });
    if (few > 0)
      context_.warn(
          io::message("{} of {} modules have more columns than the calibration has tokens for them; more "
                      "--samples round better",
                      few, codes.modules().size()));
  }

  const RoundingOptions& options_;
  const Context& context_;
  models::LayerStream stream_;
  Samples samples_;
  SourceFiles sources_;
  quant::Plan plan_;
  std::shared_ptr<quant::RoundedCodes> codes_;
  std::optional<io::LeaseFolder> leases_;                    // of several processes
  std::map<std::int64_t, std::unique_ptr<io::Lease>> held_;  // of the layers that this one rounds
  Clock::time_point since_;                                  // the last news of a layer
  std::vector<std::int64_t> missing_;                        // layers without codes, ascending
  std::optional<models::HiddenStates> hidden_;
  std::optional<Progress> progress_;
  std::int64_t steps_ = 0;
};

/// Throws UsageError for a model_type that no row runs; a config.json that is wrong otherwise is found later.
void require_family(const std::filesystem::path& model) {
  const io::Json config = io::read_python_json(io::source_file(model, io::kConfigFile));
  const std::string type = config.is_object() ? config.value("model_type", std::string()) : "";
  const auto families = models::model_families();
  if (std::ranges::none_of(families, [&](const auto& family) { return family.model_type == type; }))
    io::fail<UsageError>("{}: --rounding runs the model, and model_type '{}' is not among those that run",
                         (model / io::kConfigFile).string(), type);
}

std::shared_ptr<quant::RoundedCodes> run(const std::filesystem::path& model, const quant::PlanOptions& plan,
                                         const RoundingOptions& options, const Context& context) {
  if (context.device != "hpu")
    io::fail<UsageError>("--device: found '{}', but --rounding runs the model on: hpu", context.device);
  require_family(model);
  const TorchScope scope(context);
  const at::NoGradGuard no_grad;
  return RoundingRun(model, plan, options, context).run();
}

const Provided g_rounding(round_weights, run);

}  // namespace
}  // namespace fp8::commands
