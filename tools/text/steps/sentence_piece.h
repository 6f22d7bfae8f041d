// SPDX-License-Identifier: Apache-2.0
// The protocol buffer of a sentencepiece model (sentencepiece_model.proto), what is needed of it:
//
//   ModelProto      1 pieces*    {1 piece, 2 score f32, 3 kind}
//                   2 trainer    {3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 40 unk_id}
//                   3 normalizer {2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces,
//                                 5 escape_whitespaces}
//   a field         tag (number << 3 | wire type) as a varint; 0: varint, 1: 8 bytes, 2: length and bytes, 5: 4 bytes
#pragma once

#include "fp8/tools/text/steps/vocabulary.h"

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

// SentencePiece's compiled rules of normalization (precompiled_charsmap), as T5, XLM-R and ALBERT have them.
//
//   bytes 0..3      size of the trie in bytes, little-endian
//   trie            a double array (Darts-clone) of 32-bit units; its values are offsets into
//   strings         what is written instead, each ended by a zero byte
//
//   a unit   bit 8: a value follows   bits 0-7 and 31: label   bits 10-30, shifted left by 8 with bit 9: offset

class Precompiled {
 public:
  /// part: precompiled_charsmap, base64. Throws io::Error naming it where it is no such table.
  explicit Precompiled(const JsonPart& part);

  static constexpr std::size_t kLongest = 256;  ///< bytes of a rule's two sides

  /// The longest start of `text` that has a rule, and what is written for it; size 0: none has.
  struct Rule {
    std::size_t size = 0;
    std::string_view text;
  };
  Rule longest(std::string_view text) const;

  /// Graphemes of less than six bytes as a whole, else character by character; what has no rule stays. Throws io::Error
  /// if that makes more than `limit` bytes. text: well-formed UTF-8.
  std::string apply(std::string_view text, std::size_t limit) const;

 private:
  /// Returns the replacement of `piece`: the rule of its shortest start that has one.
  std::optional<std::string_view> rule_of(std::string_view piece) const;
  std::string_view rule_at(std::size_t begin) const;
  /// Calls found(bytes, where its rule begins) for the starts of `text` that have one, from the shortest on, until that
  /// returns false.
  template <class Found>
  void walk(std::string_view text, const Found& found) const;

  std::vector<std::uint32_t> units_;
  std::string strings_;
};

// sentencepiece's own normalization of a text, in one pass:
//
//   at each place   a user-defined token as it is; else the longest rule of precompiled_charsmap; else one character
//   spaces          with remove_extra_whitespaces none at both ends (keep_first_space: one at the start stays) and one
//                   between words; U+2581 in their place with escape_whitespaces; add_dummy_prefix puts one before the
//                   text (treat_whitespace_as_suffix: behind)
//
// Hugging Face's Precompiled goes by graphemes instead, so that the two differ on some combining marks.

class SentencePieceNormalizer {
 public:
  /// part: the five booleans above, precompiled_charsmap (base64, or missing) and user_defined (tokens).
  explicit SentencePieceNormalizer(const JsonPart& part);

  /// text: well-formed UTF-8. Throws io::Error if it makes more than `limit` bytes.
  std::string apply(std::string_view text, std::size_t limit) const;

 private:
  Precompiled::Rule next(std::string_view text) const;

  std::optional<Precompiled> rules_;
  PrefixTrie user_defined_;
  std::string space_;
  bool dummy_prefix_, as_suffix_, remove_extra_, keep_first_;
};

}  // namespace fp8::text
