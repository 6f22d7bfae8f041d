// SPDX-License-Identifier: Apache-2.0
// One page on what fp8 costs and what it saves, of `fp8 quantize --html` and `fp8 evaluate --html`: the report page
// (inspect.h) of the weights' damage, below quality with its intervals, sizes, modules by precision, the worst modules
// and how all of it was made. Names stand on it without the folders they lie in. No torch here.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fp8/quant/damage/checkpoint_damage.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// Modules whose weights are stored alike.
struct PrecisionShare {
  std::string precision;
  std::size_t modules = 0;
  std::uint64_t bytes = 0;
};

/// One checkpoint, as far as it was looked at.
struct Cost {
  std::string name;
  std::string form;                        ///< empty: in high precision
  std::uint64_t bytes = 0, of_bytes = 0;   ///< of its tensors, and of those it is compared with; 0: with none
  std::vector<PrecisionShare> precisions;  ///< the largest first; modules 0: tensors that are no module's weight
  quant::CheckpointDamage damage;          ///< sorted by damage
  std::string no_sqnr;                     ///< why there is no comparison; empty: there is one, or none was asked for
  io::Json numbers;                        ///< of evaluate --json; null: not evaluated
  std::vector<std::pair<std::string, std::string>> more;  ///< further facts: name and text
};

struct CostPage {
  std::string command;    ///< as it was given: shown_command()
  std::string reference;  ///< name of what all are compared with; empty: nothing
  std::vector<Cost> costs = {};
};

/// Looks at the checkpoint's files, beside a reference (empty: none). Throws io::Error and Interrupted.
Cost cost_of(const std::filesystem::path& model, const std::filesystem::path& reference);

/// The whole page; date: as it shall stand there.
std::string cost_page(const CostPage& page, const std::string& date);
/// Writes it, with the day's date. Throws io::Error.
void write_cost_page(const std::filesystem::path& file, const CostPage& page);

}  // namespace fp8::commands
