// SPDX-License-Identifier: Apache-2.0
// The names of the operators that run while a function does, on any thread, as profilers receive them.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace fp8::test {

class OpEvents {
 public:
  /// Names of our own operators and casts ("fp8::quantize", "hpu::fp8_gemm_v2"), in order.
  static std::vector<std::string> of(const std::function<void()>& run) {
    seen().clear();
    const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
    run();
    at::removeCallback(handle);
    return seen();
  }

  static long count(const std::vector<std::string>& events, const std::string& name) {
    return std::count(events.begin(), events.end(), name);
  }

 private:
  static std::vector<std::string>& seen() {
    static std::vector<std::string> names;
    return names;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& op) {
    static std::mutex mutex;
    const std::string name = op.name();
    const std::lock_guard<std::mutex> lock(mutex);
    if (name.starts_with("fp8::") || name.starts_with("hpu::")) seen().push_back(name);
    return nullptr;
  }
};

}  // namespace fp8::test
