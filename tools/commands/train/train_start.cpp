// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/train/train_run.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/registry.h"
#include "fp8/tools/models/save.h"

namespace fp8::commands {

class TextBatches::Dataset : public data::Dataset {
 public:
  explicit Dataset(text::Chunks chunks) : chunks(std::move(chunks)) {}

  std::int64_t size() const override { return chunks.count; }
  /// [L] int64, a view of the chunk.
  std::vector<at::Tensor> get(std::int64_t index, data::SampleRandom&) const override {
    auto* const ids = const_cast<std::int64_t*>(chunks.ids.data()) + index * chunks.length;  // nothing writes to it
    return {at::from_blob(ids, {chunks.length}, at::kLong)};
  }
  std::int64_t tokens_of(std::int64_t) const override { return chunks.length; }

  const text::Chunks chunks;
};

TextBatches::TextBatches(text::Chunks chunks, std::int64_t batch, bool shuffle, std::uint64_t seed, c10::Device device,
                         trainer::LastBatch last, std::int64_t multiple, bool non_blocking)
    : dataset_(std::make_shared<const Dataset>(std::move(chunks))),
      loader_(std::make_unique<data::DataLoader>(dataset_, data::DataLoaderOptions{.batch_size = batch,
                                                                                   .shuffle = shuffle,
                                                                                   .pin_memory = non_blocking,
                                                                                   .non_blocking = non_blocking,
                                                                                   .last_batch = last,
                                                                                   .multiple = multiple,
                                                                                   .seed = seed,
                                                                                   .device = device})) {}

const text::Chunks& TextBatches::chunks() const { return dataset_->chunks; }

std::uint64_t TextBatches::fingerprint() const {
  io::Fnv hash;
  for (const auto id : chunks().ids) hash.step(static_cast<std::uint64_t>(id));
  return hash.value();
}

namespace {

// The least memory of training, estimated before anything is allocated (a fresh model holds no weights): a config
// that no machine can train is one line, not an allocator's.

struct TrainingEstimate {
  double parameters = 0;
  double bytes = 0;
};

TrainingEstimate estimate_training(const models::CausalLM& model, const TrainOptions& options) {
  TrainingEstimate e;
  std::unordered_set<const void*> seen;  // a tied weight comes up twice
  for (const auto& p : model.parameters())
    if (seen.insert(p.unsafeGetTensorImpl()).second) e.parameters += static_cast<double>(p.numel());
  const double moments = options.optimizer.kind == OptimizerSettings::Kind::muon ? 1 : 2;  // Muon: one of each matrix
  const double tokens = static_cast<double>(options.batch) * static_cast<double>(options.seq_len);
  e.bytes = e.parameters * 4 * (2 + moments) + tokens * static_cast<double>(model.shape().vocab) * 4;
  return e;
}

/// Throws io::Error naming `file` where f32 weights and gradients, the optimizer's moments and the logits of one
/// micro-batch are more than `available` bytes.
void refuse_oversized(const models::CausalLM& model, const TrainOptions& options, const std::string& file,
                      double available) {
  const TrainingEstimate e = estimate_training(model, options);
  if (e.bytes <= available) return;
  const auto text = [](double bytes) { return human_bytes(static_cast<std::int64_t>(std::min(bytes, 0x1p62))); };
  throw io::Error(
      fmt::format("{}: training {:.3g} parameters with {} x {} tokens a step needs at least {} (weights, gradients, "
                  "moments and logits), "
                  "{} are free; take a smaller model, --batch or --seq-len",
                  file, e.parameters, options.batch, options.seq_len, text(e.bytes), text(available)));
}

io::Json batch_facts(trainer::BatchSource& source, std::int64_t number) {
  source.seek(0, number);
  const auto batch = source.next();
  if (!batch) return nullptr;
  io::Checksum sum;
  for (const auto& tensor : batch->tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor here = runtime::cpu_alias(tensor.detach()).contiguous();
    const std::string form = c10::str(here.scalar_type(), here.sizes());
    sum.update(form.data(), form.size());
    sum.update(here.const_data_ptr(), here.nbytes());
  }
  return {batch->samples, io::checksum_text(sum.value())};
}

namespace fs = std::filesystem;

/// The model without its weights, if it can be trained here. file: the config.json that `config` was read from.
std::shared_ptr<models::CausalLM> fresh_model(const models::FamilyConfig& config, const fs::path& file,
                                              const TrainOptions& o, const Context& context) {
  if (!config.family.trainable) {
    std::string allowed;
    for (const auto& family : models::model_families())
      if (family.trainable) allowed += (allowed.empty() ? "" : ", ") + family.model_type;
    io::fail<io::Error>("{}: key 'model_type': found \"{}\", which cannot be trained, allowed: {}", file.string(),
                        config.family.model_type, allowed);
  }
  auto free = static_cast<double>(available_memory());
  if (resolve_device(context).is_hpu()) free = std::min(free, static_cast<double>(runtime::memory_stats().Limit));
  auto model = config.make();
  refuse_oversized(*model, o, file.string(), free);
  return model;
}

text::Chunks chunks_of(const text::DataFiles& files, const TrainOptions& o, const Start& start) {
  DataOptions data;
  data.data = files;
  data.seq_len = o.seq_len;
  return load_chunks_for(data, start.tokenizer, start.model->shape());
}

}  // namespace

io::Json facts_of(trainer::BatchSource& source) {
  io::Json facts = {{"batches", source.batches()}};
  if (source.batches() == 0) return facts;
  // A loader of LibTorch's reads all of an epoch on the way to its last batch.
  if (dynamic_cast<const data::DataLoader*>(&source) != nullptr)
    facts["last batch"] = batch_facts(source, source.batches() - 1);
  if (const auto* text = dynamic_cast<const TextBatches*>(&source))
    facts["text"] = fmt::format("{:016x}", text->fingerprint());
  facts["first batch"] = batch_facts(source, 0);
  source.seek(0, 0);
  return facts;
}

Start start_of(const TrainOptions& o, const Context& context) {
  const auto device = resolve_device(context);
  Start start;
  if (!o.model.empty()) {
    quant::require_model_folder(o.model);
    fresh_model(models::read_config(o.model), o.model / io::kConfigFile, o, context);  // refused before it is read
    auto loaded = models::load_model(o.model, {.dtype = at::kFloat, .device = device});
    const auto quantized = loaded.config_json.find("quantization_config");
    if (quantized != loaded.config_json.end() && !quantized->is_null())
      io::fail<io::Error>("{}: key 'quantization_config': the model is quantized, allowed: a high precision checkpoint",
                          (o.model / io::kConfigFile).string());
    start = {loaded.model, io::read_json_edit(io::source_file(o.model, io::kConfigFile)).text(), o.model};
  } else {
    const auto file = fs::is_directory(o.init) ? io::source_file(o.init, io::kConfigFile) : o.init;
    start.config_text = io::read_json_edit(file).text();
    const auto json = io::parse_python_json(start.config_text, file.string());
    start.model = fresh_model(models::parse_config(json, file.string()), file, o, context);
    const double range = models::ConfigReader(json, file.string()).number("initializer_range", 0, 100, 0.02);
    models::initialize(*start.model, range, context.seed, device);
    start.tokenizer = file.parent_path();
  }
  if (!o.tokenizer.empty())
    start.tokenizer = fs::is_regular_file(o.tokenizer) ? o.tokenizer.parent_path() : o.tokenizer;
  if (start.tokenizer.empty()) start.tokenizer = ".";
  return start;
}

TextBatches evaluation_batches(const text::DataFiles& files, const TrainOptions& o, const Context& context,
                               const Start& start) {
  return TextBatches(chunks_of(files, o, start), o.eval_batch > 0 ? o.eval_batch : o.batch, /*shuffle=*/false,
                     context.seed, resolve_device(context), trainer::LastBatch::keep, 1, o.non_blocking);
}

TextBatches training_batches(const TrainOptions& o, const Context& context, const Start& start, int ranks) {
  auto chunks = chunks_of(o.data, o, start);
  const auto last = o.drop_last ? trainer::LastBatch::drop : last_batch_of(o);
  const std::int64_t whole = o.batch * ranks;
  if (last == trainer::LastBatch::drop && chunks.count < whole)
    io::fail<io::Error>("{}: found {} chunks of {} tokens, allowed with --{}: {} or more, a whole batch",
                        text::data_name(o.data), chunks.count, o.seq_len, o.drop_last ? "drop-last" : "last-batch drop",
                        whole);
  return TextBatches(std::move(chunks), o.batch, /*shuffle=*/true, context.seed, resolve_device(context), last,
                     last == trainer::LastBatch::keep ? 1 : whole, o.non_blocking);
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids) {
  const auto predicting = logits.narrow(1, 0, logits.size(1) - 1).reshape({-1, logits.size(2)});
  return at::cross_entropy_loss(predicting.to(at::kFloat), ids.narrow(1, 1, ids.size(1) - 1).reshape({-1}));
}

namespace {

class LanguageModelTask : public trainer::TrainingModule {
 public:
  LanguageModelTask(const Start& start, const TrainOptions& options, StateHooks hooks)
      : start_(start),
        settings_(options.optimizer),
        dtype_(runtime::ops::dtype_of(options.save_dtype)),
        hooks_(std::move(hooks)) {}

