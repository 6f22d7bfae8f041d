// SPDX-License-Identifier: Apache-2.0
// Codes of any strides as dense rows: the same bytes that contiguous() gives.
#include <cstring>

#include "fp8/runtime/fp8_tensor/gemm.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

void expect_rows(const at::Tensor& codes) {
  kernels::Scratch scratch;
  const runtime::DenseCodes dense(codes, scratch);
  const at::Tensor rows = codes.cpu().contiguous();
  EXPECT_EQ(std::memcmp(dense.data(), rows.const_data_ptr(), static_cast<std::size_t>(rows.numel())), 0)
      << codes.sizes() << " " << codes.strides();
}

TEST(DenseCodes, OfAnyStrides) {
  torch::manual_seed(1);
  const at::Tensor all = at::randint(0, 256, {3, 70, 130}, at::kByte).to(kHpu);
  for (const auto type : {at::kByte, at::kFloat8_e4m3fn}) {
    const at::Tensor codes = all.view(type);
    expect_rows(codes);
    expect_rows(codes.transpose(1, 2));
    expect_rows(codes[1].t());
    expect_rows(codes.narrow(2, 3, 50).transpose(1, 2));
    expect_rows(codes.narrow(1, 3, 50));
    expect_rows(codes.transpose(0, 1));
    expect_rows(codes.narrow(1, 0, 0).transpose(1, 2));
    expect_rows(codes.select(2, 5));
  }
}

TEST(DenseCodes, WhatIsDenseIsReadWhereItIs) {
  const at::Tensor codes = at::zeros({4, 8}, at::kByte).to(kHpu);
  kernels::Scratch scratch;
  EXPECT_EQ(runtime::DenseCodes(codes, scratch).data(), codes.const_data_ptr());
  EXPECT_NE(runtime::DenseCodes(codes.t(), scratch).data(), codes.const_data_ptr());
  const runtime::WeightCodes weight(codes, /*again=*/false, scratch);
  EXPECT_EQ(weight.layout(), kernels::Layout::row_major);
  EXPECT_EQ(weight.data(), codes.const_data_ptr());
}

}  // namespace
}  // namespace fp8::test
