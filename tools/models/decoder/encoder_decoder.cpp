// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/cat.h>

#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/weights/parameters.h"

namespace fp8::models {
namespace {

class EncoderDecoder : public CausalLM {
 public:
  explicit EncoderDecoder(const EncoderDecoderConfig& config)
      : CausalLM(config.type + (config.shape.task == Task::embed ? "EncoderModel" : "ForConditionalGeneration"),
                 config.shape),
        config_(config) {
    const auto& shape = config.shape;
    for (auto* stack : {&config_.encoder, &config_.decoder}) stack->attention = config.attention;
    words_ = add_module(*this, config.decoder.names.words, make_embedding(shape.vocab, shape.hidden));
    encoder_ = add_stack(config_.encoder);
    if (shape.task == Task::embed) return;
    decoder_ = add_stack(config_.decoder);
    head_ =
        add_module(*this, config.decoder.names.head, make_linear(shape.hidden, shape.vocab, config.decoder.head_bias));
    if (config.decoder.tied) tie(head_, words_->weight);
    if (!config.logits_bias.empty())
      logits_bias_ = register_parameter(config.logits_bias, placeholder({1, shape.vocab}));
  }

  std::unique_ptr<Cache> make_cache(std::int64_t capacity) const override {
    TORCH_CHECK(decoder_.layers, "[models] ", name(), " is an encoder: it has no cache and continues no text");
    return std::make_unique<KVCache>(capacity);
  }

  std::unique_ptr<Cache> join(const std::vector<Cache*>& caches, std::int64_t capacity) const override {
    return KVCache::join(caches, capacity);
  }

  bool reads_in_parts() const override { return false; }  // the source is seen as a whole
  Parts parts() const override {
    Parts parts{.words = words_, .layers = layers_, .head = head_};
    const auto add = [](const auto& module, auto& list) {
      if (module) list.push_back(module.ptr());
    };
    for (const auto* stack : {&encoder_, &decoder_}) {
      add(stack->positions, parts.before);
      add(stack->words_norm, parts.before);
      add(stack->biases, parts.shared);
    }
    add(encoder_.norm, parts.shared);
    add(decoder_.norm, parts.after);
    return parts;
  }

  at::Tensor embed(const at::Tensor& words, const at::Tensor& positions, std::int64_t given) override {
    const auto columns = words.size(1), source = decoder_.layers ? given : columns;
    const auto part = [&](const at::Tensor& x, bool of_source) {
      return of_source ? columns_of(x, 0, source) : columns_of(x, source, columns - source);
    };
    const auto first = embed(config_.encoder, encoder_, part(words, true), part(positions, true));
    if (source == columns) return first;
    return at::cat({first, embed(config_.decoder, decoder_, part(words, false), part(positions, false))}, 1);
  }

  LayerFunction begin(const at::Tensor& h, Cache* cache, std::int64_t given) override {
    const auto shared = std::make_shared<Forward>();
    shared->source = decoder_.layers ? given : h.size(1);
    shared->answer = h.size(1) - shared->source;
    shared->cache = KVCache::of(cache);
    shared->rows = {.first = cache != nullptr ? cache->length() : 0, .count = shared->answer};
    if (cache != nullptr) shared->rows.starts = cache->starts();
    TORCH_CHECK(shared->source > 0 || (cache != nullptr && cache->length() > 0), "[models] ", name(),
                " answers a source text, found none");
    return [this, shared](std::int64_t layer, const at::Tensor& x) {
      const auto index = static_cast<std::size_t>(layer), encoders = encoder_.layers->size();
      return index < encoders ? encode(index, x, *shared) : decode(index - encoders, x, *shared);
    };
  }

  at::Tensor norm(const at::Tensor& h) override {
    if (!decoder_.layers) return h;
    const auto n = decoder_.norm ? decoder_.norm->forward(h) : h;
    return config_.head_scale == 1 ? n : n * config_.head_scale;
  }

  at::Tensor last_hidden(const at::Tensor& h) override { return h; }
  at::Tensor finish(const at::Tensor& scores) override {
    return logits_bias_.defined() ? scores + logits_bias_ : scores;
  }

  bool leaves_out(const std::string& name) const override {
    return config_.shape.task == Task::embed && !name.starts_with(config_.encoder.names.layers + ".");
  }

 private:
  struct Stack {
    torch::nn::Embedding positions{nullptr}, biases{nullptr};
    Norm words_norm{nullptr}, norm{nullptr};
    torch::nn::ModuleList layers{nullptr};
  };
  /// State that the layers of one forward share, made where the first of them asks for it.
  struct Forward {
    std::int64_t source = 0, answer = 0;  ///< columns
    Rows rows;                            ///< of the answer
    KVCache* cache = nullptr;
    std::optional<Sight> of_source, of_answer;
  };

  Stack add_stack(const DecoderConfig& config) {
    const auto& names = config.names;
    Stack stack;
    module_at(*this, parent_of(names.layers), config.type + "Stack");
    if (!names.positions.empty())
      stack.positions = add_module(*this, names.positions,
                                   make_embedding(config.shape.context + config.position_offset, config.shape.hidden));
    stack.words_norm = add_norm(*this, names.words_norm, config);
    stack.layers = add_module(*this, names.layers, torch::nn::ModuleList());
    for (std::int64_t i = 0; i < config.shape.layers; ++i) {
      stack.layers->push_back(DecoderLayer(config, static_cast<std::size_t>(i)));
      layers_->push_back(stack.layers->ptr(static_cast<std::size_t>(i)));
    }
    stack.norm = add_norm(*this, names.norm, config);
    if (config.buckets)
      stack.biases = add_module(*this, names.layers + ".0." + names.attention + ".relative_attention_bias",
                                make_embedding(config.buckets->count, config.shape.heads));
    return stack;
  }

