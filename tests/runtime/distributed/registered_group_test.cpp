// SPDX-License-Identifier: Apache-2.0
// A group by the name that c10d keeps of it: the calls of make_gloo_group()'s, bit for bit. And values of all ranks by
// the operation's name.
#include <cmath>
#include <limits>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using test::same_bits;

constexpr const char* kName = "by name";

// ---- what ranks run

FP8_TEST_RANKS(RegisteredGroup, CallsAreThoseOfTheGroup, 2) {
  const auto group = test::rank_group();
  c10d::register_process_group(kName, c10d_group(*group));
  const auto named = registered_group(kName);
  EXPECT_EQ(named->rank(), group->rank());
  EXPECT_EQ(named->size(), group->size());
  const int r = group->rank();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> v = r == 0 ? std::vector<float>{1, nan, -3, -0.0f} : std::vector<float>{2, 4, -2, 0};
  named->all_reduce_max(v.data(), v.size());
  EXPECT_EQ(v[0], 2);
  EXPECT_TRUE(std::isnan(v[1]));
  EXPECT_EQ(v[2], -2);
  EXPECT_FALSE(std::signbit(v[3]));
  named->barrier();
  for (const auto device : {at::Device(at::kCPU), at::Device(at::kHPU, 0)}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
        const at::Tensor mine = (torch::arange(12, at::kFloat).view({3, 4}) * (r + 1)).to(dtype).to(device).t();
        const at::Tensor a = mine.clone(), b = mine.clone();
        group->all_reduce(a, op);
        named->all_reduce(b, op);
        EXPECT_TRUE(same_bits(a.cpu(), b.cpu())) << dtype;
      }
      const at::Tensor sent = torch::full({2, 3}, 5 + r, dtype).to(device);
      named->broadcast(sent, 1);
      EXPECT_TRUE(at::equal(sent.cpu(), torch::full({2, 3}, 6, dtype)));
    }
  }
  EXPECT_REFUSED(named->broadcast(torch::ones({1}), 2), "root", "found 2", "0 to 1");
  EXPECT_REFUSED(named->all_reduce(torch::ones({1}, at::kDouble), ReduceOp::sum), "found dtype Double",
                 "allowed: Float, BFloat16, Half, Long");
  at::Tensor weight = torch::ones({2, 3}, test::on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(named->broadcast(weight, 0), "broadcast", "module 'proj'");
  c10d::unregister_process_group(kName);
}

// 42, 43, 44 on ranks 0, 1, 2.
FP8_TEST_RANKS(Reduce, ValuesOfAllRanks, 3) {
  const auto group = test::rank_group();
  for (const auto device : {at::Device(at::kCPU), at::Device(at::kHPU, 0)}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor mine = torch::full({2}, 42 + group->rank(), at::TensorOptions(dtype)).to(device);
      for (const auto& [op, expected] : {std::pair("sum", 129), std::pair("min", 42), std::pair("max", 44),
                                         std::pair("mean", 43), std::pair("avg", 43)}) {
        const at::Tensor all = reduce(mine, op, *group);
        const bool mean = std::string_view(op) == "mean" || std::string_view(op) == "avg";
        EXPECT_EQ(all.scalar_type(), mean && dtype == at::kLong ? at::kFloat : dtype) << op;
        EXPECT_EQ(all.device(), mine.device());
        EXPECT_TRUE(
            at::equal(all.cpu().to(at::kFloat), torch::full({2}, expected, at::kFloat).to(dtype).to(at::kFloat)))
            << op << all;
      }
      EXPECT_TRUE(at::equal(mine.cpu(), torch::full({2}, 42 + group->rank(), at::TensorOptions(dtype))));
    }
  }
  const at::Tensor odd = torch::full({1}, std::int64_t{group->rank() == 0 ? 1 : 0}, at::kLong);
  EXPECT_NEAR(reduce(odd, "mean", *group).item<float>(), 1.0f / 3, 1e-7);
  const at::Tensor lowest = torch::full({1}, std::numeric_limits<std::int64_t>::min() + group->rank(), at::kLong);
  EXPECT_EQ(reduce(lowest, "min", *group).item<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
}

// ---- the tests

TEST(RegisteredGroup, ANameThatNobodyHas) {
  EXPECT_REFUSED(registered_group("nobody"), "[registered_group] found 'nobody'",
                 "group_name of a group of torch.distributed");
}

TEST(Reduce, OtherOperationsAreRefusedInTheVendorsWords) {
  const auto alone = make_gloo_group({.rank = 0, .size = 1});
  EXPECT_REFUSED(reduce(torch::ones({1}), "product", *alone),
                 "Unsupported ReduceOp product. Supported ops in HCCL are: sum, min, max");
  EXPECT_EQ(reduce(torch::full({1}, 3, at::kLong), "mean", *alone).item<float>(), 3);
}

}  // namespace
}  // namespace fp8::runtime::distributed
