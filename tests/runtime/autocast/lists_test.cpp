// SPDX-License-Identifier: Apache-2.0
// Files of op names: what is passed over, what replaces what, and what a bad file does.
#include "fp8/runtime/autocast/lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "support/scoped_variable.h"
#include "support/temp_dir.h"

namespace fp8::test {
namespace {

using runtime::autocast::AutocastLists;
using runtime::autocast::parse_op_names;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(OpNames, OnePerLineWhateverStandsAround) {
  EXPECT_THAT(parse_op_names("mm\nadd"), ElementsAre("mm", "add"));
  EXPECT_THAT(parse_op_names("\xEF\xBB\xBFmm\r\n\r\n  add \t\r\n# a comment\n\tconv2d # the stem\n\n"),
              ElementsAre("mm", "add", "conv2d"));
  EXPECT_THAT(parse_op_names("mm\nmm\nadd\nmm"), ElementsAre("mm", "add"));
  EXPECT_THAT(parse_op_names(""), ElementsAre());
  EXPECT_THAT(parse_op_names("\n#\n \r\n"), ElementsAre());
}

/// The vendor's tables, in its documents' order.
constexpr const char* kVendorsLower =
    "addmm addbmm batch_norm baddbmm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d dot "
    "dropout "
    "feature_dropout group_norm instance_norm layer_norm leaky_relu linear matmul mean mm mul mv softmax log_softmax "
    "scaled_dot_product_attention";
constexpr const char* kVendorsFp32 =
    "acos addcdiv asin atan2 bilinear binary_cross_entropy binary_cross_entropy_with_logits cdist cosh "
    "cosine_embedding_loss "
    "cosine_similarity cross_entropy_loss dist div divide embedding embedding_bag erfinv exp expm1 "
    "hinge_embedding_loss "
    "huber_loss kl_div l1_loss log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss nll_loss pdist poisson_nll_loss pow reciprocal renorm rsqrt sinh smooth_l1_loss "
    "soft_margin_loss "
    "softplus tan topk triplet_margin_loss truediv true_divide";
constexpr const char* kVendorsPromote = "add addcmul addcdiv cat div exp mul pow sub iadd truediv stack";

TEST(Lists, DefaultsAreTheVendors) {
  const auto words = [](const char* text) {
    std::istringstream in(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(in), {});
  };
  ASSERT_EQ(words(kVendorsLower).size(), 27u);
  ASSERT_EQ(words(kVendorsFp32).size(), 49u);
  const auto lists = AutocastLists::defaults();
  EXPECT_THAT(lists.lower, ::testing::UnorderedElementsAreArray(words(kVendorsLower)));
  EXPECT_THAT(lists.fp32, ::testing::UnorderedElementsAreArray(words(kVendorsFp32)));
  EXPECT_THAT(lists.promote, ::testing::UnorderedElementsAreArray(words(kVendorsPromote)));
}

TEST(Lists, AFileReplacesItsListOnly) {
  const TempDir dir;
  write(dir / "lower", "add\nmm\n");
  std::vector<std::string> warnings;
  const auto lists = AutocastLists::load((dir / "lower").string(), "", warnings);
  EXPECT_THAT(warnings, ElementsAre());
  EXPECT_THAT(lists.lower, ElementsAre("add", "mm"));
  EXPECT_EQ(lists.fp32, AutocastLists::defaults().fp32);
  EXPECT_EQ(lists.promote, AutocastLists::defaults().promote);
  EXPECT_EQ(lists.lower_from, (dir / "lower").string());
  EXPECT_EQ(lists.fp32_from, "default");
}

TEST(Lists, AnEmptyFileIsAnEmptyList) {
  const TempDir dir;
  write(dir / "fp32", "# none\n");
  std::vector<std::string> warnings;
  EXPECT_THAT(AutocastLists::load("", (dir / "fp32").string(), warnings).fp32, ElementsAre());
  EXPECT_THAT(warnings, ElementsAre());
}

TEST(Lists, WhatCannotBeReadIsOneWarningAndTheDefaults) {
  const TempDir dir;
  write(dir / "long", std::string((1 << 20) + 1, 'a'));
  for (const std::string& file :
       std::vector<std::string>{(dir / "none").string(), dir.path().string(), (dir / "long").string()}) {
    std::vector<std::string> warnings;
    const auto lists = AutocastLists::load(file, file, warnings);
    EXPECT_EQ(lists.lower, AutocastLists::defaults().lower);
    EXPECT_EQ(lists.fp32, AutocastLists::defaults().fp32);
    EXPECT_EQ(lists.lower_from, "default");
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_THAT(warnings[0], HasSubstr(file));
    EXPECT_THAT(warnings[0], HasSubstr("default list"));
    EXPECT_EQ(warnings[0].find('\n'), std::string::npos);
  }
}

TEST(Lists, TheLongVariablesWinOverTheShortOnes) {
  const TempDir dir;
  write(dir / "short", "mm\n");
  write(dir / "long", "bmm\n");
  std::vector<std::string> warnings;
  EXPECT_EQ(AutocastLists::from_environment(warnings).lower, AutocastLists::defaults().lower);
  const ScopedVariable lower("LOWER_LIST", (dir / "short").string()), fp32("FP32_LIST", (dir / "short").string());
  {
    const auto lists = AutocastLists::from_environment(warnings);
    EXPECT_THAT(lists.lower, ElementsAre("mm"));
    EXPECT_THAT(lists.fp32, ElementsAre("mm"));
    EXPECT_EQ(lists.lower_from, "LOWER_LIST (" + (dir / "short").string() + ")");
  }
  const ScopedVariable long_lower("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", (dir / "long").string());
  const ScopedVariable long_fp32("PT_HPU_AUTOCAST_FP32_OPS_LIST", (dir / "none").string());
  const auto lists = AutocastLists::from_environment(warnings);
  EXPECT_THAT(lists.lower, ElementsAre("bmm"));
  EXPECT_EQ(lists.fp32, AutocastLists::defaults().fp32)
      << "an unreadable file does not hand over to the other variable";
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("PT_HPU_AUTOCAST_FP32_OPS_LIST: "));
  const ScopedVariable empty("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "");
  EXPECT_THAT(AutocastLists::from_environment(warnings).lower, ElementsAre("mm"));
}

TEST(Lists, PrintableNames) {
  EXPECT_EQ(runtime::autocast::printable("add\x1b[31m\xff"), "add?[31m?");
  EXPECT_EQ(runtime::autocast::printable(std::string(1000, 'a')).size(), 64u);
}

}  // namespace
}  // namespace fp8::test
