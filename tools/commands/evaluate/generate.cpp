// SPDX-License-Identifier: Apache-2.0
// fp8 generate: continues a prompt, or those of a file in batches; models that answer a source text answer it. One text
// is shown as soon as it is whole: a token may end inside a UTF-8 sequence.
#include <ATen/core/grad_mode.h>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/tools/commands/evaluate/continuation.h"
#include "fp8/tools/commands/inputs/model_input.h"

namespace fp8::commands {
namespace {

constexpr std::uint64_t kMostPrompt = std::uint64_t{64} << 20;  // bytes

/// Ids of a prompt; source: the option or the file that it came from.
std::vector<std::int64_t> encode_prompt(const GenerateOptions& options, const std::string& source,
                                        const text::RowText& prompt, const text::Tokenizer& tokenizer,
                                        const models::ModelShape& shape) {
  auto ids = tokenizer.encode(prompt.text, prompt.special);
  if (ids.empty()) ids = shape.bos;
  if (ids.empty()) io::fail<UsageError>("{}: found no tokens, and the model has no bos_token_id to start from", source);
  if (static_cast<std::int64_t>(ids.size()) > shape.context)
    io::fail<io::Error>("{}: found {} tokens, allowed: up to max_position_embeddings {}", source, ids.size(),
                        shape.context);
  for (const auto id : ids)
    if (id < 0 || id >= shape.vocab)
      io::fail<io::Error>("{}: tokenizer gives id {}, allowed: 0 to {} (vocab_size)", options.model.string(), id,
                          shape.vocab - 1);
  return ids;
}

/// Tokens per second; null where nothing was timed.
io::Json speed(std::int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? io::Json(static_cast<double>(tokens) / seconds) : io::Json();
}

struct Prompts {
  std::vector<text::RowText> texts;
  std::string source;  ///< the option or the file
};

/// Of --prompts.
std::vector<text::RowText> documents_of(const GenerateOptions& options) {
  const std::string name = text::data_name(options.prompts);
  if (text::data_kind(options.prompts) == text::DataKind::tensors)
    io::fail<io::Error>("{}: holds token ids, allowed: .txt, .md, .jsonl, .json", name);
  std::vector<text::RowText> all;
  text::Documents documents(options.prompts, options.model, text::RowUse::prompt, check_interrupted);
  for (text::Document document; documents.read(kMostPrompt, document); documents.advance()) {
    if (!document.complete) io::fail<io::Error>("{}: found a prompt of more than {} bytes", name, kMostPrompt);
    all.push_back({std::move(document.text), document.special});
  }
  if (all.empty()) io::fail<io::Error>("{}: found no prompts", name);
  return all;
}

Prompts prompts_of(const GenerateOptions& options) {
  if (!options.prompts.empty()) return {documents_of(options), text::data_name(options.prompts)};
  if (options.prompt) return {{{*options.prompt}}, "--prompt"};
  return {{{io::read_file(options.prompt_file, kMostPrompt)}}, options.prompt_file.string()};
}

io::Json json_of(const std::string& prompt, const Continuation& one) {
  return {{"prompt", prompt},         {"text", one.text},      {"ids", one.ids}, {"prompt_tokens", one.prompt.size()},
          {"tokens", one.ids.size()}, {"stopped", one.stopped}};
}

/// Of all prompts, `options.batch` at a time.
class Generation {
 public:
  Generation(const GenerateOptions& options, const Context& context, models::LoadedModel& loaded)
      : options_(options), context_(context), loaded_(loaded), tokenizer_(options.model) {}

