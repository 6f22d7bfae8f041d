// SPDX-License-Identifier: Apache-2.0
// See documents.h.
#include "fp8/tools/text/data/documents.h"

#include <algorithm>
#include <string>
#include <utility>

namespace fp8::text {

Documents::Documents(DataFiles files, std::filesystem::path folder, RowUse use, std::function<void()> ask)
    : files_(std::move(files)), ask_(std::move(ask)), texts_(std::move(folder), use, ask_) {}

bool Documents::open() {
  if (text_ || rows_) return true;
  if (file_ >= files_.size()) return false;
  if (data_kind(files_[file_]) == DataKind::rows)
    rows_.emplace(files_[file_]);
  else
    text_.emplace(files_[file_]);
  return true;
}

bool Documents::read(std::uint64_t cap, Document& document) {
  if (ask_) ask_();
  for (; open(); ++file_, text_.reset(), rows_.reset()) {
    if (text_ && text_->read(cap, document)) return true;
    if (!rows_) continue;
    io::Json row;
    std::string where;
    if (!row_ && rows_->next(row, where)) row_ = texts_.text_of(row, where);
    if (!row_) continue;
    document = {row_->text, true, row_->special};
    return true;
  }
  return false;
}

void Documents::advance() {
  row_.reset();
  if (text_) text_->advance();
}

}  // namespace fp8::text
