// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/base/causal_lm.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::models {

at::Tensor positions_of(std::int64_t length, std::int64_t source, const Cache* cache) {
  const auto start = cache != nullptr ? cache->length() : 0;
  auto columns = at::arange(start, start + length - source, at::kFloat).unsqueeze(0);
  if (source > 0) columns = at::cat({at::arange(source, at::kFloat).unsqueeze(0), columns}, 1);
  if (cache == nullptr || cache->starts().empty()) return columns;
  return columns - at::tensor(cache->starts(), at::kFloat).unsqueeze(1);
}

void Cache::keep(const std::vector<std::int64_t>&) {
  TORCH_CHECK(false, "[models] sequences of this cache can't be taken out");
}

std::unique_ptr<Cache> CausalLM::join(const std::vector<Cache*>&, std::int64_t) const { return nullptr; }

at::Tensor CausalLM::forward(const at::Tensor& ids, Cache* cache, Logits logits, std::int64_t source) {
  const auto h = run_layers(ids, cache, source);
  if (logits == Logits::none) return {};
  const auto first = logits == Logits::last ? h.size(1) - 1 : source;
  return this->logits(norm(columns_of(h, first, h.size(1) - first)));
}

at::Tensor CausalLM::head_input(const at::Tensor& ids, std::int64_t source) {
  const auto h = run_layers(ids, nullptr, source);
  return norm(columns_of(h, source, h.size(1) - source));
}

at::Tensor CausalLM::logits(const at::Tensor& columns) {
  auto head = parts().head;
  return head ? finish(head->forward(columns)) : columns;
}

at::Tensor CausalLM::hidden(const at::Tensor& ids) {
  return last_hidden(run_layers(ids, nullptr, shape_.task == Task::answer ? ids.size(1) : 0));
}

at::Tensor CausalLM::run_layers(const at::Tensor& ids, Cache* cache, std::int64_t source) {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && ids.size(1) >= 1,
              "[models] expected ids [batch, length >= 1] of int64, got ", ids.sizes(), " of ", ids.scalar_type());
  TORCH_CHECK(source >= 0 && source <= (shape_.task == Task::answer ? ids.size(1) : 0), "[models] ", source, " of ",
              ids.size(1), " ids are said to be of a source");
  auto positions = ids.size(1) - source + (cache != nullptr ? cache->length() : 0);
  if (cache != nullptr && !cache->starts().empty())
    positions -= *std::min_element(cache->starts().begin(), cache->starts().end());
  positions = std::max(positions, source);
  TORCH_CHECK(positions <= shape_.context, "[models] ", positions, " positions, but max_position_embeddings is ",
              shape_.context);
  std::optional<kernels::AwakeWorkers> awake;  // products of one token follow each other fast
  if (cache != nullptr && ids.size(1) == 1) awake.emplace();
  auto modules = parts();
  auto h = embed(modules.words->forward(ids), positions_of(ids.size(1), source, cache), source);
  const auto run = begin(h, cache, source);
  for (std::int64_t i = 0; i < shape_.layers; ++i) {
    if (run_layer_ && cache == nullptr && is_training())
      h = run_layer_([run, i](const at::Tensor& x) { return run(i, x); }, h);
    else
      h = run(i, h);
  }
  if (cache != nullptr) cache->advance(ids.size(1) - source);
  return h;
}

void CausalLM::untie_head() {
  const auto modules = parts();
  const auto& shared = modules.words->weight;
  if (modules.head && modules.head->weight.is_same(shared))
    tie(modules.head, shared.detach().clone().set_requires_grad(shared.requires_grad()));
}

std::string CausalLM::name_of(const torch::nn::Module& part) const {
  for (const auto& item : named_modules("", /*include_self=*/false))
    if (item.value().get() == &part) return item.key();
  TORCH_INTERNAL_ASSERT(false, "[models] ", part.name(), " is no part of ", name());
}

namespace {

/// Module::parameters_ is protected, and a Linear subclass would have another class name; a pointer to the member
/// reaches it.
struct ParameterAccess : torch::nn::Module {
  static auto member() { return &ParameterAccess::parameters_; }
};

/// Rows of memory as bytes, which float8 operations may lack.
at::Tensor bytes_of(const at::Tensor& t) { return c10::isFloat8Type(t.scalar_type()) ? t.view(at::kByte) : t; }

/// One layer's keys or values of `parts`, each [b, K, capacity, D], whose tokens end in column `end`.
at::Tensor join_layer(const std::vector<std::pair<at::Tensor, std::int64_t>>& parts, std::int64_t end,
                      std::int64_t capacity) {
  if (!parts.front().first.defined()) return {};  // a latent cache has no values, an absent layer neither
  const at::Tensor first = bytes_of(parts.front().first);
  std::int64_t sequences = 0, row = 0;
  for (const auto& part : parts) sequences += part.first.size(0);
  const at::Tensor all = at::zeros({sequences, first.size(1), capacity, first.size(3)}, first.options());
  for (const auto& [stored, length] : parts) {
    all.narrow(0, row, stored.size(0)).narrow(2, end - length, length).copy_(bytes_of(stored).narrow(2, 0, length));
    row += stored.size(0);
  }
  return all.view(parts.front().first.scalar_type());
}

at::Tensor stored_as(const at::Tensor& current, const runtime::KVCache& module) {
  const auto handler = module->slot()->handler;
  return handler != nullptr ? handler->store(current) : current;
}

at::Tensor read_as(const at::Tensor& stored, at::ScalarType dtype, const runtime::KVCache& module) {
  const auto handler = module->slot()->handler;
  return handler != nullptr ? handler->fetch(stored, dtype) : stored;
}

}  // namespace

