// SPDX-License-Identifier: Apache-2.0
// What a trace holds, read as a stream: it may be larger than the memory that a test allows.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace fp8::runtime {

/// The events of a trace by category and kind ("hpu_op X"), and the numbers beside them.
struct TraceCounts {
  std::map<std::string, std::int64_t> events;
  std::map<std::string, std::uint64_t> numbers;
};

TraceCounts counted(const std::string& path);

}  // namespace fp8::runtime
