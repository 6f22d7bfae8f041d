// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/base/kv_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "fp8/quant/handlers/attention_handler.h"

namespace fp8::models {
namespace {

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
    const auto* handler = dynamic_cast<const quant::Fp8KvCacheHandler*>(module->slot()->handler.get());
    return handler != nullptr && handler->keeps_codes() ? handler : nullptr;
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
