// SPDX-License-Identifier: Apache-2.0
// How much is measured by default, against 6e13 operations at 2 a parameter and token, by hand.
#include "fp8/tools/commands/measure/measure_run.h"
#include "support/matchers.h"
#include "support/test_data.h"

namespace fp8::commands {
namespace {

TEST(CalibrationSize, SamplesOfAModelOfSoManyParameters) {
  EXPECT_EQ(default_samples(0, 2048), 512);
  EXPECT_EQ(default_samples(1'700'000, 2048), 512);
  EXPECT_EQ(default_samples(100'000'000, 2048), 146);    // 300 000 tokens
  EXPECT_EQ(default_samples(1'100'000'000, 2048), 16);   // 27 272, less than the 32 768 that there always are
  EXPECT_EQ(default_samples(70'000'000'000, 4096), 8);   // the same
  EXPECT_EQ(default_samples(70'000'000'000, 65536), 1);  // one chunk at least
}

TEST(CalibrationSize, ABatchIsAsManyAs2048Tokens) {
  EXPECT_EQ(default_batch(2048), 1);
  EXPECT_EQ(default_batch(256), 8);
  EXPECT_EQ(default_batch(16), 8);
  EXPECT_EQ(default_batch(32768), 1);
}

TEST(CalibrationSize, OfTheDemoModelAndSaid) {
  MeasureOptions options;
  options.model = test::demo_data() / "kjv-byte-1.7M";
  options.samples = options.seq_len = options.batch = 0;
  const auto sized_here = sized(options);
  EXPECT_EQ(sized_here.samples, 512);
  EXPECT_EQ(sized_here.seq_len, 512);  // its context
  EXPECT_EQ(sized_here.batch, 4);
  EXPECT_EQ(size_note(sized_here), " of 512 tokens");
  options.samples = 7, options.seq_len = 64;
  const auto given = sized(options);
  EXPECT_EQ(given.samples, 7);
  EXPECT_EQ(given.batch, 8);
  EXPECT_EQ(size_note(given), " of 64 tokens");
  auto large = given;
  large.samples = 16, large.sized_here = true;
  EXPECT_THAT(size_note(large), HasSubstr("(at most 16 by default for a model of this size; --samples 512 for more)"));
}

}  // namespace
}  // namespace fp8::commands
