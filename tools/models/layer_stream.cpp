// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/layer_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::models {
namespace {

const std::string kEmbedding = "model.embed_tokens.weight";

std::string prefix_of(std::int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

std::int64_t bytes_of(const torch::nn::Module& module, at::ScalarType dtype) {
  std::int64_t elements = 0;
  for (const auto& p : module.parameters()) elements += p.numel();
  return elements * static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace

void Resident::release() {
  for (auto& [parameter, placeholder] : loaded_) parameter.set_data(placeholder);
  loaded_.clear();
}

LayerStream::LayerStream(const std::filesystem::path& folder, const LoadOptions& options)
    : checkpoint_(folder), options_(options), loaded_(prepare_model(folder, checkpoint_, options)) {
  if (!quant::read_quantization_config(folder).is_null())
    throw io::Error(folder.string() + ": expected a high precision checkpoint, found an fp8 one");
  quant::require_no_codes(checkpoint_);
  for (const auto& item : loaded_.model->named_parameters()) {
    if (item.key() == "lm_head.weight" && loaded_.config.tie_word_embeddings) continue;
    check_parameter(checkpoint_, item.key(), item.value().sizes());
  }
  loaded_.unused = unused_tensors(*loaded_.model, checkpoint_);
}

LlamaDecoderLayerImpl& LayerStream::layer(std::int64_t index) const {
  return *loaded_.model->model->layers->ptr(static_cast<std::size_t>(index))->as<LlamaDecoderLayerImpl>();
}

std::int64_t LayerStream::layer_bytes() const { return bytes_of(layer(0), loaded_.dtype); }

std::int64_t LayerStream::head_bytes() const { return bytes_of(*loaded_.model->lm_head, loaded_.dtype); }

at::Tensor LayerStream::rows(bool head, std::int64_t first, std::int64_t rows) const {
  const bool own = head && !loaded_.config.tie_word_embeddings;
  return read_weight_rows(checkpoint_, own ? "lm_head.weight" : kEmbedding,
                          {loaded_.config.vocab_size, loaded_.config.hidden_size}, first, rows, loaded_.dtype,
                          options_.device);
}

at::Tensor LayerStream::embed(const at::Tensor& ids) const {
  const auto flat = ids.contiguous();
  const auto* id = flat.const_data_ptr<std::int64_t>();
  std::map<std::int64_t, at::Tensor> found;  // the CPU's, each row read once
  for (std::int64_t i = 0; i < flat.numel(); ++i) found.try_emplace(id[i]);
  for (auto& [row, values] : found)
    values = read_weight_rows(checkpoint_, kEmbedding, {loaded_.config.vocab_size, loaded_.config.hidden_size}, row, 1,
                              loaded_.dtype, at::kCPU);
  const auto hidden = loaded_.config.hidden_size;
  const auto h = at::empty({ids.size(0), ids.size(1), hidden}, loaded_.dtype);
  auto* out = static_cast<char*>(h.mutable_data_ptr());
  const auto bytes = static_cast<std::size_t>(hidden) * h.element_size();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    std::memcpy(out + static_cast<std::size_t>(i) * bytes, found.at(id[i]).const_data_ptr(), bytes);
  return h.to(options_.device);
}

void LayerStream::load(const std::string& name, at::Tensor parameter, at::Tensor values, Resident& resident) {
  if (!values.defined()) values = read_parameter(checkpoint_, name, parameter.sizes(), loaded_.dtype, options_.device);
  resident.loaded_.push_back({parameter, parameter.detach()});  // before it is filled: what throws leaves placeholders
  parameter.set_data(values);
}

Resident LayerStream::load_layer(std::int64_t index) {
  Resident resident;
  for (auto& item : layer(index).named_parameters()) load(prefix_of(index) + item.key(), item.value(), {}, resident);
  return resident;
}

at::Tensor LayerStream::run_layer(std::int64_t index, const at::Tensor& h) {
  const auto angles = loaded_.model->model->rotary_emb->forward(0, h.size(1), h);
  return layer(index).forward(h, angles, {}, nullptr);
}

Resident LayerStream::load_head(std::int64_t first, std::int64_t rows) {
  Resident resident;
  load("model.norm.weight", loaded_.model->model->norm->weight, {}, resident);
  load("lm_head.weight", loaded_.model->lm_head->weight,
       this->rows(true, first, rows > 0 ? rows : loaded_.config.vocab_size), resident);
  return resident;
}

at::Tensor LayerStream::run_norm(const at::Tensor& h) { return loaded_.model->model->norm->forward(h); }

at::Tensor LayerStream::run_head(const at::Tensor& n) { return loaded_.model->lm_head->forward(n); }

std::vector<measure::WeightModule> LayerStream::layer_modules(std::int64_t index) const {
  auto modules = measure::weight_modules(layer(index));
  for (auto& m : modules) m.name = prefix_of(index) + m.name;
  return modules;
}

std::vector<measure::WeightModule> LayerStream::embedding_modules() const {
  auto modules = measure::weight_modules(*loaded_.model->model->embed_tokens);
  for (auto& m : modules) m.name = "model.embed_tokens";
  return modules;
}

std::vector<measure::WeightModule> LayerStream::head_modules() const {
  auto modules = measure::weight_modules(*loaded_.model->lm_head);
  for (auto& m : modules) m.name = "lm_head";
  return modules;
}

std::int64_t bytes_in_memory(const std::filesystem::path& folder, std::optional<at::ScalarType> dtype) {
  const io::Checkpoint checkpoint(folder);
  const auto loaded = prepare_model(folder, checkpoint, {.dtype = dtype});
  const bool tied = loaded.config.tie_word_embeddings;  // named under both
  return bytes_of(*loaded.model, loaded.dtype) - (tied ? bytes_of(*loaded.model->lm_head, loaded.dtype) : 0);
}

}  // namespace fp8::models
