// SPDX-License-Identifier: Apache-2.0
// The common part of Intel Neural Compressor's measurement and scale files: their names, their two forms, and that a
// set of files appears whole. No torch here.
//
//   P_hooks_{observer}R.json  .npz  _mod_list.json     a measurement; R = "" or "_{rank}_{world}", P = dump_stats_path:
//                                                      a folder and the beginning of a name, "out/inc_output"
//   P_hooks_{observer}_{METHOD}R.json  .npz            scales
//   <either>.fingerprint                               ours: JSON that says which model and data the files belong to
//   P_hooks_{observer}R.kv_cache                       ours: JSON, keys and values per head (measurement_file.h)
//
// .json and .npz hold the same tree {"GlobalRank", "LocalRank", "Mode", "Nodes": {module: {...}}}; arrays of the .npz
// are nested lists in the .json. (The files of ours do not end in .json, because other tools count those to learn the
// number of ranks.)
#pragma once

#include "fp8/configs/environment.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/pickle/pickle.h"

namespace fp8::measure {

/// A value of a file in one line of a message.
std::string in_message(const io::Json& value);

/// Names one set of files.
struct StatsName {
  std::string prefix;  ///< "out/stats/inc_output"
  std::string observer = "maxabs";
  std::string method = {};  ///< upper case; empty: a measurement
  std::optional<configs::Rank> rank = {};

  /// "out/stats/inc_output_hooks_maxabs_MAXABS_HW_0_8".
  std::string base() const;
  std::filesystem::path json() const { return base() + ".json"; }
  std::filesystem::path npz() const { return base() + ".npz"; }
  std::filesystem::path mod_list() const { return base() + io::kModuleList + ".json"; }
  std::filesystem::path fingerprint() const { return base() + ".fingerprint"; }
  std::filesystem::path kv_cache() const { return base() + ".kv_cache"; }
  /// Either form is there.
  bool exists() const;
  bool is_scales() const { return !method.empty(); }
  /// This set's name for another rank (none: without a rank).
  StatsName with_rank(std::optional<configs::Rank> other) const;
  /// True if the names differ in their rank at most.
  bool same_set(const StatsName& other) const;
};

/// The file that a path ending in .json or .npz names; empty if it is none of these files (a mod_list, say).
std::optional<StatsName> parse_stats_name(const std::string& path);

/// All sets in `folder`, each once, sorted by name and rank. Originals kept as orig_* beside the changed files are left
/// out, as is everything that is named otherwise. Throws io::Error if the folder can't be read.
std::vector<StatsName> list_stats(const std::filesystem::path& folder);

/// Reads .json or .npz, whichever is there, and checks that they agree where both are. Throws io::Error naming file and
/// key.
io::Json read_stats(const StatsName& name);

/// A pickle's tree as JSON: arrays become nested lists, keys text.
io::Json stats_json(const io::PyValue& value);

/// A file to be written: path and bytes.
using FileBytes = std::pair<std::filesystem::path, std::string>;

/// The tree in both forms: .json (indent 4), .npz.
std::vector<FileBytes> stats_bytes(const StatsName& name, const io::PyValue& tree);

/// Writes each file atomically, and none before all are on the disk. Folders are made, and taken back when writing
/// fails. `last` is made when the bytes of the others are gone from memory. Returns the paths. Throws io::Error.
std::vector<std::filesystem::path> write_together(std::vector<FileBytes> files,
                                                  const std::function<FileBytes()>& last = {});

/// The header of both kinds of file, up to "Nodes".
struct StatsHeader {
  std::optional<std::int64_t> num_samples = {}, global_rank = {}, local_rank = {};
  std::string mode = "DynamicRange";
  std::optional<std::int64_t> planned_samples = {};
};

io::PyDict header_of(const StatsHeader& header);

/// Checks that `json` is an object with "Nodes" and reads the header; `name` stands in messages. allowed: modes.
StatsHeader read_header(const io::Json& json, const std::string& name, const std::vector<std::string>& allowed);

}  // namespace fp8::measure
