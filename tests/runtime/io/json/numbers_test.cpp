// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Numbers, WhatJsonCannotHoldIsNullAndComesBackAsNan) {
  for (const double value : {0.0, -1.5, 1e300, 5e-324}) {
    EXPECT_EQ(number_or_null(value), Json(value));
    EXPECT_EQ(number_or_nan(parse_json(number_or_null(value).dump(), "here")), value);
  }
  for (const double value : {kInfinity, -kInfinity, kNan}) {
    EXPECT_TRUE(number_or_null(value).is_null());
    EXPECT_TRUE(std::isnan(number_or_nan(number_or_null(value))));
  }
  EXPECT_THROW(number_or_nan("1"), Json::exception);
}

TEST(Numbers, TextReadsBack) {
  EXPECT_EQ(number_text(2), "2.0");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(kInfinity), "inf");
  EXPECT_EQ(number_text(-kInfinity), "-inf");
  EXPECT_EQ(number_text(kNan), "nan");
}

}  // namespace
}  // namespace fp8::io