at::Tensor placeholder(at::IntArrayRef shape) {
  return at::full({1}, std::numeric_limits<float>::quiet_NaN(), at::kFloat).expand(shape);
}

torch::nn::Linear make_linear(std::int64_t in, std::int64_t out, bool bias) {
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(bias));  // without the cost of its random numbers
  linear->options.in_features(in);
  linear->options.out_features(out);
  linear->weight.set_data(placeholder({out, in}));
  if (bias) linear->bias.set_data(placeholder({out}));
  return linear;
}

torch::nn::Embedding make_embedding(std::int64_t rows, std::int64_t width) {
  return torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, width)._weight(placeholder({rows, width})));
}

void tie(torch::nn::Linear linear, const at::Tensor& weight) {
  torch::nn::Module& module = *linear;
  (module.*ParameterAccess::member())["weight"] = weight;
  linear->weight = weight;
}

std::vector<std::pair<std::string, at::Tensor>> distinct_parameters(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string leaf_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path, const std::string& type) {
  if (path.empty()) return root;
  torch::nn::Module& parent = module_at(root, parent_of(path));
  const std::string name = leaf_of(path);
  const auto children = parent.named_children();
  if (const auto* found = children.find(name)) return **found;
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(type));
}

KVCache* KVCache::of(Cache* cache) {
  auto* found = dynamic_cast<KVCache*>(cache);
  TORCH_CHECK(found != nullptr || cache == nullptr, "[models] the cache was made by a model of another family");
  return found;
}

std::unique_ptr<KVCache> KVCache::join(const std::vector<Cache*>& caches, std::int64_t capacity) {
  std::vector<KVCache*> parts;
  std::vector<std::int64_t> starts;
  std::int64_t longest = 0;
  for (Cache* cache : caches) {
    parts.push_back(KVCache::of(cache));
    TORCH_CHECK(parts.back() != nullptr && parts.back()->starts().empty() && !parts.back()->layers_.empty() &&
                    parts.back()->layers_.size() == parts.front()->layers_.size(),
                "[models] join: expected caches of one model that have seen tokens and were not joined");
    longest = std::max(longest, parts.back()->length());
  }
  TORCH_CHECK(!parts.empty() && longest <= capacity, "[models] join: expected caches, of up to ", capacity,
              " tokens, found ", longest);
  auto all = std::make_unique<KVCache>(capacity);
  for (std::size_t i = 0; i < parts.front()->layers_.size(); ++i) {
    std::vector<std::pair<at::Tensor, std::int64_t>> keys, values;
    for (const KVCache* part : parts) {
      keys.emplace_back(part->layers_[i].first, part->length());
      values.emplace_back(part->layers_[i].second, part->length());
    }
    all->layers_.emplace_back(join_layer(keys, longest, capacity), join_layer(values, longest, capacity));
  }
  join_sources(parts, *all);
  for (const KVCache* part : parts)
    starts.insert(starts.end(), static_cast<std::size_t>(part->sequences()), longest - part->length());
  all->set_starts(std::move(starts));
  all->advance(longest);
  return all;
}

/// Those of all end in one column too.
void KVCache::join_sources(const std::vector<KVCache*>& parts, KVCache& all) {
  if (parts.front()->sources_.empty()) return;
  std::int64_t longest = 0;
  for (const KVCache* part : parts) longest = std::max(longest, part->sources_.front().first.size(2));
  for (std::size_t i = 0; i < parts.front()->sources_.size(); ++i) {
    std::vector<std::pair<at::Tensor, std::int64_t>> keys, values;
    for (const KVCache* part : parts) {
      const auto& [k, v] = part->sources_[i];
      keys.emplace_back(k, k.size(2));
      values.emplace_back(v, v.size(2));
    }
    all.sources_.emplace_back(join_layer(keys, longest, longest), join_layer(values, longest, longest));
  }
  for (const KVCache* part : parts)
    all.source_starts_.insert(all.source_starts_.end(), static_cast<std::size_t>(part->sequences()),
                              longest - part->sources_.front().first.size(2));
}

std::int64_t KVCache::sequences() const {
  for (const auto& [keys, values] : layers_)
    if (keys.defined()) return keys.size(0);
  return 0;
}