  void run(const Prompts& prompts, EnvironmentConfig& quant_config) {
    const bool streams = prompts.texts.size() == 1 && !context_.json;  // one text is shown as it grows
    ContinuationOptions how;
    how.tokens = options_.tokens, how.temperature = options_.temperature, how.seed = context_.seed;
    how.device = resolve_device(context_);
    how.model = options_.model.string();
    how.begin = [&](std::int64_t first, std::int64_t count) { quant_config.begin_samples(first, count); };
    std::vector<Continuation> all(prompts.texts.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i].prompt = encode_prompt(options_, prompts.source, prompts.texts[i], tokenizer_, loaded_.model->shape());
    quant_config.plan_samples(static_cast<std::int64_t>(all.size()));
    if (streams) write_stdout(echoed(prompts.texts[0].text));
    std::optional<Progress> progress;  // beside texts on the same terminal it would be in the way
    if (context_.json && all.size() > 1) progress.emplace(context_, "generate", static_cast<std::int64_t>(all.size()));
    for (std::size_t first = 0; first < all.size();) {
      const auto count = std::min(static_cast<std::size_t>(options_.batch), all.size() - first);
      std::vector<Continuation> batch(all.begin() + static_cast<std::ptrdiff_t>(first),
                                      all.begin() + static_cast<std::ptrdiff_t>(first + count));
      const auto seconds =
          continue_prompts(*loaded_.model, tokenizer_, how, first, batch, [&](std::size_t, const std::string& piece) {
            if (streams) write_stdout(piece);
          });
      prompt_seconds_ += seconds.prompts, seconds_ += seconds.all;
      for (std::size_t i = 0; i < count; ++i) add(prompts.texts[first + i].text, batch[i], streams);
      first += count;
      if (progress) progress->update(static_cast<std::int64_t>(first));
    }
  }

  io::Json json() {
    io::Json result = results_.size() == 1 && options_.prompts.empty() ? results_[0] : io::Json{{"results", results_}};
    result["prompt_tokens"] = prompt_tokens_;
    result["tokens"] = tokens_;
    result["kv_cache"] = kv_cache_of(loaded_).holds;
    result["seconds"] = seconds_;
    result["prompt_tokens_per_second"] = speed(prompt_tokens_, prompt_seconds_);
    result["tokens_per_second"] = speed(tokens_ - first_tokens_, seconds_ - prompt_seconds_);
    return result;
  }

 private:
  /// A continued text stands in front of what continues it; a source is no part of its answer.
  std::string echoed(const std::string& prompt) const {
    return loaded_.model->shape().task == models::Task::answer ? "" : prompt;
  }
  void add(const std::string& prompt, const Continuation& one, bool streamed) {
    prompt_tokens_ += static_cast<std::int64_t>(one.prompt.size());
    tokens_ += static_cast<std::int64_t>(one.ids.size());
    first_tokens_ += one.ids.empty() ? 0 : 1;
    if (!context_.json && !streamed) write_stdout((results_.empty() ? "" : "\n\n") + echoed(prompt) + one.text);
    results_.push_back(json_of(prompt, one));
  }

  const GenerateOptions& options_;
  const Context& context_;
  models::LoadedModel& loaded_;
  const text::Tokenizer tokenizer_;
  io::Json results_ = io::Json::array();
  std::int64_t prompt_tokens_ = 0, tokens_ = 0;
  std::int64_t first_tokens_ = 0;  ///< those that the prompts' forwards gave
  double prompt_seconds_ = 0, seconds_ = 0;
};

void generate(const GenerateOptions& options, Context& context) {
  const Prompts prompts = prompts_of(options);
  return_large_blocks();
  at::NoGradGuard no_grad;
  auto loaded = load_language_model(options.model, context, options.attention, options.allow_nonfinite);
  const auto& shape = loaded.model->shape();
  if (shape.task == models::Task::answer) start_of_answers(options.model, shape);
  if (shape.task != models::Task::causal && shape.task != models::Task::answer)
    io::fail<io::Error>(
        "{}: {} is an encoder, which continues no text, allowed: causal language models (fp8 evaluate takes both)",
        options.model.string(), loaded.model->name());
  EnvironmentConfig quant_config(loaded, context);
  quant::serve(*loaded.model);
  set_kv_cache(loaded, options.kv_cache, context);
  Generation generation(options, context, loaded);
  generation.run(prompts, quant_config);
  quant_config.finish();
  context.result(generation.json(), "\n");
}

const Provided g_generate(generate_text, generate);

}  // namespace
}  // namespace fp8::commands
