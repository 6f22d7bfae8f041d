// SPDX-License-Identifier: Apache-2.0
// A row for each kind of modules that a folder has something to say of: those built in, and those that registrations
// add. Any thread.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "fp8/configs/module_types.h"

namespace fp8::configs {

template <class Row>
class KindTable {
 public:
  explicit KindTable(std::map<ModuleKind, Row> built_in = {}) : rows_(std::move(built_in)) {}

  /// A copy, which outlives the row.
  std::optional<Row> find(ModuleKind kind) const {
    const std::lock_guard lock(mutex_);
    const auto row = rows_.find(kind);
    return row != rows_.end() ? std::optional<Row>(row->second) : std::nullopt;
  }

  /// A row that is in the table while this object lives. The kind has none before.
  class Entry {
   public:
    Entry(KindTable& table, ModuleKind kind, Row row) : table_(table), kind_(kind) {
      const std::lock_guard lock(table_.mutex_);
      table_.rows_.emplace(kind, std::move(row));
    }
    ~Entry() {
      const std::lock_guard lock(table_.mutex_);
      table_.rows_.erase(kind_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    KindTable& table_;
    ModuleKind kind_;
  };

 private:
  mutable std::mutex mutex_;
  std::map<ModuleKind, Row> rows_;
};

}  // namespace fp8::configs
