// SPDX-License-Identifier: Apache-2.0
// A table of rows by name: those built in, in the order in which messages list them, then those that entries add while
// they live. Any thread. No torch here.
//
//   io::Registry<Family>& families() {
//     static auto& table = *new io::Registry<Family>(built_in_families(), &Family::name);
//     return table;  // never destroyed: entries of libraries end when the process does
//   }
//
//   class FamilyRegistration {  // what users hold
//     io::Registry<Family>::Entry entry_;
//   };
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fp8::io {

template <class Row, class Name = std::string>
class Registry {
 public:
  using Pointer = std::shared_ptr<const Row>;  ///< it outlives the entry
  struct Named {
    Name name;
    Pointer row;
  };

  Registry() = default;
  explicit Registry(std::vector<Named> built_in) : rows_(std::move(built_in)) {}
  explicit Registry(const std::map<Name, Row>& built_in) {
    for (const auto& [name, row] : built_in) rows_.push_back({name, std::make_shared<const Row>(row)});
  }
  /// built_in outlives this table and is not copied. name: of a row, a member or a function.
  template <std::ranges::input_range Rows, class NameOf>
  Registry(const Rows& built_in, NameOf name) {
    for (const Row& row : built_in)
      rows_.push_back({Name(std::invoke(name, row)), Pointer(std::shared_ptr<void>(), &row)});
  }

  /// nullptr if there is none.
  Pointer find(const Name& name) const {
    return find_if([&](const Named& other) { return other.name == name; });
  }

  /// The first for which matches(Named) is true, which must not ask the table.
  template <class Matches>
  Pointer find_if(Matches matches) const {
    const std::lock_guard lock(mutex_);
    for (const Named& row : rows_)
      if (matches(row)) return row.row;
    return nullptr;
  }

  /// The table as it is now.
  std::vector<Named> rows() const {
    const std::lock_guard lock(mutex_);
    return rows_;
  }

  std::vector<Name> names() const {
    std::vector<Name> names;
    for (const Named& row : rows()) names.push_back(row.name);
    return names;
  }

  /// A row that is in the table while this object lives.
  class Entry {
   public:
    /// Throws std::invalid_argument(taken) if there is a row of that name. settle(rows) sees the other rows just before
    /// this one is added, with the table locked.
    template <class Settle>
    Entry(Registry& table, Name name, Pointer row, const std::string& taken, Settle settle)
        : table_(table), row_(std::move(row)) {
      const std::lock_guard lock(table_.mutex_);
      for (const Named& other : table_.rows_)
        if (other.name == name) throw std::invalid_argument(taken);
      settle(std::as_const(table_.rows_));
      table_.rows_.push_back({std::move(name), row_});
    }
    Entry(Registry& table, Name name, Pointer row, const std::string& taken = "")
        : Entry(table, std::move(name), std::move(row), taken, [](const auto&) {}) {}
    ~Entry() {
      const std::lock_guard lock(table_.mutex_);
      std::erase_if(table_.rows_, [this](const Named& other) { return other.row == row_; });
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    const Row& row() const { return *row_; }

   private:
    Registry& table_;
    Pointer row_;
  };

 private:
  mutable std::mutex mutex_;
  std::vector<Named> rows_;
};

}  // namespace fp8::io
