// SPDX-License-Identifier: Apache-2.0
// See sentence_piece_model.h.
#include "fp8/tools/text/sentence_piece_model.h"

#include <cmath>
#include <cstring>
#include <unordered_set>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::text {
namespace {

constexpr std::size_t kMaxPieces = 1 << 21;
constexpr std::size_t kLongest = 1024;  // bytes of a piece

// Walks over the fields of one message.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::uint64_t number = 0, value = 0;  // value: of a varint
  std::string_view content;             // of bytes, and of fixed ones

  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t tag = varint();
    number = tag >> 3;
    content = {};
    switch (tag & 7) {
      case 0:
        value = varint();
        break;
      case 1:
        content = take(8);
        break;
      case 2:
        content = take(varint());
        break;
      case 5:
        content = take(4);
        break;
      default:
        throw io::Error(name_ + ": is no sentencepiece model: a field of wire type " + std::to_string(tag & 7) +
                        ", allowed: 0, 1, 2, 5");
    }
    return true;
  }
  float f32() const {
    float result = NAN;
    if (content.size() == sizeof result) std::memcpy(&result, content.data(), sizeof result);
    return result;
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size())
      throw io::Error(name_ + ": is no whole sentencepiece model: a field of " + std::to_string(size) +
                      " bytes, left are " + std::to_string(bytes_.size()));
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      result |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return result;
    }
    throw io::Error(name_ + ": is no sentencepiece model: a number of more than ten bytes");
  }

  std::string_view bytes_;
  const std::string& name_;
};

SentencePieceModel::Piece read_piece(std::string_view bytes, const std::string& name, std::size_t index) {
  SentencePieceModel::Piece piece;
  const auto fail = [&](const std::string& what) {
    throw io::Error(name + ": piece " + std::to_string(index) + " " + what);
  };
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 1) piece.text = fields.content;
    if (fields.number == 2) piece.score = fields.f32();
    if (fields.number == 3) {
      if (fields.value < 1 || fields.value > 6)
        fail("is of type " + std::to_string(fields.value) + ", allowed: 1 to 6");
      piece.kind = static_cast<SentencePieceModel::Kind>(fields.value);
    }
  }
  if (piece.text.empty() || piece.text.size() > kLongest)
    fail("has " + std::to_string(piece.text.size()) + " bytes, allowed: 1 to " + std::to_string(kLongest));
  if (!io::is_utf8(piece.text)) fail("is " + io::in_quotes(piece.text) + ", expected UTF-8");
  if (!std::isfinite(piece.score)) fail("has the score " + std::to_string(piece.score) + ", expected a finite one");
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& name, SentencePieceModel& model) {
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 3) {
      if (fields.value != SentencePieceModel::kUnigram && fields.value != SentencePieceModel::kBpe)
        throw io::Error(name + ": model_type is " + std::to_string(fields.value) + ", supported: 1 (unigram), 2 (bpe)");
      model.type = static_cast<SentencePieceModel::Type>(fields.value);
    }
    if (fields.number == 24) model.treat_whitespace_as_suffix = fields.value != 0;
    if (fields.number == 35) model.byte_fallback = fields.value != 0;
  }
}

void read_normalizer(std::string_view bytes, const std::string& name, SentencePieceModel& model) {
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 2) model.precompiled_charsmap = fields.content;
    if (fields.number == 3) model.add_dummy_prefix = fields.value != 0;
    if (fields.number == 4) model.remove_extra_whitespaces = fields.value != 0;
    if (fields.number == 5) model.escape_whitespaces = fields.value != 0;
  }
}

void check(SentencePieceModel& model, const std::string& name) {
  std::unordered_set<std::string_view> seen;
  int unknown = 0;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    if (!seen.insert(piece.text).second)
      throw io::Error(name + ": piece " + std::to_string(i) + " repeats " + io::in_quotes(piece.text));
    if (piece.kind != SentencePieceModel::kUnknown) continue;
    model.unk_id = static_cast<std::int32_t>(i);
    ++unknown;
  }
  if (unknown != 1) throw io::Error(name + ": has " + std::to_string(unknown) + " unknown pieces, expected one");
}

}  // namespace

SentencePieceModel parse_sentence_piece(std::string_view bytes, const std::string& name) {
  SentencePieceModel model;
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 1) {
      if (model.pieces.size() == kMaxPieces)
        throw io::Error(name + ": has more than " + std::to_string(kMaxPieces) + " pieces");
      model.pieces.push_back(read_piece(fields.content, name, model.pieces.size()));
    }
    if (fields.number == 2) read_trainer(fields.content, name, model);
    if (fields.number == 3) read_normalizer(fields.content, name, model);
  }
  check(model, name);
  return model;
}

}  // namespace fp8::text
