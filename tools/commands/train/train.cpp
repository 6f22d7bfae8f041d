// SPDX-License-Identifier: Apache-2.0
// fp8 train: a model from a config or a checkpoint, a text, trainer::Trainer, and a folder that it leaves:
//
//   OUT/config.json, tokenizer files, model.safetensors    the trained model, there when training ended
//   OUT/log.jsonl, OUT/train.json                          a line per step; what the run was started with
//   OUT/measurements/                                      with fp8: the amaxes of the run, for fp8 quantize
//   OUT/checkpoints/step-00000200/                         the same model files, and trainer_state.{json,safetensors}
//   to go on from
//
// Of several processes that a launcher started each does its part of every batch; OUT is rank 0's alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/train/train_run.h"
#include "fp8/transformer_engine/modules/fp8_module.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// Makes OUT, or finds the run in it that is to go on: the same but for its steps. Returns true for the latter.
bool open_out(const TrainOptions& o, const Context& context, const io::Json& settings) {
  return open_folder(o, settings, [&](const fs::path& file, const io::Json& written) {
    const auto steps = check_resume(file, written, settings, o);
    if (!steps.warning.empty()) context.warn(steps.warning);
    return steps.done < o.optimizer.steps;
  });
}

void checkpoint_layers(models::CausalLM& model) {
  model.set_layer_runner([](const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& h) {
    return te::checkpoint(layer, h, {.preserve_rng_state = false});  // no layer draws random numbers
  });
}

/// Of a step the products of the forward, and two more for gradients of inputs and weights; with layers that are run
/// again one more. Memory is that of weights, gradients and two moments in f32, and of the logits: what layers keep for
/// the gradients is not known before.
void say_forecast_of(const TrainOptions& o, const models::CausalLM& model, int ranks, const Context& context) {
  std::int64_t parameters = 0;
  for (const auto& p : model.parameters()) parameters += p.numel();
  const std::int64_t rows = o.batch * o.seq_len, tokens = o.optimizer.steps * o.grad_accum * rows;
  auto work = forward_work("train", model, tokens, o.seq_len, 16 * parameters + 8 * rows * model.shape().outputs());
  work.operations *= o.activation_checkpointing ? 4 : 3;
  if (ranks > 1) work.command += ", each rank";
  say_forecast(work, o.precision == "32-true" ? at::kFloat : at::kBFloat16, context);
}

void print(const TrainOptions& o, const Context& context, const trainer::FitResult& result, io::Json more) {
  const double speed = result.speed.value("train_tokens_per_second", 0.0);
  io::Json json = {{"steps", result.steps},
                   {"epochs", result.epochs},
                   {"tokens", result.tokens},
                   {"resumed_from", result.resumed_from},
                   {"skipped_steps", result.skipped_steps},
                   {"stop_reason", result.stop_reason.empty() ? io::Json(nullptr) : io::Json(result.stop_reason)},
                   {"loss", result.last_loss},
                   {"loss_last20", result.loss_last20},
                   {"eval_loss", result.val_loss ? io::Json(*result.val_loss) : io::Json(nullptr)},
                   {"precision", o.precision}};
  json.update(more);
  json.update(result.speed);
  json["tokens_per_second"] = speed;
  json["out"] = o.out.string();
  Table table({"train", ">" + o.out.filename().string()});
  table.row({"steps", grouped(result.steps)});
  table.row({"tokens", grouped(result.tokens)});
  if (json["ranks"] > 1) table.row({"ranks", json["ranks"].dump() + ", " + json["strategy"].get<std::string>()});
  table.row({"loss, last 20 steps", fmt::format("{:.5f}", result.loss_last20)});
  if (result.val_loss) table.row({"eval loss (nats per token)", fmt::format("{:.5f}", *result.val_loss)});
  if (!result.stop_reason.empty()) table.row({"ended by", result.stop_reason});
  if (result.skipped_steps > 0) table.row({"steps left out", grouped(result.skipped_steps)});
  table.row({"seconds", human_seconds(result.speed.value("train_runtime", 0.0))});
  table.row({"tokens per second", grouped(std::llround(speed))});
  const auto measured = json.find("measurements");
  if (measured != json.end() && measured->is_string()) table.row({"measurements", measured->get<std::string>()});
  context.result(json, table.text());
}

