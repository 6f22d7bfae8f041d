// SPDX-License-Identifier: Apache-2.0
// what() of our errors: the message alone, where LibTorch's own has a page of backtrace.
#include <cstdlib>
#include <functional>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

std::string what_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Errors, WhatIsTheMessageAlone) {
  const at::Tensor x = at::ones({4, 4}, on_hpu());
  const std::vector<std::function<void()>> mistakes = {
      [] { runtime::set_memory_limit(0); },   // a call of ours
      [] { runtime::memory_stats(99); },      // one with a plain text
      [&] { at::add(x, at::ones({4, 4})); },  // through the dispatcher
      [&] { x.detach().set_(at::ones({1}, on_hpu(at::kFloat8_e4m3fn))); },
      [] { runtime::autocast::set_autocast_hpu_dtype(at::kDouble); },
      [] { at::empty({std::int64_t{1} << 50}, on_hpu()); },          // c10::OutOfMemoryError
      [&] { runtime::quantize(x, {.layout = {-1, 1}}); },            // fp8_tensor
      [&] { at::exp(at::empty({2}, on_hpu(at::kFloat8_e4m3fn))); },  // c10::NotImplementedError
  };
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    const std::string text = what_of(mistakes[i]);
    EXPECT_NE(text, "") << i;
    EXPECT_EQ(text.find('\n'), std::string::npos) << i << ": " << text;
    EXPECT_EQ(text.find("Exception raised"), std::string::npos) << i << ": " << text;
    EXPECT_EQ(text, error_of(mistakes[i])) << i;
  }
}

TEST(Errors, LibTorchsVariableBringsTheBacktraceBack) {
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  const std::string text = what_of([] { runtime::set_memory_limit(0); });
  unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_NE(text.find("[set_memory_limit] expected bytes > 0, got 0"), std::string::npos);
  EXPECT_NE(text.find("Exception raised from set_memory_limit"), std::string::npos) << text;
}

}  // namespace
}  // namespace fp8::test
