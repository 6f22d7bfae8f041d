// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/memory_snapshot.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "fp8/runtime/device/block_owners.h"
#include "fp8/runtime/device/memory.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::runtime {
namespace {

std::string line(const std::string& owner, std::int64_t bytes, std::int64_t blocks) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, " %12.2f %10lld\n", static_cast<double>(bytes) / (1024.0 * 1024),
                static_cast<long long>(blocks));
  constexpr std::size_t kWidth = 50;
  return "  " + owner + std::string(owner.size() < kWidth ? kWidth - owner.size() : 0, ' ') + numbers;
}

}  // namespace

std::string MemoryBlock::owner() const {
  if (!module.empty()) return module;
  if (op.empty()) return phase.empty() ? "unknown" : "(" + phase + ")";
  return phase.empty() ? op : op + " (" + phase + ")";
}

std::vector<MemoryOwner> MemorySnapshot::owners() const {
  std::map<std::string, MemoryOwner> sums;
  for (const MemoryBlock& block : blocks) {
    MemoryOwner& sum = sums[block.owner()];
    sum.bytes += block.bytes;
    sum.blocks += 1;
  }
  std::vector<MemoryOwner> owners;
  for (auto& [name, sum] : sums) owners.push_back({name, sum.bytes, sum.blocks});
  std::ranges::stable_sort(owners, std::greater<>(), &MemoryOwner::bytes);
  return owners;
}

std::int64_t MemorySnapshot::unaccounted() const {
  std::int64_t rest = in_use;
  for (const MemoryBlock& block : blocks) rest -= block.bytes;
  return std::max<std::int64_t>(rest, 0);  // other threads may have made blocks between the two readings
}

std::string MemorySnapshot::json() const {
  io::Json list = io::Json::array(), sums = io::Json::array();
  for (const MemoryBlock& b : blocks)
    list.push_back(
        {{"bytes", b.bytes}, {"address", b.address}, {"module", b.module}, {"op", b.op}, {"phase", b.phase}});
  for (const MemoryOwner& o : owners()) sums.push_back({{"owner", o.name}, {"bytes", o.bytes}, {"blocks", o.blocks}});
  const io::Json all = {{"device", device},
                        {"in_use", in_use},
                        {"unaccounted", unaccounted()},
                        {"owners", std::move(sums)},
                        {"blocks", std::move(list)}};
  return all.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

std::string MemorySnapshot::table(std::size_t rows) const {
  const auto all = owners();
  std::string text = "  owner" + std::string(45, ' ') + "           MB     blocks\n";
  MemoryOwner rest;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < rows) {
      text += line(all[i].name, all[i].bytes, all[i].blocks);
      continue;
    }
    rest.bytes += all[i].bytes;
    rest.blocks += all[i].blocks;
  }
  if (rest.blocks > 0) text += line("others", rest.bytes, rest.blocks);
  if (unaccounted() > 0) {
    std::string last = line("smaller blocks, not accounted for", unaccounted(), 0);
    text += last.substr(0, last.size() - 2) + "-\n";
  }
  return text;
}

MemorySnapshot memory_snapshot(int device) {
  const MemoryStats stats = memory_stats(device);  // checks the index
  return {device, stats.InUse, owned_blocks(static_cast<c10::DeviceIndex>(device))};
}

}  // namespace fp8::runtime