void KVCache::keep(const std::vector<std::int64_t>& sequences) {
  TORCH_CHECK(!starts().empty(), "[models] keep: expected a cache that join() made");
  std::vector<std::int64_t> kept;
  for (const auto i : sequences) {
    TORCH_CHECK(i >= 0 && i < static_cast<std::int64_t>(starts().size()), "[models] keep: found sequence ", i,
                ", allowed: 0 to ", starts().size() - 1);
    kept.push_back(starts()[static_cast<std::size_t>(i)]);
  }
  const auto take = [&](at::Tensor& stored) {
    if (!stored.defined()) return;
    const at::Tensor bytes = bytes_of(stored);
    std::vector<at::Tensor> rows;
    for (const auto i : sequences) rows.push_back(bytes.narrow(0, i, 1));
    stored = at::cat(rows).view(stored.scalar_type());
  };
  for (auto& [keys, values] : layers_) take(keys), take(values);
  for (auto& [keys, values] : sources_) take(keys), take(values);
  if (!source_starts_.empty()) {
    std::vector<std::int64_t> left;
    for (const auto i : sequences) left.push_back(source_starts_[static_cast<std::size_t>(i)]);
    source_starts_ = std::move(left);
  }
  set_starts(std::move(kept));
}

/// Everything so far, as it is stored.
at::Tensor KVCache::put(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const {
  const auto handler = module->slot()->handler;
  const auto dtype = handler != nullptr ? handler->cache_dtype(current.scalar_type()) : current.scalar_type();
  const auto tokens = current.size(2);
  if (!stored.defined())
    stored = at::empty({current.size(0), current.size(1), capacity(), current.size(3)}, current.options().dtype(dtype));
  TORCH_CHECK(stored.scalar_type() == dtype,
              "[models] the key/value cache was filled before the model was converted: it holds ", stored.scalar_type(),
              ", not ", dtype);
  stored.narrow(2, length(), tokens).copy_(stored_as(current, module));
  return stored.narrow(2, 0, length() + tokens);
}

at::Tensor KVCache::append(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const {
  return read_as(put(stored, current, module), current.scalar_type(), module);
}

std::optional<KVCache::Codes> KVCache::append_codes(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                                    const runtime::KVCache& keys, const runtime::KVCache& values) {
  const auto handler_of = [](const runtime::KVCache& module) {
    const auto* handler = quant::node_handler(*module->slot());
    const auto* cache = handler == nullptr ? nullptr : handler->kv_cache();
    return cache != nullptr && cache->keeps_codes() ? cache : nullptr;
  };
  const auto *of_keys = handler_of(keys), *of_values = handler_of(values);
  if (of_keys == nullptr || of_values == nullptr) return std::nullopt;
  auto& [stored_keys, stored_values] = room_for(layer, k.size(2));
  return Codes{of_keys->codes_of(put(stored_keys, k, keys)), of_values->codes_of(put(stored_values, v, values))};
}

std::pair<at::Tensor, at::Tensor> KVCache::append(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                                  const runtime::KVCache& keys, const runtime::KVCache& values) {
  auto& [stored_keys, stored_values] = room_for(layer, k.size(2));
  return {append(stored_keys, k, keys), append(stored_values, v, values)};
}

at::Tensor KVCache::append(std::size_t layer, const at::Tensor& latent, const runtime::KVCache& keys) {
  return append(room_for(layer, latent.size(2)).first, latent, keys);
}

void KVCache::keep_source(std::size_t layer, const at::Tensor& k, const at::Tensor& v, const runtime::KVCache& keys,
                          const runtime::KVCache& values) {
  if (sources_.size() <= layer) sources_.resize(layer + 1);
  sources_[layer] = {stored_as(k, keys), stored_as(v, values)};
}

std::pair<at::Tensor, at::Tensor> KVCache::source(std::size_t layer, at::ScalarType dtype, const runtime::KVCache& keys,
                                                  const runtime::KVCache& values) const {
  TORCH_CHECK(layer < sources_.size() && sources_[layer].first.defined(),
              "[models] the key/value cache knows no source text: the first forward has one");
  return {read_as(sources_[layer].first, dtype, keys), read_as(sources_[layer].second, dtype, values)};
}

at::Tensor KVCache::source_mask() const {
  if (std::all_of(source_starts_.begin(), source_starts_.end(), [](auto start) { return start == 0; })) return {};
  const auto columns = at::arange(sources_.front().first.size(2), at::kLong);
  return at::ge(columns, at::tensor(source_starts_, at::kLong).view({-1, 1, 1, 1}));
}

std::pair<at::Tensor, at::Tensor>& KVCache::room_for(std::size_t layer, std::int64_t tokens) {
  TORCH_CHECK(length() + tokens <= capacity(), "[models] the key/value cache holds ", capacity(), " tokens, found ",
              length() + tokens);
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  return layers_[layer];
}

}  // namespace fp8::models
