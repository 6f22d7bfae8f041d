// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/decoder.h"

#include <ATen/ops/floor.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/tanh.h>

#include "fp8/tools/models/weights/parameters.h"

namespace fp8::models {
namespace {

at::Tensor through(Norm& norm, const at::Tensor& x) { return norm ? norm->forward(x) : x; }

at::Tensor through(Norm& norm, const at::Tensor& x, const std::string& path, const runtime::NextCast& next = {}) {
  if (!norm) return x;
  const runtime::ModuleScope module(path, "Norm");
  return norm->forward(x, next);
}

/// Adapts what names begin with, if it is not as transformers has it.
void fit_names(DecoderNames& names, const io::Checkpoint& checkpoint) {
  if (checkpoint.contains(names.words + ".weight")) return;
  std::string* const below[] = {&names.words,      &names.positions, &names.types,         &names.words_norm,
                                &names.project_in, &names.layers,    &names.project_out,   &names.norm,
                                &names.rotary,     &names.distances, &names.distance_norm, &names.convolution};
  const auto rename = [&](const auto& renamed) {
    if (!checkpoint.contains(renamed(names.words) + ".weight")) return false;
    for (std::string* name : below)
      if (!name->empty()) *name = renamed(*name);
    return true;
  };
  const auto without_first = [](const std::string& name) { return name.substr(name.find('.') + 1); };
  if (rename(without_first)) return;  // files of the base model: "wte", "h.0"
  // The language part of a model of text and images.
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model.text_model."})
    if (rename([&](const std::string& name) { return prefix + without_first(name); })) break;
  if (const std::string head = "language_model." + names.head; checkpoint.contains(head + ".weight")) names.head = head;
}

}  // namespace

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config, std::size_t layer)
    : torch::nn::Module(config.type + "DecoderLayer"),
      parallel_(config.parallel),
      norm_sums_(config.norm_sums),
      residual_is_normed_(config.residual_is_normed),
      residual_scale_(config.residual_scale) {
  if (config.kinds[layer].absent) return;
  const auto& names = config.names;
  const auto path = [&](const std::string& name) {
    return names.layers + "." + std::to_string(layer) + (name.empty() ? "" : "." + name);
  };
  const std::string mlp = config.kinds[layer].sparse ? names.moe : parent_of(names.mlp + "x");
  paths_ = {path(""),
            path(names.attention),
            path(mlp),
            path(names.before_attention),
            path(names.after_attention),
            path(names.before_mlp),
            path(names.after_mlp)};
  attention = add_module(*this, names.attention, DecoderAttention(config, layer));
  if (config.kinds[layer].sparse)
    moe_ = add_module(*this, names.moe, MoeBlock(config));
  else
    mlp_ = Mlp(config, config.mlp, module_at(*this, parent_of(names.mlp + "x"), config.type + "MLP"));
  if (layer > 0 || config.first_norm) before_attention_ = add_norm(*this, names.before_attention, config);
  after_attention_ = add_norm(*this, names.after_attention, config);
  if (!names.cross.empty()) cross_ = add_module(*this, names.cross, DecoderAttention(config, layer));
  before_cross_ = add_norm(*this, names.before_cross, config);
  after_cross_ = add_norm(*this, names.after_cross, config);
  before_mlp_ = add_norm(*this, names.before_mlp, config);
  after_mlp_ = add_norm(*this, names.after_mlp, config);
}

at::Tensor DecoderLayerImpl::feed_forward(const at::Tensor& x) {
  const runtime::ModuleScope module(paths_.mlp, moe_ ? "MoE" : "MLP");
  return moe_ ? moe_->forward(x) : mlp_.forward(x);
}

/// Experts take rows of x, each its own.
runtime::NextCast DecoderLayerImpl::feed_forward_cast(const at::Tensor& like) const {
  return moe_ ? runtime::NextCast() : mlp_.input_cast(like);
}

