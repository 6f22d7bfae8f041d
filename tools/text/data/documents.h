// SPDX-License-Identifier: Apache-2.0
// The documents of data files, one after the other and only as far as asked: of a text its documents, of rows one each
// (row_text.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "fp8/tools/text/chat/row_text.h"
#include "fp8/tools/text/data/data_file.h"
#include "fp8/tools/text/data/json_rows.h"
#include "fp8/tools/text/text_file.h"

namespace fp8::text {

class Documents {
 public:
  /// folder: of the model, whose chat template rows of messages go through. ask: called with each document and while a
  /// template runs; what it throws ends the reading.
  Documents(DataFiles files, std::filesystem::path folder, RowUse use = RowUse::text, std::function<void()> ask = {});
  /// The current document, at most about `cap` > 0 bytes of it. False past the last one.
  bool read(std::uint64_t cap, Document& document);
  /// Moves on from the document that was read last; it must have been complete.
  void advance();
  /// Whether it is a row: then an empty one is a text all the same.
  bool of_rows() const { return rows_.has_value(); }

 private:
  bool open();

  DataFiles files_;
  std::size_t file_ = 0;
  std::function<void()> ask_;
  RowTexts texts_;
  std::optional<TextFile> text_;
  std::optional<JsonRows> rows_;
  std::optional<RowText> row_;  ///< the current one
};

}  // namespace fp8::text
