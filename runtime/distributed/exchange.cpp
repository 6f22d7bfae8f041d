// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "fp8/runtime/distributed/meeting.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::runtime::distributed {

void merge(std::span<double> values, ProcessGroup& group) {
  if (group.size() == 1 || values.empty()) return;
  const at::Tensor bits = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::memcpy(bits.mutable_data_ptr(), values.data(), values.size_bytes());
  group.all_reduce(bits, ReduceOp::sum);
  std::memcpy(values.data(), bits.const_data_ptr(), values.size_bytes());
}

std::vector<double> all_gather(std::span<const double> row, ProcessGroup& group) {
  std::vector<double> rows(row.size() * static_cast<std::size_t>(group.size()));
  std::copy(row.begin(), row.end(), rows.begin() + group.rank() * static_cast<std::ptrdiff_t>(row.size()));
  merge(rows, group);
  return rows;
}

std::string broadcast_text(std::string text, ProcessGroup& group, int root) {
  if (group.size() == 1) return text;
  const at::Tensor length = at::zeros({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  group.broadcast(length, root);
  const at::Tensor bytes = at::empty({length.item<std::int64_t>()}, at::kByte);
  if (group.rank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  group.broadcast(bytes, root);
  text.assign(reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel()));
  return text;
}

std::string from_first(const std::function<std::string()>& f, ProcessGroup& group) {
  std::string said;  // "+what it returned" or "-what it threw"
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      said = "+" + f();
    } catch (const std::exception& e) {
      failure = std::current_exception();
      said = "-" + text_of(e);
    }
  }
  try {
    said = broadcast_text(std::move(said), group);
  } catch (const std::exception&) {
    if (failure == nullptr) throw;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  if (said.starts_with('-')) throw io::Error("rank 0: " + said.substr(1));
  return said.substr(1);
}

void check_same(const io::Json& facts, ProcessGroup& group, const char* where) {
  if (group.size() == 1) return;
  const io::Json of_first = io::parse_json(broadcast_text(facts.dump(), group), where);
  const auto own = io::first_difference(facts, of_first);
  const std::string difference =
      own.has_value() ? own->path + ": found " + own->was + ", rank 0 has " + own->is : "keys without a value";
  const double differs = facts == of_first ? 0 : 1;
  const auto all = all_gather({&differs, 1}, group);
  const auto found = std::find(all.begin(), all.end(), 1.0);
  if (found == all.end()) return;
  const auto rank = static_cast<int>(found - all.begin());
  TORCH_CHECK(false, "[", where, "] rank ", rank, " differs from rank 0: ", broadcast_text(difference, group, rank));
}

}  // namespace fp8::runtime::distributed
