// SPDX-License-Identifier: Apache-2.0
// What sentence-transformers keeps beside a model, for fp8 embed:
//
//   modules.json                        what hidden states pass: Transformer, Pooling, Normalize, in that order
//   config.json at Pooling's path       pooling_mode, or pooling_mode_cls_token and its like; include_prompt
//   sentence_bert_config.json           max_seq_length; without it model_max_length of tokenizer_config.json
//   config_sentence_transformers.json   prompts, default_prompt_name: what stands in front of each text
//
// Whatever else would change the vectors is refused by its key.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace fp8::commands {

/// Which hidden states become the vector of a text; automatic: as the files say.
enum class Pooling : std::uint8_t { automatic, mean, cls, last };

struct SentenceFiles {
  Pooling pooling = Pooling::mean;
  bool normalize = false;
  std::int64_t length = 0;  ///< of the longest text that is seen whole, in tokens
  std::string prompt = {};
};

/// hidden, context: of the model. Without files: the mean of texts of up to `context` tokens. Throws io::Error.
SentenceFiles read_sentence_files(const std::filesystem::path& folder, std::int64_t hidden, std::int64_t context);

}  // namespace fp8::commands
