// SPDX-License-Identifier: Apache-2.0
// Text files -> chunks of token ids of one length.
//
//   .txt          documents separated by "<|endoftext|>" (with more than one, newlines around each are stripped and
//                 empty ones dropped), each tokenized with the special tokens the tokenizer adds, joined, cut into
//                 consecutive chunks of seq_len tokens, remainder dropped; line ends \r\n and \r are read as \n
//   .jsonl        one JSON object a line, field "text": each a document
//   .safetensors  tensor "input_ids" I64 [N, L], used as it is (seq_len does not matter); no tokenizer is needed
//
// and files of source texts with their answers -> pairs of token ids:
//
//   .jsonl        one JSON object a line, fields "input" and "target", each tokenized with the special tokens the
//                 tokenizer adds; of more than seq_len tokens the first seq_len - 1 and the last stay
//   .safetensors  tensors "input_ids" I64 [N, S] and "labels" I64 [N, T], used as they are
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "fp8/tools/text/tokenizer.h"

namespace fp8::text {

struct ChunkOptions {
  std::int64_t seq_len = 256;  ///< tokens of a chunk, at least 1
  std::int64_t samples = -1;   ///< at most this many chunks; -1: all
  std::int64_t skip = 0;       ///< chunks passed over first
};

/// Shape [count, length], row-major.
struct Chunks {
  std::vector<std::int64_t> ids;
  std::int64_t count = 0, length = 0;
};

/// A source text and its answer.
struct Pair {
  std::vector<std::int64_t> source, answer;  ///< at least one id each
};

/// options: seq_len of each of the two, samples and skip of pairs. Throws io::Error as load_chunks().
std::vector<Pair> load_pairs(const std::filesystem::path& file, const Tokenizer* tokenizer,
                             const ChunkOptions& options);

/// Reads only as much text as the wanted chunks need. tokenizer: may be null for .safetensors, whose ids are then only
/// checked to be at least 0. Throws io::Error (empty text, text shorter than one chunk, an id outside the vocabulary,
/// options or a suffix that are not allowed, a bad file), naming the file and what was found.
Chunks load_chunks(const std::filesystem::path& file, const Tokenizer* tokenizer, const ChunkOptions& options);

}  // namespace fp8::text