at::Tensor DecoderLayerImpl::look_at_source(const at::Tensor& h, const LayerInputs& inputs) {
  if (!cross_) return h;
  const auto sum = h + cross_->forward_cross(through(before_cross_, h), inputs);
  return through(after_cross_, sum);
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& x, const LayerInputs& inputs) {
  const auto scaled = [&](const at::Tensor& y) { return residual_scale_ == 1 ? y : y * residual_scale_; };
  if (!attention) return x;
  const runtime::ModuleScope layer(paths_.layer, "DecoderLayer");
  const auto n = through(before_attention_, x, paths_.before_attention, attention->input_cast(x));
  const auto attended = [&] {
    const runtime::ModuleScope module(paths_.attention, "Attention");
    return attention->forward(n, inputs);
  }();
  if (parallel_) {
    const auto other = before_mlp_ ? through(before_mlp_, x, paths_.before_mlp, feed_forward_cast(x)) : n;
    return x + attended + feed_forward(other);
  }
  if (norm_sums_) {
    const auto h = look_at_source(after_attention_->forward(x + attended), inputs);
    return after_mlp_->forward(h + feed_forward(h));
  }
  const auto h = look_at_source(
      (residual_is_normed_ ? n : x) + scaled(through(after_attention_, attended, paths_.after_attention)), inputs);
  const auto m = through(before_mlp_, h, paths_.before_mlp, feed_forward_cast(h));
  return (residual_is_normed_ ? m : h) + scaled(through(after_mlp_, feed_forward(m), paths_.after_mlp));
}

Decoder::Decoder(const DecoderConfig& config)
    : CausalLM(config.type + config.head_type, config.shape), config_(config) {
  const auto& names = config.names;
  module_at(*this, parent_of(names.layers), config.type + "Model");
  add_words();
  layers_ = add_module(*this, names.layers, torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.shape.layers; ++i)
    layers_->push_back(DecoderLayer(config, static_cast<std::size_t>(i)));
  norm_ = add_norm(*this, names.norm, config);
  if (!config.ropes.empty())
    rotary_ = add_module(*this, names.rotary, RotaryEmbedding(config.type + "RotaryEmbedding", config.ropes));
  if (const auto& distances = config.distances) {
    distances_ = add_module(*this, names.distances, make_embedding(2 * distances->span, config.shape.hidden));
    if (distances->normed) distance_norm_ = add_norm(*this, names.distance_norm, config);
  }
  if (config.convolution) convolution_ = add_module(*this, names.convolution, Convolution(config));
  add_head();
}

void Decoder::add_words() {
  const auto& config = config_;
  const auto& names = config.names;
  const auto hidden = config.shape.hidden, width = config.word_width > 0 ? config.word_width : hidden;
  words_ = add_module(*this, names.words, make_embedding(config.shape.vocab + config.extra_words, width));
  const auto summed = config.projection == WordProjection::first ? hidden : width;
  if (!names.positions.empty())
    positions_ =
        add_module(*this, names.positions, make_embedding(config.shape.context + config.position_offset, summed));
  if (config.token_types > 0) types_ = add_module(*this, names.types, make_embedding(config.token_types, summed));
  words_norm_ = add_norm(*this, names.words_norm, config, config.projection == WordProjection::last ? width : hidden);
  if (width != hidden) {
    if (!names.project_out.empty())
      project_out_ = add_module(*this, names.project_out, make_linear(hidden, width, /*bias=*/false));
    project_in_ =
        add_module(*this, names.project_in, make_linear(width, hidden, config.projection == WordProjection::last));
  }
}

void Decoder::add_head() {
  const auto& names = config_.names;
  const auto& shape = config_.shape;
  if (shape.task == Task::embed) return;
  const auto width = config_.last.width > 0 ? config_.last.width : project_out_ ? config_.word_width : shape.hidden;
  head_ = add_module(*this, config_.head(), make_linear(width, shape.outputs(), config_.head_bias));
  if (!names.head_dense.empty())
    head_dense_ = add_module(*this, names.head_dense, make_linear(shape.hidden, width, config_.last.dense_bias));
  if (!names.head_norm.empty())
    head_norm_ = add_module(*this, names.head_norm,
                            Norm(norm_type(config_.type, config_.norm), std::vector{width}, config_.last.norm));
  if (config_.tied) tie(head_, words_->weight);
}

