// SPDX-License-Identifier: Apache-2.0
// A JSON that another program reads, compared with its table (runtime/io/base/key_table.h): a row for each key, by its
// path. The walk finds unknown keys (with the nearest that there is) and values that are not allowed; the reader of
// each file says what keys demand of each other. An object whose row has rows below it holds nothing else; one without
// rows holds anything. No key has a '.' in it.
#pragma once

#include "fp8/runtime/io/base/key_table.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::configs {

using io::Allowed, io::KeyRow, io::KeyRows, io::KeyUse;
namespace allow = io::allow;
using fp8::name_of;

/// Messages about a file, one line each.
struct Findings {
  std::vector<std::string> problems;  ///< "FILE: key 'zero_optimization.stage': found 4, allowed: ..."
  std::vector<std::string> notes;     ///< valid settings that may surprise
};

/// "FILE: key 'PATH'", as messages begin. path: fit for a message, or one of a table.
std::string key_where(const std::string& source, const std::string& path);

/// Returns the value at "a.b.c"; nullptr if it is missing or null.
const io::Json* find_value(const io::Json& json, const std::string& path);

/// The value at a path if it is of that type, and fits.
bool is_true(const io::Json& json, const std::string& path);

/// A file, for rules that concern several of its keys.
struct KeyRules {
  const io::Json& json;
  std::string source;  ///< fit for a message
  Findings& findings;

  const io::Json* find(const std::string& key) const { return find_value(json, key); }
  bool is(const std::string& key) const { return is_true(json, key); }
  void refuse(const std::string& key, const std::string& what) const {
    findings.problems.push_back(key_where(source, key) + ": " + what);
  }
  void note(const std::string& key, const std::string& what) const {
    findings.notes.push_back(key_where(source, key) + ": " + what);
  }
};

/// Every unknown key and every value that its row does not allow, in the file's order, at most kMostProblems and then
/// one more line. source: the file, fit for a message. prefix: of paths in messages, where `json` is a part of the
/// file: "scheduler.params.". A `json` that is no object is one problem.
constexpr std::size_t kMostProblems = 100;
std::vector<std::string> key_problems(const io::Json& json, const std::string& source, KeyRows rows,
                                      const std::string& prefix = "");

/// One key of a file that has no problem with it.
struct KeyMeaning {
  std::string key, value;
  const KeyRow* row;
};

/// Every key of the file that has a row, in its order; objects by what is in them, unless that is free.
std::vector<KeyMeaning> key_meanings(const io::Json& json, KeyRows rows);

/// The row of a path; nullptr if there is none.
const KeyRow* find_row(KeyRows rows, const std::string& path);

/// The rows' standard values, and over them the members of `json`, an object; of top-level keys.
io::Json with_standards(const io::Json& json, KeyRows rows);

/// The keys of `json` that a table has at its top level, in hundredths of all; misspelt ones count half.
int share_of_keys(const io::Json& json, KeyRows rows);

}  // namespace fp8::configs
