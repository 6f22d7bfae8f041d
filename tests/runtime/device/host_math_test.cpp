// SPDX-License-Identifier: Apache-2.0
// The race itself lasts some nanoseconds of a process's life, so the test looks at when MKL asks what the CPU is: the
// question, which this program answers in MKL's place, comes with the first word about the device, not with the first
// cosine of two threads.
#include <dlfcn.h>

#include "support/hpu_test.h"

namespace {
std::atomic<int> g_questions{0};
}

extern "C" int mkl_serv_vml_cpu_detect() {
  ++g_questions;
  static const auto answer = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return answer();
}

namespace fp8::test {
namespace {

TEST(HostMath, IsSettledByTheFirstWordAboutTheDevice) {
  if (dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect") == nullptr) GTEST_SKIP() << "this LibTorch has no MKL to settle";
  at::empty({1}, on_hpu());
  EXPECT_EQ(g_questions, 1);
  runtime::settle_host_math();
  at::cos(at::ones({1 << 20}));
  EXPECT_EQ(g_questions, 1);
}

}  // namespace
}  // namespace fp8::test
