// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/leaf/trace.h"

#include <cstdio>
#include <sstream>
#include <string_view>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::runtime {
namespace {

class Trace final : public LeafListener {
 public:
  void leaf_begins(const LeafRecord& leaf) override {
    constexpr std::size_t kLongest = 4096;
    const std::string line = "fp8 trace: " + io::printable(trace_line(leaf), kLongest) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
};

/// For the life of the process, if FP8_TRACE is set and not "0".
[[maybe_unused]] const bool g_traced = [] {
  const char* value = io::environment_value("FP8_TRACE");
  if (value == nullptr || std::string_view(value) == "0") return false;
  new Listening(*new Trace);  // not destroyed: threads may outlive main()
  return true;
}();

}  // namespace

std::string trace_line(const LeafRecord& leaf) {
  std::ostringstream line;
  line << leaf.op;
  for (const LeafTensor& t : leaf.inputs) line << " [" << c10::Join(", ", t.sizes) << "] " << t.type;
  if (!leaf.module.empty()) line << " | " << leaf.module;
  return line.str();
}

}  // namespace fp8::runtime
