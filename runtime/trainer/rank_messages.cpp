// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/rank_messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/base/checksum.h"

namespace fp8::trainer {
namespace {

using runtime::distributed::ProcessGroup;

constexpr const char* kRankStates = "rank_states";

std::string rank_prefix(int rank) { return "rank." + std::to_string(rank) + "."; }

/// Names, dtypes and sizes: what broadcasts take for granted.
std::string layout_of(const TrainingState& state) {
  io::Fnv hash;
  for (const auto& [name, tensor] : state.tensors) hash.add(c10::str(name, tensor.scalar_type(), tensor.sizes()));
  return hash.text();
}

}  // namespace

std::uint64_t values_checksum(const at::Tensor& tensor) {
  auto* in_fp8 = runtime::quantized_parameter(tensor);
  const at::Tensor here = (in_fp8 != nullptr ? in_fp8->values() : tensor.detach()).to(at::kCPU).contiguous();
  return io::checksum({static_cast<const char*>(here.const_data_ptr()), here.nbytes()});
}

bool MicroBatch::finite() const {
  return std::ranges::all_of(parts, [](const Part& part) { return std::isfinite(part.loss); });
}

bool MicroBatch::stop() const { return std::ranges::any_of(parts, &Part::stop); }
bool MicroBatch::end() const { return std::ranges::any_of(parts, &Part::end); }

bool MicroBatch::same_learning() const {
  return std::ranges::all_of(parts, [this](const Part& part) { return part.learning == parts[0].learning; });
}
bool MicroBatch::same_gradients() const {
  return std::ranges::all_of(parts, [this](const Part& part) { return part.gradients == parts[0].gradients; });
}

double MicroBatch::weight() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.weight;
  return sum;
}

std::int64_t MicroBatch::samples() const {
  std::int64_t sum = 0;
  for (const Part& part : parts) sum += part.samples;
  return sum;
}

MicroBatch exchange(const MicroBatch::Part& own, ProcessGroup* group) {
  if (group == nullptr) return {{own}};
  const double row[] = {own.loss,
                        own.weight,
                        static_cast<double>(own.samples),
                        own.stop ? 1.0 : 0.0,
                        own.end ? 1.0 : 0.0,
                        std::bit_cast<double>(own.learning),
                        std::bit_cast<double>(own.gradients)};
  const auto rows = runtime::distributed::all_gather(row, *group);
  MicroBatch all;
  for (std::size_t i = 0; i < rows.size(); i += std::size(row))
    all.parts.push_back({rows[i], rows[i + 1], static_cast<std::int64_t>(rows[i + 2]), rows[i + 3] != 0,
                         rows[i + 4] != 0, std::bit_cast<std::uint64_t>(rows[i + 5]),
                         std::bit_cast<std::uint64_t>(rows[i + 6])});
  return all;
}

void add_other_ranks(const TrainingState& own, TrainingState& state, ProcessGroup& group) {
  using namespace runtime::distributed;
  check_same({{"state", layout_of(own)}}, group, "checkpoint");
  const std::string json = own.json.dump();
  std::vector<double> sums = {std::bit_cast<double>(io::checksum(json))};
  for (const auto& [name, tensor] : own.tensors) sums.push_back(std::bit_cast<double>(values_checksum(tensor)));
  const auto all = all_gather(sums, group);
  const auto differs = [&](int rank, std::size_t i) {
    const std::size_t at = static_cast<std::size_t>(rank) * sums.size() + i;
    return std::bit_cast<std::uint64_t>(all[at]) != std::bit_cast<std::uint64_t>(all[i]);
  };
  const bool first = group.rank() == 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (differs(rank, 0)) {
      const auto text = broadcast_text(json, group, rank);
      if (first) state.json[kRankStates][std::to_string(rank)] = io::parse_json(text, "checkpoint");
    }
    std::size_t i = 0;
    for (const auto& [name, tensor] : own.tensors) {
      if (!differs(rank, ++i)) continue;
      const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
      const at::Tensor sent = group.rank() == rank ? here : at::empty_like(here);
      group.broadcast(sent, rank);
      if (first) state.tensors[rank_prefix(rank) + name] = sent;
    }
  }
}

void take_own_part(TrainingState& state, int rank, int ranks) {
  if (rank == 0 || state.json.value("ranks", 1) != ranks) return;
  const std::string prefix = rank_prefix(rank);
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(prefix)) own[name.substr(prefix.size())] = tensor;
  for (auto& [name, tensor] : own) state.tensors[name] = std::move(tensor);
  const auto states = state.json.value(kRankStates, io::Json::object());
  if (const auto mine = states.find(std::to_string(rank)); mine != states.end()) state.json.update(*mine);
}

TrainingState load_on_all(const std::function<TrainingState()>& load, ProcessGroup& group) {
  TrainingState state;
  const auto head = runtime::distributed::from_first(
      [&] {
        state = load();
        io::Json tensors = io::Json::object();
        for (const auto& [name, tensor] : state.tensors)
          tensors[name] = {{"dtype", static_cast<int>(tensor.scalar_type())}, {"sizes", tensor.sizes().vec()}};
        return io::Json{{"json", state.json}, {"tensors", std::move(tensors)}}.dump();
      },
      group);
  if (group.rank() != 0) {
    const auto json = io::parse_json(head, "checkpoint");
    state.json = json.at("json");
    for (const auto& [name, as] : json.at("tensors").items())
      state.tensors[name] = at::empty(as.at("sizes").get<std::vector<std::int64_t>>(),
                                      static_cast<at::ScalarType>(as.at("dtype").get<int>()));
  }
  for (const auto& [name, tensor] : state.tensors) group.broadcast(tensor, 0);
  return state;
}

}  // namespace fp8::trainer