std::unique_ptr<Cache> Decoder::make_cache(std::int64_t capacity) const {
  TORCH_CHECK(config_.causal, "[models] ", name(), " is an encoder: it has no cache and continues no text");
  return std::make_unique<KVCache>(capacity);
}

bool Decoder::reads_in_parts() const {
  return std::none_of(config_.ropes.begin(), config_.ropes.end(), [](const RopeSpec& rope) {
    return rope.kind == RopeSpec::Kind::dynamic || rope.kind == RopeSpec::Kind::longrope;  // angles of the whole length
  });
}

std::unique_ptr<Cache> Decoder::join(const std::vector<Cache*>& caches, std::int64_t capacity) const {
  return KVCache::join(caches, capacity);
}

CausalLM::Parts Decoder::parts() const {
  Parts parts{.words = words_, .layers = layers_, .head = head_};
  const auto add = [](auto& list, const auto&... modules) {
    ((modules ? list.push_back(modules.ptr()) : void()), ...);
  };
  add(parts.before, positions_, types_, words_norm_, project_in_);
  add(parts.shared, distances_, distance_norm_, convolution_);
  add(parts.after, norm_, project_out_, head_dense_, head_norm_);
  return parts;
}

at::Tensor Decoder::embed(const at::Tensor& words, const at::Tensor& positions, std::int64_t) {
  auto h = words;
  // As transformers multiplies: by the factor in the dtype of the words.
  if (config_.word_scale != 1) h = h * at::scalar_tensor(config_.word_scale, h.options().device(at::kCPU)).item();
  const auto project = [&](WordProjection place) {
    if (project_in_ && config_.projection == place) h = project_in_->forward(h);
  };
  project(WordProjection::first);
  if (positions_) h = h + positions_->forward((positions + config_.position_offset).to(at::kLong).to(h.device()));
  if (types_) h = h + types_->weight.select(0, 0);
  project(WordProjection::summed);
  h = through(words_norm_, h);
  project(WordProjection::last);
  return h;
}

CausalLM::LayerFunction Decoder::begin(const at::Tensor& h, Cache* cache, std::int64_t) {
  Rows rows{.first = cache != nullptr ? cache->length() : 0, .count = h.size(1), .causal = config_.causal};
  if (cache != nullptr) rows.starts = cache->starts();
  TORCH_CHECK(rows.starts.empty() || h.size(0) == static_cast<std::int64_t>(rows.starts.size()),
              "[models] expected ids of ", rows.starts.size(), " sequences, found ", h.size(0));
  struct Shared {
    std::vector<RotaryAngles> angles;
    std::vector<std::pair<LayerKind, Sight>> sights;  // of each kind
    at::Tensor query_scale;
    std::optional<Distances> distances;
  };
  const auto shared = std::make_shared<Shared>();
  const auto positions = rows.positions();
  if (rotary_) shared->angles = rotary_->forward(positions, rows.in_use(), h);
  for (const auto& kind : config_.kinds) {
    const auto is_kind = [&](const auto& known) { return known.first == kind; };
    if (std::none_of(shared->sights.begin(), shared->sights.end(), is_kind))
      shared->sights.emplace_back(kind, sight_of(rows, kind, h.device()));
  }
  if (const auto& spec = config_.attend; spec.tuning_scale != 0) {
    const auto steps = at::log1p(at::floor((positions + 1.0) / spec.tuning_floor));
    shared->query_scale = (steps * spec.tuning_scale + 1.0).unsqueeze(1).unsqueeze(-1).to(h.device());
  }
  if (config_.distances) {
    // Layers project the rows of distances in this text alone: at most 2 L - 1.
    const auto all = distance_rows(*config_.distances, rows.count);
    const auto first = all.min().item<std::int64_t>(), count = all.max().item<std::int64_t>() - first + 1;
    const auto table = distances_->weight.narrow(0, first, count);
    shared->distances = {.table = through(distance_norm_, table).unsqueeze(0), .rows = (all - first).to(h.device())};
  }
  return [this, shared, kv = KVCache::of(cache)](std::int64_t layer, const at::Tensor& x) {
    const auto index = static_cast<std::size_t>(layer);
    const auto& kind = config_.kinds[index];
    LayerInputs inputs;
    if (kind.rope >= 0 && !shared->angles.empty()) inputs.angles = &shared->angles[static_cast<std::size_t>(kind.rope)];
    if (kind.rope < 0) inputs.query_scale = shared->query_scale;
    for (const auto& [known, sight] : shared->sights)
      if (known == kind) inputs.sight = sight;
    inputs.cache = kv;
    if (shared->distances) inputs.distances = &*shared->distances;
    const auto y = layers_->ptr(index)->as<DecoderLayer>()->forward(x, inputs);
    return convolution_ && index == 0 ? convolution_->forward(x, y) : y;
  };
}