  torch::nn::Module& network() override { return *start_.model; }
  /// Mean over the B (L - 1) predicted tokens of a batch from TextBatches.
  at::Tensor training_step(const trainer::Batch& batch, std::int64_t) override {
    const auto& ids = batch.tensors.at(0);
    return next_token_loss(start_.model->forward(ids), ids);
  }

  /// -log softmax(logits[b, i])[ids[b, i + 1]], f32 [B, L - 1], and the likeliest next tokens, int64 [B, L].
  std::vector<at::Tensor> predict_step(const trainer::Batch& batch, std::int64_t) override {
    const auto& ids = batch.tensors.at(0);
    const auto logits = start_.model->forward(ids).to(at::kFloat);
    const auto logs = at::log_softmax(logits.narrow(1, 0, logits.size(1) - 1), -1);
    return {-logs.gather(-1, ids.narrow(1, 1, ids.size(1) - 1).unsqueeze(-1)).squeeze(-1), logits.argmax(-1)};
  }

  trainer::Optimizers configure_optimizers() override {
    namespace optim = runtime::optim;
    const bool muon = settings_.kind == OptimizerSettings::Kind::muon;
    std::vector<at::Tensor> hidden, matrices, vectors;  // vectors: norms and biases, which do not decay
    std::unordered_set<const void*> done;
    for (const auto& item : start_.model->named_parameters()) {
      const auto& p = item.value();
      if (!done.insert(p.unsafeGetTensorImpl()).second) continue;
      (muon && optim::is_hidden_weight(item.key(), p) ? hidden : p.dim() >= 2 ? matrices : vectors).push_back(p);
    }
    const auto adamw = [&](double decay) {
      return optim::FusedAdamWOptions(settings_.lr)
          .betas({settings_.beta1, settings_.beta2})
          .eps(settings_.eps)
          .eps_mode(settings_.eps_mode == OptimizerSettings::EpsMode::habana ? optim::EpsMode::habana
                                                                             : optim::EpsMode::torch)
          .weight_decay(decay);
    };
    // Muon's updates as large as AdamW's: one learning rate serves both.
    const auto orthogonal =
        optim::MuonOptions(settings_.lr).weight_decay(settings_.weight_decay).ratio(optim::MuonRatio::match_rms_adamw);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    if (!hidden.empty()) groups.emplace_back(hidden, std::make_unique<optim::MuonOptions>(orthogonal));
    groups.emplace_back(matrices, std::make_unique<optim::FusedAdamWOptions>(adamw(settings_.weight_decay)));
    groups.emplace_back(vectors, std::make_unique<optim::FusedAdamWOptions>(adamw(0)));
    trainer::Optimizers optimizers;
    if (muon)
      optimizers.optimizers.push_back(std::make_shared<optim::Muon>(groups, orthogonal));
    else
      optimizers.optimizers.push_back(std::make_shared<optim::FusedAdamW>(groups, adamw(settings_.weight_decay)));
    optimizers.lr_factor = lr_factor(settings_);
    return optimizers;
  }

