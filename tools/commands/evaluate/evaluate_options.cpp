// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/evaluate_options.h"

#include <memory>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {

decltype(evaluate_model) evaluate_model;

Action add_evaluate(Options& options) {
  auto values = std::make_shared<EvaluateOptions>();
  options.path("--model", values->model, "Checkpoint folder", Options::Need::required);
  options.path("--reference", values->reference, "Checkpoint folder to compare with");
  add_data_options(options, *values);
  add_attention_option(options, values->attention);
  add_kv_cache_options(options, values->kv_cache);
  add_nonfinite_option(options, values->allow_nonfinite);
  add_profile_options(options, values->profile, "forward");
  options.path(
      "--dump-logits", values->dump_logits,
      "Write the logits there: safetensors, \"logits\" F32 [chunks, seq-len, vocabulary]; of answers, one after "
      "the other, [tokens, vocabulary]");
  add_rank_timeout_option(options, values->rank_timeout);
  return [values](Context& context) {
    check_kv_cache_options(values->kv_cache, context);
    check_profile_options(values->profile);
    evaluate_model(*values, context);
  };
}

}  // namespace fp8::commands