at::Tensor Decoder::last_hidden(const at::Tensor& h) { return through(norm_, h); }

at::Tensor Decoder::norm(const at::Tensor& h) {
  auto n = through(norm_, h);
  if (project_out_) return project_out_->forward(n);
  if (config_.shape.task == Task::embed) return n;
  const auto& last = config_.last;
  if (last.pool == HeadSpec::Pool::first) n = n.narrow(1, 0, 1);
  if (last.pool == HeadSpec::Pool::mean) n = n.mean(1, /*keepdim=*/true);
  if (head_dense_) n = activate(last.activation, head_dense_->forward(n));
  return through(head_norm_, n);
}

at::Tensor Decoder::finish(const at::Tensor& logits) {
  const auto scaled = config_.logit_scale == 1 ? logits : logits * config_.logit_scale;
  return config_.logit_cap > 0 ? at::tanh(scaled / config_.logit_cap) * config_.logit_cap : scaled;
}

CausalLM::Storage Decoder::storage_of(const std::string& parameter) const {
  Storage storage;
  const bool in_layer = parameter.starts_with(config_.names.layers + ".");
  const bool expert = parameter.find(".experts.moe_op.") != std::string::npos;
  const auto leaf = leaf_of(parent_of(parameter));
  const bool projection = expert || leaf == config_.names.qkv || leaf == config_.names.out ||
                          leaf == config_.names.up || leaf == config_.names.down;
  storage.transposed =
      in_layer && projection && parameter.ends_with(".weight") && (expert ? config_.moe.in_out : config_.transposed);
  storage.wide = config_.moe.correction && parameter.ends_with("." + leaf_of(config_.names.correction));
  return storage;
}

bool Decoder::leaves_out(const std::string& name) const {
  const std::string layers = config_.names.layers + ".";
  if (!name.starts_with(layers)) {
    const bool other = name != config_.names.head && name != config_.names.project_in;
    return (config_.of_images || config_.shape.task == Task::embed) && other;
  }
  const auto index = name.substr(layers.size(), name.find('.', layers.size()) - layers.size());
  const auto& kinds = config_.kinds;
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (kinds[i].absent && std::to_string(i) == index) return true;
  return false;
}

std::shared_ptr<CausalLM> make_decoder(const ModelConfig& config) {
  return std::make_shared<Decoder>(dynamic_cast<const DecoderConfig&>(config));
}

void DecoderConfig::fit(const io::Checkpoint& checkpoint) {
  fit_names(names, checkpoint);
  if (tied) tied = !has_other_weight(checkpoint, own_head(), names.words);
}

void DecoderConfig::check(const io::Checkpoint& checkpoint) const {
  auto count = kinds.size();
  while (count > 0 && kinds[count - 1].absent) --count;
  if (count == 0) return;
  const bool of_words = shape.task == Task::causal || shape.task == Task::masked;
  if (of_words && !tied) require_head(checkpoint, head());
  const auto last = names.layers + "." + std::to_string(count - 1) + ".";
  const std::string promise = "num_hidden_layers " + std::to_string(shape.layers);
  const std::string out = attend.latent || attend.layout == QkvLayout::separate ? names.out : names.qkv;
  require_promised(checkpoint, last + names.attention + "." + out + ".weight", promise);
  if (moe.experts == 0 || !kinds[count - 1].sparse || moe.biased) return;
  check_parameter(checkpoint,
                  last + names.moe + ".experts.moe_op.w2_list." + std::to_string(moe.experts - 1) + ".weight",
                  {shape.hidden, moe.inner}, {.transposed = moe.in_out});
}

}  // namespace fp8::models
