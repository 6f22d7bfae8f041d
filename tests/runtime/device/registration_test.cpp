// SPDX-License-Identifier: Apache-2.0
// What the library registers when it is loaded: not twice in a process, and not taken back while a thread may still use
// it.
#include "fp8/runtime/device/registration.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::test {
namespace {

/// The file that the runtime was loaded from.
std::string runtime_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&runtime::init), &info) == 0) return "";
  return std::filesystem::canonical(info.dli_fname).string();
}

int exit_code_of(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Registration, AThreadThatOutlivesMainComputesOnAsOnTheCpu) {
  for (const std::string device : {"cpu", "hpu"}) {
    EXPECT_EQ(exit_code_of(std::string(FP8_BINARY_DIR "/bin/exit_program ") + device + " " + runtime_file()), 0)
        << device;
  }
}

/// Exit code 0 if everything went on with the first copy.
[[noreturn]] void load_a_copy(const std::string& copy) {
  if (dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::_Exit(2);
  bool well = error_of([] { runtime::init(); }).empty();
  well = well && same_bits(at::relu(hpu(at::full({3}, -1.0f))) + 2, at::full({3}, 2.0f));
  well = well && !runtime::may_register(dlsym(dlopen(copy.c_str(), RTLD_NOW | RTLD_NOLOAD), "_ZN3fp87runtime4initEv"));
  std::_Exit(well ? 0 : 1);
}

TEST(RegistrationDeathTest, ASecondCopyRegistersNothingAndSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempDir dir;
  const std::string copy = (dir / "libfp8_runtime.so.0").string();
  std::filesystem::copy_file(runtime_file(), copy);
  EXPECT_EXIT(load_a_copy(copy), ::testing::ExitedWithCode(0),
              "fp8: error: .*libfp8_runtime.so.0 registers nothing: .*loaded already, from .*load one of the two");
}

}  // namespace
}  // namespace fp8::test
