// SPDX-License-Identifier: Apache-2.0
// The protocol buffer of a sentencepiece model (sentencepiece_model.proto), what is needed of it:
//
//   ModelProto      1 pieces*    {1 piece, 2 score f32, 3 kind}
//                   2 trainer    {3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 40 unk_id}
//                   3 normalizer {2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces,
//                                 5 escape_whitespaces}
//   a field         tag (number << 3 | wire type) as a varint; 0: varint, 1: 8 bytes, 2: length and bytes, 5: 4 bytes
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::text {

struct SentencePieceModel {
  enum Kind { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  enum Type { kUnigram = 1, kBpe = 2 };
  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = kNormal;
  };
  std::vector<Piece> pieces;
  Type type = kUnigram;
  bool treat_whitespace_as_suffix = false, byte_fallback = false;
  std::int32_t unk_id = 0;  ///< of the piece of kind kUnknown
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

/// name: of the file, in messages. Throws io::Error on a message that is cut short, on pieces that are empty, not
/// UTF-8, repeated or of a score that is not finite, where there is not one unknown piece, and on other models than
/// Unigram and BPE.
SentencePieceModel parse_sentence_piece(std::string_view bytes, const std::string& name);

}  // namespace fp8::text
