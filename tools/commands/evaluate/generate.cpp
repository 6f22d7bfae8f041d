// SPDX-License-Identifier: Apache-2.0
// fp8 generate: continues a prompt token by token with a key/value cache, greedily or by sampling at a temperature.
// Text is shown as soon as it is whole: a token may end inside a UTF-8 sequence.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/quant/model/serve.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/stopwatch.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/evaluate/text_stream.h"
#include "fp8/tools/commands/inputs/environment_config.h"
#include "fp8/tools/commands/inputs/kv_cache.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/text/tokenizer.h"

namespace fp8::commands {
namespace {

struct GenerateOptions {
  std::filesystem::path model;
  std::optional<std::string> prompt;
  std::filesystem::path prompt_file;
  std::int64_t tokens = 128;
  double temperature = 0;
  models::AttentionKind attention = models::AttentionKind::fused;
  KvCacheOptions kv_cache;
  bool allow_nonfinite = false;
};

/// The next token from logits [V]: the largest, or drawn from softmax(logits / temperature). The draw uses only the
/// generator's bits and f64 arithmetic on the host, so a seed gives the same text whatever the thread count.
std::int64_t pick(const at::Tensor& logits, double temperature, std::mt19937_64& generator) {
  if (temperature <= 0) return logits.argmax().item<std::int64_t>();
  const auto p = at::softmax(logits.to(at::kDouble) / temperature, -1).contiguous();
  const double* values = p.const_data_ptr<double>();
  double rest = static_cast<double>(generator() >> 11) * 0x1p-53;  // uniform in [0, 1)
  std::int64_t last = 0;                                           // the last possible token takes what rounding leaves
  for (std::int64_t i = 0; i < p.numel(); ++i) {
    if (values[i] <= 0) continue;
    last = i;
    rest -= values[i];
    if (rest < 0) break;
  }
  return last;
}

/// Ids of `prompt`, which is --prompt or what --prompt-file holds.
std::vector<std::int64_t> encode_prompt(const GenerateOptions& options, const std::string& prompt,
                                        const text::Tokenizer& tokenizer, const models::ModelShape& shape) {
  const std::string source = options.prompt ? "--prompt" : options.prompt_file.string();
  auto ids = tokenizer.encode(prompt);
  if (ids.empty()) ids = shape.bos;
  if (ids.empty()) throw UsageError(source + ": found no tokens, and the model has no bos_token_id to start from");
  if (static_cast<std::int64_t>(ids.size()) > shape.context)
    throw io::Error(fmt::format("{}: found {} tokens, allowed: up to max_position_embeddings {}", source, ids.size(),
                                shape.context));
  for (const auto id : ids)
    if (id < 0 || id >= shape.vocab)
      throw io::Error(fmt::format("{}: tokenizer gives id {}, allowed: 0 to {} (vocab_size)", options.model.string(),
                                  id, shape.vocab - 1));
  return ids;
}

struct Generated {
  std::vector<std::int64_t> ids;
  std::string text;
  const char* stopped = "tokens";  ///< "tokens" (as many as asked), "eos" or "context" (max_position_embeddings)
  double prompt_seconds = 0;       ///< until the first token was picked
  double seconds = 0;              ///< all
};

/// Tokens per second; null where nothing was timed.
io::Json speed(std::size_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? io::Json(static_cast<double>(tokens) / seconds) : io::Json();
}

Generated run_model(const GenerateOptions& options, const Context& context, models::LoadedModel& loaded,
                    const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt) {
  const auto device = resolve_device(context);
  const auto& shape = loaded.model->shape();
  const auto limit = std::min(shape.context, static_cast<std::int64_t>(prompt.size()) + options.tokens);
  const auto cache = loaded.model->make_cache(limit);
  std::mt19937_64 generator(context.seed);
  Generated result;
  TextStream stream(tokenizer, prompt);
  const auto emit = [&](const std::string& piece) {
    result.text += piece;
    if (!context.json && !piece.empty()) write_stdout(piece);
  };
  const Stopwatch watch;
  auto input = prompt;
  while (static_cast<std::int64_t>(result.ids.size()) < options.tokens) {
    check_interrupted();
    if (cache->length() + static_cast<std::int64_t>(input.size()) > limit) {
      result.stopped = "context";
      break;
    }
    const auto ids = at::from_blob(input.data(), {1, static_cast<std::int64_t>(input.size())}, at::kLong).to(device);
    const auto out = loaded.model->forward(ids, cache.get(), models::CausalLM::Logits::last);
    const auto logits = out.flatten().to(at::kCPU).to(at::kFloat);
    if (!logits.isfinite().all().item<bool>()) throw io::Error(options.model.string() + ": NaN or infinite logits");
    const auto next = pick(logits, options.temperature, generator);
    if (result.ids.empty()) result.prompt_seconds = watch.seconds();
    if (std::count(shape.eos.begin(), shape.eos.end(), next) > 0) {
      result.stopped = "eos";
      break;
    }
    result.ids.push_back(next);
    emit(stream.append(next));
    input = {next};
  }
  emit(stream.finish());
  result.seconds = watch.seconds();
  return result;
}

std::string prompt_of(const GenerateOptions& options) {
  if (options.prompt.has_value() == !options.prompt_file.empty())
    throw UsageError(options.prompt ? "--prompt and --prompt-file: found both, allowed: one of them"
                                    : "--prompt is required, or --prompt-file");
  constexpr std::uint64_t kMost = std::uint64_t{64} << 20;  // bytes
  return options.prompt ? *options.prompt : io::read_file(options.prompt_file, kMost);
}

void generate(const GenerateOptions& options, Context& context) {
  const std::string prompt = prompt_of(options);
  at::NoGradGuard no_grad;
  auto loaded = load_language_model(options.model, context, options.attention, options.allow_nonfinite);
  EnvironmentConfig quant_config(loaded, context);
  quant::serve(*loaded.model);
  set_kv_cache(loaded, options.kv_cache, context);
  const text::Tokenizer tokenizer(options.model);
  const auto ids = encode_prompt(options, prompt, tokenizer, loaded.model->shape());
  if (!context.json) write_stdout(prompt);
  quant_config.begin_samples(0, 1);
  const auto result = run_model(options, context, loaded, tokenizer, ids);
  quant_config.finish();
  const io::Json json = {{"prompt", prompt},
                         {"text", result.text},
                         {"ids", result.ids},
                         {"prompt_tokens", ids.size()},
                         {"tokens", result.ids.size()},
                         {"stopped", result.stopped},
                         {"kv_cache", kv_cache_of(loaded).holds},
                         {"seconds", result.seconds},
                         {"prompt_tokens_per_second", speed(ids.size(), result.prompt_seconds)},
                         {"tokens_per_second", speed(result.ids.empty() ? 0 : result.ids.size() - 1,
                                                     result.seconds - result.prompt_seconds)}};
  context.result(json, "\n");
}

Action declare_generate(Options& options) {
  auto values = std::make_shared<GenerateOptions>();
  options.path("--model", values->model, "Checkpoint folder", Options::Need::required);
  options.text("--prompt", values->prompt, "Text to continue; stdout shows it, then what the model adds");
  options.path("--prompt-file", values->prompt_file, "File with the text to continue");
  options.integer("--tokens", values->tokens, 1, 1 << 20, "Most tokens to add");
  options.number("--temperature", values->temperature, 0, 1000,
                 "0: the most likely token; else sampling, steered by --seed");
  add_attention_option(options, values->attention);
  add_kv_cache_options(options, values->kv_cache);
  add_nonfinite_option(options, values->allow_nonfinite);
  return [values](Context& context) { generate(*values, context); };
}

const Provided g_generate(add_generate, declare_generate);

}  // namespace
}  // namespace fp8::commands
