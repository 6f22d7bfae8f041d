// SPDX-License-Identifier: Apache-2.0
// Threads of a test that all run one function.
#pragma once
#include <thread>
#include <vector>

namespace fp8::test {

/// f(0) to f(count - 1), each on a thread of its own; returns when all have ended.
template <class F>
void on_threads(int count, const F& f) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&f, i] { f(i); });
  for (auto& thread : threads) thread.join();
}

}  // namespace fp8::test
