// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/fingerprint.h"

#include <gtest/gtest.h>

#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

TEST(Fingerprint, AnotherVersionIsAnotherProgram) {
  const io::Json own = with_program({{"batch", 8}});
  EXPECT_EQ(
      own,
      (io::Json{{"batch", 8}, {"version", FP8_VERSION}, {"instruction set", kernels::name_of(kernels::simd_level())}}));
  auto other = own;
  other["version"] = "0.0.1";
  EXPECT_EQ(io::difference(other, own), "'version' was \"0.0.1\", is \"" FP8_VERSION "\"");
}

TEST(Fingerprint, TheInstructionSetIsTheOneInForce) {
  const kernels::ScopedSimdLevel scalar(kernels::SimdLevel::scalar);
  EXPECT_EQ(with_program({})["instruction set"], "scalar");
}

}  // namespace
}  // namespace fp8::commands