void train(const TrainOptions& asked, Context& context) {
  if (asked.run.model || asked.run.stage != Stage::fit) return run_module(asked, context);
  TrainOptions o = asked;
  check_callbacks(o, context);
  const TrainRanks ranks(o.ranks, o.precision == "fp8", context);
  auto start = start_of(o, context);
  if (o.plan) {
    const auto plan = TrainPrecision::plan(o, context, start.model);
    if (ranks.first()) context.result(plan.json, plan.text);
    return;
  }
  auto data =
      batches_of(o.data, o, context, start, o.batch, /*shuffle=*/true, o.drop_last ? o.batch * ranks.size() : 1);
  count_steps(o, [&](double epochs) { return steps_of_epochs(o, data.batches(), ranks.size(), epochs); });
  std::optional<TextBatches> eval;
  if (!o.eval.empty())
    eval = batches_of(o.eval, o, context, start, o.eval_batch > 0 ? o.eval_batch : o.batch, /*shuffle=*/false);
  TrainPrecision precision(o, context, start.model, ranks.amax_group());
  if (o.activation_checkpointing) checkpoint_layers(*start.model);
  const auto config = io::parse_python_json(start.config_text, io::kConfigFile).dump();  // spaces decide nothing
  io::Json more = {
      {"chunks", data.chunks().count},
      {"data_fingerprint", fmt::format("{:016x}", data.fingerprint())},
      {"eval_fingerprint", eval ? io::Json(fmt::format("{:016x}", eval->fingerprint())) : io::Json(nullptr)},
      {"config_fingerprint", io::checksum_text(io::checksum(config))}};
  more.update(precision.settings());
  const auto settings = train_settings(o, context, more);
  ranks.check_same(settings, ranks.size() > 1 ? weights_checksum(*start.model) : "");
  const bool trial = o.run.trainer.fast_dev_run.value_or(0) > 0;  // leaves nothing behind
  const bool resume = !trial && ranks.on_first([&] { return open_out(o, context, settings); });

  LanguageModelTask task(start.model, o.optimizer,
                         {start.config_text, start.tokenizer, runtime::ops::dtype_of(o.save_dtype)},
                         precision.state_hooks());
  auto options = trainer_options(o, precision, ranks);
  options.resume = resume;
  options.profiler = profiler_of(o, context);
  auto callbacks = trial ? Callbacks() : callbacks_of(o, context);
  if (ranks.first() && !trial) add_log(callbacks, o, context, precision, o.optimizer.steps);
  if (ranks.first() && !resume) say_forecast_of(o, *start.model, ranks.size(), context);
  const auto best = best_of(callbacks);
  trainer::Trainer trainer(std::move(options), std::move(callbacks));
  const auto result = trainer.fit(task, data, eval ? &*eval : nullptr);
  if (result.stopped && (result.unvalidated || result.steps < o.optimizer.steps) && !trial)
    end_early(o, context, result);
  ranks.on_first([&] {
    if (trial) return true;
    const KeepsWork keeps;
    task.save_files(o.out);
    if (o.callbacks.load_best) take_weights(best->best_model_path(), o.out);
    precision.write_measurements(o.out / "measurements");
    return true;
  });
  auto summary = precision.summary();
  summary["ranks"] = ranks.size();
  summary["ranks_said_by"] = ranks.size() > 1 ? io::Json(ranks.said_by()) : io::Json();
  summary["strategy"] = ranks.strategy_name();
  if (ranks.first()) print(o, context, result, std::move(summary));
}

const Provided g_train(train_model, train);

}  // namespace
}  // namespace fp8::commands