  static at::Tensor embed(const DecoderConfig& config, Stack& stack, const at::Tensor& words,
                          const at::Tensor& positions) {
    if (words.size(1) == 0) return words;
    auto h = config.word_scale == 1 ? words : words * config.word_scale;
    if (stack.positions)
      h = h + stack.positions->forward((positions + config.position_offset).to(at::kLong).to(h.device()));
    return stack.words_norm ? stack.words_norm->forward(h) : h;
  }

  static Sight sight_in(const DecoderConfig& config, Stack& stack, const Rows& rows, at::Device device) {
    Sight sight = sight_of(rows, config.kinds.front(), device);
    if (!stack.biases) return sight;
    const auto buckets = distance_buckets(*config.buckets, rows.first, rows.count, !rows.causal);
    return {.mask = seen_bias(stack.biases->forward(buckets.to(device)), sight)};
  }

  at::Tensor encode(std::size_t layer, const at::Tensor& x, Forward& shared) {
    if (shared.source == 0) return x;
    if (!shared.of_source)
      shared.of_source = sight_in(config_.encoder, encoder_, {.count = shared.source, .causal = false}, x.device());
    LayerInputs inputs;
    inputs.sight = *shared.of_source;
    auto h = encoder_.layers->ptr(layer)->as<DecoderLayer>()->forward(columns_of(x, 0, shared.source), inputs);
    if (layer + 1 == encoder_.layers->size() && encoder_.norm) h = encoder_.norm->forward(h);
    return shared.answer == 0 ? h : at::cat({h, x.narrow(1, shared.source, shared.answer)}, 1);
  }

  at::Tensor decode(std::size_t layer, const at::Tensor& x, Forward& shared) {
    if (shared.answer == 0) return x;
    if (!shared.of_answer) shared.of_answer = sight_in(config_.decoder, decoder_, shared.rows, x.device());
    LayerInputs inputs;
    inputs.sight = *shared.of_answer;
    inputs.cache = shared.cache;
    if (shared.source > 0) inputs.source = columns_of(x, 0, shared.source);
    const auto h =
        decoder_.layers->ptr(layer)->as<DecoderLayer>()->forward(columns_of(x, shared.source, shared.answer), inputs);
    return shared.source == 0 ? h : at::cat({x.narrow(1, 0, shared.source), h}, 1);
  }

  EncoderDecoderConfig config_;
  torch::nn::Embedding words_{nullptr};
  Stack encoder_, decoder_;
  torch::nn::ModuleList layers_;  ///< of both, below no name
  torch::nn::Linear head_{nullptr};
  at::Tensor logits_bias_;  ///< [1, V] or undefined
};

}  // namespace

std::shared_ptr<CausalLM> make_encoder_decoder(const ModelConfig& config) {
  return std::make_shared<EncoderDecoder>(dynamic_cast<const EncoderDecoderConfig&>(config));
}

void EncoderDecoderConfig::fit(const io::Checkpoint& checkpoint) {
  auto& words = decoder.names.words;
  const auto is_there = [&](const std::string& module) { return checkpoint.contains(module + ".weight"); };
  const auto first = words.find('.');
  if (first != std::string::npos && !is_there(words) && is_there(words.substr(first + 1))) {
    // Files of the base model: "shared", "encoder.layers.0".
    const std::string prefix = words.substr(0, first + 1);
    for (auto* stack : {&encoder, &decoder}) {
      auto& names = stack->names;
      for (auto* name : {&names.words, &names.positions, &names.words_norm, &names.layers, &names.norm})
        if (name->starts_with(prefix)) name->erase(0, prefix.size());
    }
  }
  if (const std::string copy = parent_of(encoder.names.layers) + ".embed_tokens"; !is_there(words) && is_there(copy))
    words = copy;
  if (!checkpoint.contains(logits_bias)) logits_bias.clear();
  if (decoder.tied) decoder.tied = !has_other_weight(checkpoint, decoder.names.head, words);
}

void EncoderDecoderConfig::check(const io::Checkpoint& checkpoint) const {
  const auto check_stack = [&](const DecoderConfig& stack, const char* what) {
    const auto& names = stack.names;
    require_promised(checkpoint,
                     names.layers + "." + std::to_string(stack.shape.layers - 1) + "." + names.attention + "." +
                         names.out + ".weight",
                     what + std::string(" ") + std::to_string(stack.shape.layers));
  };
  const auto& words = decoder.names.words;
  for (const auto* stack : {&encoder, &decoder})
    if (const std::string own = parent_of(stack->names.layers) + ".embed_tokens";
        has_other_weight(checkpoint, own, words))
      io::fail<io::Error>(
          "[models] {}: tensor '{}.weight': found another than '{}.weight', allowed: one table of words for encoder "
          "and decoder",
          checkpoint.folder().string(), own, words);
  check_stack(encoder, "layers of the encoder");
  if (shape.task == Task::answer) check_stack(decoder, "layers of the decoder");
}

}  // namespace fp8::models