  /// A checkpoint that `fp8 evaluate --model` loads.
  void save_files(const fs::path& folder) override {
    models::save_model(*start_.model, start_.config_text, start_.tokenizer, folder, dtype_);
  }

  trainer::TrainingState extra_state() override { return hooks_.save ? hooks_.save() : trainer::TrainingState{}; }
  void load_extra_state(const trainer::TrainingState& state) override {
    if (hooks_.load) hooks_.load(state);
  }

 private:
  Start start_;
  OptimizerSettings settings_;
  at::ScalarType dtype_;  ///< of saved weights
  StateHooks hooks_;
};

}  // namespace

std::shared_ptr<trainer::TrainingModule> language_model_task(const Start& start, const TrainOptions& options,
                                                             StateHooks hooks) {
  return std::make_shared<LanguageModelTask>(start, options, std::move(hooks));
}

namespace {

using trainer::PartArguments;
using Optimizer = std::shared_ptr<torch::optim::Optimizer>;

std::tuple<double, double> betas(PartArguments& a) {
  const io::Json* value = a.find("betas");
  if (value == nullptr) return {0.9, 0.999};
  if (!value->is_array() || value->size() != 2 || !(*value)[0].is_number() || !(*value)[1].is_number())
    a.fail("betas", "two numbers");
  return {(*value)[0].get<double>(), (*value)[1].get<double>()};
}

/// Arguments without an effect on a result: they choose among torch's loops.
void accept_loops(PartArguments& a) {
  for (const char* name : {"foreach", "fused", "capturable"}) a.accept(name);
  a.only("maximize", false, "losses are made small");
  a.only("differentiable", false, "a step has no gradient");
}

/// Adam and AdamW of torch, whose decay differs.
template <class Optim, class Options, int kDecayPercent>
Optimizer adam(PartArguments& a, std::vector<at::Tensor> p) {
  accept_loops(a);
  return std::make_shared<Optim>(std::move(p), Options(a.number("lr", 1e-3))
                                                   .betas(betas(a))
                                                   .eps(a.number("eps", 1e-8))
                                                   .weight_decay(a.number("weight_decay", kDecayPercent / 100.0))
                                                   .amsgrad(a.flag("amsgrad", false)));
}
template <class Optim, class Options>
std::shared_ptr<Optim> sgd(PartArguments& a, std::vector<at::Tensor> p) {
  return std::make_shared<Optim>(std::move(p), Options(a.number("lr", 1e-3))
                                                   .momentum(a.number("momentum", 0))
                                                   .dampening(a.number("dampening", 0))
                                                   .weight_decay(a.number("weight_decay", 0))
                                                   .nesterov(a.flag("nesterov", false)));
}
Optimizer torch_sgd(PartArguments& a, std::vector<at::Tensor> p) {
  accept_loops(a);
  return sgd<torch::optim::SGD, torch::optim::SGDOptions>(a, std::move(p));
}
Optimizer fused_sgd(PartArguments& a, std::vector<at::Tensor> p) {
  return sgd<runtime::optim::FusedSGD, runtime::optim::FusedSGDOptions>(a, std::move(p));
}
Optimizer fused_adamw(PartArguments& a, std::vector<at::Tensor> p) {
  namespace optim = runtime::optim;
  return std::make_shared<optim::FusedAdamW>(std::move(p), optim::FusedAdamWOptions(a.number("lr", 1e-3))
                                                               .betas(betas(a))
                                                               .eps(a.number("eps", 1e-6))
                                                               .weight_decay(a.number("weight_decay", 0))
                                                               .bias_correction(a.flag("bias_correction", true)));
}

constexpr std::pair<const char*, Optimizer (*)(PartArguments&, std::vector<at::Tensor>)> kOptimizers[] = {
    {"Adam", adam<torch::optim::Adam, torch::optim::AdamOptions, 0>},
    {"AdamW", adam<torch::optim::AdamW, torch::optim::AdamWOptions, 1>},
    {"SGD", torch_sgd},
    {"FusedAdamW", fused_adamw},
    {"FusedSGD", fused_sgd}};

void schedule(trainer::Optimizers& optimizers, const trainer::Part& part, const trainer::PartContext& context) {
  PartArguments a(part, context);
  const std::string name = trainer::own_name(part.class_path);
  if (name == "StepLR") {
    const auto size = a.integer("step_size", 1, 1, 1 << 30);
    a.only("last_epoch", -1, "a resumed run goes on by itself");
    optimizers.schedulers.push_back({std::make_shared<torch::optim::StepLR>(
        *optimizers.optimizers[0], static_cast<unsigned>(size), a.number("gamma", 0.1))});
  } else if (name == "CosineWithWarmup") {
    const auto steps = a.integer("steps", 0, 1);
    if (steps == 0) io::fail<io::Error>("{}: is required", a.place("steps"));
    optimizers.lr_factor = trainer::cosine_with_warmup(a.integer("warmup", 0, 0), steps, a.number("min_factor", 0));
  } else {
    io::fail<io::Error>("{}: found {}, allowed: StepLR, CosineWithWarmup", part.place, io::in_quotes(part.class_path));
  }
  a.finish();
}

}  // namespace

std::optional<trainer::Optimizers> optimizers_of(const torch::nn::Module& network,
                                                 const std::optional<trainer::Part>& optimizer,
                                                 const std::optional<trainer::Part>& lr_scheduler,
                                                 const trainer::PartContext& context) {
  if (!optimizer && lr_scheduler)
    io::fail<io::Error>("{}: found without optimizer:, allowed: beside one, else the model's own has both",
                        lr_scheduler->place);
  if (!optimizer) return std::nullopt;
  const std::string name = trainer::own_name(optimizer->class_path);
  std::vector<std::string> names;
  for (const auto& [known, make] : kOptimizers) {
    names.emplace_back(known);
    if (name != known) continue;
    PartArguments arguments(*optimizer, context);
    trainer::Optimizers made;
    std::vector<at::Tensor> trained;
    for (const auto& p : network.parameters())
      if (p.requires_grad()) trained.push_back(p);
    made.optimizers.push_back(make(arguments, std::move(trained)));
    arguments.finish();
    if (lr_scheduler) schedule(made, *lr_scheduler, context);
    return made;
  }
  io::fail<io::Error>("{}: found {}, allowed: {}; {}", optimizer->place, io::in_quotes(optimizer->class_path),
                      io::joined(names), io::the_nearest(name, names));
}

}  // namespace fp8::commands
