// SPDX-License-Identifier: Apache-2.0
// Data files (data/data_file.h) -> chunks of token ids of one length.
//
//   .txt .md      documents separated by "<|endoftext|>" (with more than one, newlines around each are stripped and
//                 empty ones dropped), each tokenized with the special tokens the tokenizer adds, joined, cut into
//                 consecutive chunks of seq_len tokens, remainder dropped; line ends \r\n and \r are read as \n
//   .jsonl .json  rows (chat/chat_template.h), each a document
//   .safetensors  tensor "input_ids" I64 [N, L], used as it is (seq_len does not matter); no tokenizer is needed.
//                 Masks, labels, positions and token types beside it must say nothing: they are not read
//
// and files of source texts with their answers -> pairs of token ids:
//
//   .jsonl .json  rows with the fields "input" and "target" (or prompt and completion, or instruction, input and
//                 output), each tokenized with the special tokens the tokenizer adds; of more than seq_len tokens the
//                 first seq_len - 1 and the last stay
//   .safetensors  tensors "input_ids" I64 [N, S] and "labels" I64 [N, T], used as they are
//
// Of several files the documents come one after the other.
#pragma once

#include "fp8/tools/text/data/data_file.h"
#include "fp8/tools/text/tokenizer.h"

namespace fp8::text {

struct ChunkOptions {
  std::int64_t seq_len = 256;  ///< tokens of a chunk, at least 1
  std::int64_t samples = -1;   ///< at most this many chunks; -1: all
  std::int64_t skip = 0;       ///< chunks passed over first
  bool shorter = false;        ///< a text of fewer tokens is one chunk, instead of an error
  /// Called with each document and again and again while a template runs; what it throws ends the reading.
  std::function<void()> ask = {};
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
std::vector<Pair> load_pairs(const DataFiles& files, const Tokenizer* tokenizer, const ChunkOptions& options);

/// Reads only as much text as the wanted chunks need. tokenizer: may be null for .safetensors, whose ids are then only
/// checked to be at least 0. folder: the model's, whose chat template messages go through. Throws io::Error (empty
/// text, text shorter than one chunk, an id outside the vocabulary, options or a suffix that are not allowed, a bad
/// file), naming the file and what was found.
Chunks load_chunks(const DataFiles& files, const Tokenizer* tokenizer, const ChunkOptions& options,
                   const std::filesystem::path& folder = {});

}  // namespace fp8::text
