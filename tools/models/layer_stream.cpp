// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/layer_stream.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "fp8/quant/forms/assumed_form.h"

namespace fp8::models {
namespace {

std::int64_t bytes_of(const torch::nn::Module& module, at::ScalarType dtype) {
  std::int64_t elements = 0;
  for (const auto& [name, parameter] : distinct_parameters(module)) elements += parameter.numel();
  return elements * static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// The module's weight, or what weights there are below it, in the names of the whole model.
std::vector<measure::WeightModule> weight_modules_of(const std::string& name, const torch::nn::Module& module) {
  auto modules = measure::weight_modules(module);
  for (auto& m : modules) m.name = m.name.empty() ? name : name + "." + m.name;
  return modules;
}

}  // namespace

void Resident::release() {
  for (auto& [parameter, placeholder] : loaded_) parameter.set_data(placeholder);
  loaded_.clear();
}

LayerStream::LayerStream(const std::filesystem::path& folder, const LoadOptions& options)
    : checkpoint_(folder),
      options_(options),
      loaded_(prepare_model(folder, checkpoint_, options)),
      parts_(loaded_.model->parts()),
      words_name_(loaded_.model->name_of(*parts_.words)),
      head_name_(parts_.head ? loaded_.model->name_of(*parts_.head) : ""),
      tied_(parts_.head && parts_.head->weight.is_same(parts_.words->weight)) {
  if (is_quantized(folder))
    io::fail<io::Error>("{}: expected a high precision checkpoint, found an fp8 one", folder.string());
  quant::require_no_codes(checkpoint_, mxfp4_tensors(checkpoint_));
  for (const auto& [name, parameter] : distinct_parameters(*loaded_.model))
    check_parameter(checkpoint_, name, parameter.sizes(), loaded_.model->storage_of(name));
  loaded_.unused = unused_tensors(*loaded_.model, checkpoint_);
  layer_names_.resize(parts_.layers->size());
  std::unordered_map<const torch::nn::Module*, std::size_t> numbers;
  for (std::size_t i = 0; i < layer_names_.size(); ++i) numbers[parts_.layers->ptr(i).get()] = i;
  for (const auto& item : loaded_.model->named_modules("", /*include_self=*/false))
    if (const auto found = numbers.find(item.value().get()); found != numbers.end())
      layer_names_[found->second] = item.key();
  load_shared();
}

void LayerStream::load_shared() {
  for (const auto& module : parts_.shared) load_module(loaded_.model->name_of(*module), *module, shared_);
  for (const auto& item : loaded_.model->named_parameters(/*recurse=*/false))
    load(item.value(), read_parameter(loaded_, checkpoint_, item.key(), item.value(), options_), shared_);
}

const torch::nn::Module& LayerStream::layer(std::int64_t index) const {
  return *parts_.layers->ptr(static_cast<std::size_t>(index));
}

std::int64_t LayerStream::layer_bytes() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < shape().layers; ++i) most = std::max(most, layer_bytes(i));
  return most;
}

std::int64_t LayerStream::layer_bytes(std::int64_t index) const { return bytes_of(layer(index), loaded_.dtype); }

std::int64_t LayerStream::head_bytes() const {
  std::int64_t bytes = parts_.head ? bytes_of(*parts_.head, loaded_.dtype) : 0;
  for (const auto& module : parts_.after) bytes += bytes_of(*module, loaded_.dtype);
  return bytes;
}

at::Tensor LayerStream::rows(bool head, std::int64_t first, std::int64_t rows) const {
  const bool own = head && !tied_;
  const auto width = own ? parts_.head->options.in_features() : parts_.words->options.embedding_dim();
  const auto all = own ? shape().outputs() : parts_.words->options.num_embeddings();
  return read_weight_rows(checkpoint_, (own ? head_name_ : words_name_) + ".weight", {all, width}, first, rows,
                          loaded_.dtype, options_.device);
}

at::Tensor LayerStream::embed(const at::Tensor& ids, bool load, std::int64_t source) {
  const auto flat = ids.contiguous();
  const auto* id = flat.const_data_ptr<std::int64_t>();
  const auto width = parts_.words->options.embedding_dim(), all = parts_.words->options.num_embeddings();
  std::map<std::int64_t, at::Tensor> found;  // the CPU's, each row read once
  for (std::int64_t i = 0; i < flat.numel(); ++i) found.try_emplace(id[i]);
  for (auto& [row, values] : found)
    values = read_weight_rows(checkpoint_, words_name_ + ".weight", {all, width}, row, 1, loaded_.dtype, at::kCPU);
  const auto words = at::empty({ids.size(0), ids.size(1), width}, loaded_.dtype);
  auto* out = static_cast<char*>(words.mutable_data_ptr());
  const auto bytes = static_cast<std::size_t>(width) * words.element_size();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    std::memcpy(out + static_cast<std::size_t>(i) * bytes, found.at(id[i]).const_data_ptr(), bytes);
  const Resident resident = load ? load_before() : Resident();
  return loaded_.model->embed(words.to(options_.device), positions_of(ids.size(1), source, nullptr), source);
}

