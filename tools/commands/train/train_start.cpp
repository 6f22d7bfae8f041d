// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_start.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/commands/work/process.h"
#include "fp8/tools/models/base/model_config.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"

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
                         std::int64_t multiple)
    : dataset_(std::make_shared<const Dataset>(std::move(chunks))),
      loader_(std::make_unique<data::DataLoader>(
          dataset_,
          data::DataLoaderOptions{
              .batch_size = batch, .shuffle = shuffle, .multiple = multiple, .seed = seed, .device = device})) {}

const text::Chunks& TextBatches::chunks() const { return dataset_->chunks; }

std::uint64_t TextBatches::fingerprint() const {
  io::Fnv hash;
  for (const auto id : chunks().ids) hash.step(static_cast<std::uint64_t>(id));
  return hash.value();
}

namespace {

struct TrainingEstimate {
  double parameters = 0;
  double bytes = 0;
};

TrainingEstimate estimate_training(const models::CausalLM& model, const TrainOptions& options) {
  TrainingEstimate e;
  std::unordered_set<const void*> seen;  // a tied weight comes up twice
  for (const auto& p : model.parameters()) {
    if (seen.insert(p.unsafeGetTensorImpl()).second) e.parameters += static_cast<double>(p.numel());
  }
  const double moments = options.optimizer.kind == OptimizerSettings::Kind::muon ? 1 : 2;  // Muon: one of each matrix
  const double tokens = static_cast<double>(options.batch) * static_cast<double>(options.seq_len);
  e.bytes = e.parameters * 4 * (2 + moments) + tokens * static_cast<double>(model.shape().vocab) * 4;
  return e;
}

}  // namespace

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

namespace {

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

namespace {

namespace fs = std::filesystem;

/// The model without its weights, if it can be trained here. file: the config.json that `config` was read from.
std::shared_ptr<models::CausalLM> fresh_model(const models::FamilyConfig& config, const fs::path& file,
                                              const TrainOptions& o, const Context& context) {
  if (!config.family.trainable) {
    std::string allowed;
    for (const auto& family : models::model_families())
      if (family.trainable) allowed += (allowed.empty() ? "" : ", ") + family.model_type;
    throw io::Error(file.string() + ": key 'model_type': found \"" + config.family.model_type +
                    "\", which cannot be trained, allowed: " + allowed);
  }
  auto free = static_cast<double>(available_memory());
  if (resolve_device(context).is_hpu()) free = std::min(free, static_cast<double>(runtime::memory_stats().Limit));
  auto model = config.make();
  refuse_oversized(*model, o, file.string(), free);
  return model;
}

}  // namespace

Start start_of(const TrainOptions& o, const Context& context) {
  const auto device = resolve_device(context);
  Start start;
  if (!o.model.empty()) {
    quant::require_model_folder(o.model);
    fresh_model(models::read_config(o.model), o.model / io::kConfigFile, o, context);  // refused before it is read
    auto loaded = models::load_model(o.model, {.dtype = at::kFloat, .device = device});
    const auto quantized = loaded.config_json.find("quantization_config");
    if (quantized != loaded.config_json.end() && !quantized->is_null())
      throw io::Error((o.model / io::kConfigFile).string() +
                      ": key 'quantization_config': the model is quantized, allowed: a high precision checkpoint");
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

TextBatches batches_of(const text::DataFiles& files, const TrainOptions& o, const Context& context, const Start& start,
                       std::int64_t batch, bool shuffle, std::int64_t multiple) {
  DataOptions data;
  data.data = files;
  data.seq_len = o.seq_len;
  auto chunks = load_chunks_for(data, start.tokenizer, start.model->shape());
  if (chunks.count < multiple)
    throw io::Error(fmt::format("{}: found {} chunks of {} tokens, allowed with --drop-last: {} or more, a whole batch",
                                text::data_name(files), chunks.count, o.seq_len, multiple));
  return TextBatches(std::move(chunks), batch, shuffle, context.seed, resolve_device(context), multiple);
}

}  // namespace fp8::commands
