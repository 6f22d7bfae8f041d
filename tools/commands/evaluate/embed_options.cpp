// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/embed_options.h"

#include <memory>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/inputs/data_options.h"

namespace fp8::commands {

decltype(embed_texts) embed_texts;

Action add_embed(Options& options) {
  auto values = std::make_shared<EmbedOptions>();
  options.path("--model", values->model, "Checkpoint folder", Options::Need::required);
  add_data_option(
      options, "--data", values->data,
      ".txt, .md (documents), .jsonl, .json (text, messages, prompt and completion) or .safetensors (input_ids)",
      Options::Need::required);
  options.path("--out", values->out, "File to write: safetensors, \"embeddings\" F32 [texts, width]",
               Options::Need::required);
  options.choice<Pooling>(
      "--pooling", values->pooling,
      "One vector of a text: the mean of its tokens', the first's or the last's (default what "
      "1_Pooling/config.json says, else mean)",
      {{Pooling::automatic, "auto"}, {Pooling::mean, "mean"}, {Pooling::cls, "cls"}, {Pooling::last, "last"}});
  options.flag("--normalize", values->normalize, "Vectors of length 1 (default what modules.json says)");
  options.integer("--seq-len", values->seq_len, 0, 1 << 30, "Tokens of a text that are seen", "all the model takes");
  options.integer("--batch", values->batch, 1, 1024, "Texts of one length per forward");
  add_attention_option(options, values->attention);
  return [values](Context& context) { embed_texts(*values, context); };
}

}  // namespace fp8::commands