Resident LayerStream::load_before() {
  Resident resident;
  for (const auto& module : parts_.before) load_module(loaded_.model->name_of(*module), *module, resident);
  return resident;
}

void LayerStream::load(at::Tensor parameter, const at::Tensor& values, Resident& resident) {
  resident.loaded_.push_back({parameter, parameter.detach()});
  parameter.set_data(values);
}

void LayerStream::load_module(const std::string& name, const torch::nn::Module& module, Resident& resident) {
  for (const auto& item : module.named_parameters())
    load(item.value(), read_parameter(loaded_, checkpoint_, name + "." + item.key(), item.value(), options_), resident);
}

Resident LayerStream::load_layer(std::int64_t index) {
  Resident resident;
  load_module(layer_name(index), layer(index), resident);
  return resident;
}

at::Tensor LayerStream::run_layer(std::int64_t index, const at::Tensor& h, std::int64_t source) {
  return run_layers(index, index + 1, h, source);
}

at::Tensor LayerStream::run_layers(std::int64_t first, std::int64_t end, at::Tensor h, std::int64_t source) {
  const auto run = loaded_.model->begin(h, nullptr, source);
  for (std::int64_t i = first; i < end; ++i) h = run(i, h);
  return h;
}

Resident LayerStream::load_head(std::int64_t first, std::int64_t rows) {
  Resident resident;
  for (const auto& module : parts_.after) load_module(loaded_.model->name_of(*module), *module, resident);
  if (!parts_.head) return resident;
  const auto vocabulary = shape().outputs(), count = rows > 0 ? rows : vocabulary;
  load(parts_.head->weight, this->rows(/*head=*/true, first, count), resident);
  if (const auto& bias = parts_.head->bias; bias.defined())
    load(
        bias,
        read_weight_rows(checkpoint_, head_name_ + ".bias", {vocabulary}, first, count, loaded_.dtype, options_.device),
        resident);
  return resident;
}

at::Tensor LayerStream::run_norm(const at::Tensor& h, std::int64_t source) {
  return loaded_.model->norm(h.narrow(1, source, h.size(1) - source));
}

at::Tensor LayerStream::run_head(const at::Tensor& n) {
  return parts_.head ? loaded_.model->finish(head_scores(n)) : n;
}

at::Tensor LayerStream::head_scores(const at::Tensor& n) { return parts_.head->forward(n); }

std::vector<measure::WeightModule> LayerStream::layer_modules(std::int64_t index) const {
  return weight_modules_of(layer_name(index), layer(index));
}

std::vector<measure::WeightModule> LayerStream::embedding_modules() const {
  return weight_modules_of(words_name_, *parts_.words);
}

std::vector<measure::WeightModule> LayerStream::head_modules() const {
  auto modules = parts_.head ? weight_modules_of(head_name_, *parts_.head) : std::vector<measure::WeightModule>();
  if (modules.size() > 1) modules.resize(1);  // what is below it comes before it: after_modules()
  return modules;
}

std::vector<measure::WeightModule> LayerStream::modules_of(
    const std::vector<std::shared_ptr<torch::nn::Module>>& parts) const {
  std::vector<measure::WeightModule> modules;
  for (const auto& part : parts) {
    const auto name = loaded_.model->name_of(*part);
    for (auto& m : measure::weight_modules(*loaded_.model))
      if (m.name == name || m.name.starts_with(name + ".")) modules.push_back(std::move(m));
  }
  return modules;
}

std::vector<measure::WeightModule> LayerStream::before_modules() const { return modules_of(parts_.before); }
std::vector<measure::WeightModule> LayerStream::after_modules() const { return modules_of(parts_.after); }

std::int64_t bytes_in_memory(const std::filesystem::path& folder, std::optional<at::ScalarType> dtype) {
  const io::Checkpoint checkpoint(folder);
  const auto loaded = prepare_model(folder, checkpoint, {.dtype = dtype});
  return bytes_of(*loaded.model, loaded.dtype);
}

}  // namespace fp8::models
