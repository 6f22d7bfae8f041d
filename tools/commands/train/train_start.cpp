// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/commands/train/train_memory.h"
#include "fp8/tools/commands/work/process.h"
#include "fp8/tools/models/base/model_config.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"

namespace fp8::commands {
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
