// SPDX-License-Identifier: Apache-2.0
// Sums of partial results that travel as fp8, beside torch's own cast to E4M3, and what ranks say of themselves once.
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

constexpr const char* kMessages = "of messages";
const c10::IValue kOwnScales;  // each message's

std::vector<at::Tensor> call_of(const char* name, torch::jit::Stack arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(arguments);
  std::vector<at::Tensor> results;
  for (const auto& value : arguments) results.push_back(value.toTensor());
  return results;
}

/// The group of this test's ranks, known to c10d by kMessages meanwhile.
class Registered {
 public:
  Registered() : group(test::rank_group()) { c10d::register_process_group(kMessages, c10d_group(*group)); }
  ~Registered() { c10d::unregister_process_group(kMessages); }
  Registered& operator=(Registered&&) = delete;
  const std::shared_ptr<ProcessGroup> group;
};

float largest_code() { return kernels::fp8_max(kernels::Format::E4M3, device_dialect("test")); }

/// Through E4M3 and back, by torch's cast.
at::Tensor through_fp8(const at::Tensor& rows, const at::Tensor& scale_inv) {
  const at::Tensor scaled = (rows.to(at::kFloat) * (1.0f / scale_inv)).clamp(-largest_code(), largest_code());
  return scaled.to(at::kFloat8_e4m3fn).to(at::kFloat) * scale_inv;
}

/// Each row with amax / max.
at::Tensor through_fp8(const at::Tensor& rows) {
  const at::Tensor amax = rows.to(at::kFloat).abs().amax(1, true);
  return through_fp8(rows, torch::where(amax == 0, torch::ones_like(amax), amax / largest_code()));
}

at::Tensor partial_of(int rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  torch::manual_seed(7 + rank);
  return torch::randn(sizes).mul(rank + 1).to(dtype);
}

FP8_TEST_RANKS(Fp8Messages, SumsArePartsDecodedAddedAndCastOnceMore, 2, 3) {
  const Registered known;
  const int ranks = known.group->size(), rank = known.group->rank();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 1, 96}, {7}, {1}, {5, 33}}) {
      std::vector<at::Tensor> coded;
      at::Tensor exact = torch::zeros(sizes), largest = torch::zeros({});
      std::int64_t count = 0;
      for (int r = 0; r < ranks; ++r) {
        const at::Tensor x = partial_of(r, sizes, dtype).to(at::kFloat);
        count = x.numel();
        at::Tensor rows = torch::zeros({ranks, (count + ranks - 1) / ranks});
        rows.view({-1}).narrow(0, 0, count).copy_(x.view({-1}));
        coded.push_back(through_fp8(rows));
        exact += x;
        largest += x.abs().amax();
      }
      const at::Tensor expected =
          through_fp8(torch::stack(coded).sum(0)).view({-1}).narrow(0, 0, count).view(sizes).to(dtype);
      const at::Tensor mine = partial_of(rank, sizes, dtype).to(test::kHpu);
      const at::Tensor sum = call_of("fp8::all_reduce", {mine, kMessages, kOwnScales}).at(0);
      EXPECT_EQ(sum.device(), mine.device());
      EXPECT_TRUE(same_bits(sum.cpu(), expected)) << dtype << at::IntArrayRef(sizes);
      // Half a step of a format with 3 bits of mantissa, for each rank's cast and for that of the sum.
      EXPECT_TRUE((sum.cpu().to(at::kFloat) - exact).abs().le(largest / 16 * 2.1).all().item<bool>());
    }
  const at::Tensor nan = torch::full({4}, rank == 0 ? std::nanf("") : 1.0f).to(test::kHpu);
  EXPECT_TRUE(call_of("fp8::all_reduce", {nan, kMessages, kOwnScales}).at(0).cpu().isnan().any().item<bool>());
  EXPECT_EQ(call_of("fp8::all_reduce", {torch::ones({0, 3}).to(test::kHpu), kMessages, kOwnScales}).at(0).numel(), 0);
  EXPECT_REFUSED(call_of("fp8::all_reduce", {torch::ones({4}, at::kLong), kMessages, kOwnScales}),
                 "[fp8::all_reduce] x", "found Long");
}

/// By scales that all ranks know; the second ones saturate.
FP8_TEST_RANKS(Fp8Messages, MeasuredScalesOfWhatIsAddedAndOfTheSum, 2, 3) {
  const Registered known;
  const int ranks = known.group->size(), rank = known.group->rank();
  for (const auto& [of_added, of_sum] : {std::pair{0.0131f, 0.0307f}, {0.001f, 0.002f}, {0.125f, 0.25f}})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 1, 96}, {7}, {1}}) {
        const at::Tensor added = torch::full({}, of_added), whole = torch::full({}, of_sum);
        std::vector<at::Tensor> coded;
        for (int r = 0; r < ranks; ++r) coded.push_back(through_fp8(partial_of(r, sizes, dtype), added));
        const at::Tensor expected = through_fp8(torch::stack(coded).sum(0), whole).to(dtype);
        const at::Tensor mine = partial_of(rank, sizes, dtype).to(test::kHpu);
        const c10::List<double> scales({double{of_added}, double{of_sum}});
        EXPECT_TRUE(same_bits(call_of("fp8::all_reduce", {mine, kMessages, scales}).at(0).cpu(), expected))
            << dtype << at::IntArrayRef(sizes) << of_added;
      }
  const at::Tensor x = torch::ones({4}).to(test::kHpu);
  for (const std::vector<double>& wrong :
       {std::vector<double>{1.0}, {1.0, 0.0}, {-1.0, 1.0}, {1.0, INFINITY}, {1e-44, 1.0}})
    EXPECT_REFUSED(call_of("fp8::all_reduce", {x, kMessages, c10::List<double>(wrong)}),
                   "[fp8::all_reduce] scale_inv: expected two positive finite numbers");
}

TEST(Fp8Messages, GroupsOfValuesHaveScalesOfTheirOwn) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    at::Tensor x = partial_of(0, {6, 40}, dtype);
    x[1].zero_();
    const auto cast = call_of("fp8::cast_groups", {x.to(test::kHpu), 12});
    EXPECT_EQ(cast.at(0).scalar_type(), at::kChar);
    EXPECT_EQ(cast.at(0).sizes(), x.sizes());
    EXPECT_EQ(cast.at(1).sizes(), at::IntArrayRef({12}));
    const at::Tensor values = call_of("fp8::decode_groups", {cast.at(0), cast.at(1)}).at(0).cpu();
    EXPECT_TRUE(same_bits(values, through_fp8(x.view({12, 20})).view({6, 40})));
  }
  const at::Tensor x = torch::ones({6}).to(test::kHpu);
  EXPECT_REFUSED(call_of("fp8::cast_groups", {x, 4}), "[fp8::cast_groups] groups: found 4", "divisor of the 6 values");
  EXPECT_REFUSED(call_of("fp8::decode_groups", {x, x}), "[fp8::decode_groups] expected bytes", "6 of Float");
  at::Tensor weight = torch::ones({2, 3}, on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(call_of("fp8::cast_groups", {weight, 2}), "fp8::cast_groups", "module 'proj'");
  EXPECT_REFUSED(call_of("fp8::decode_groups", {weight, x}), "fp8::decode_groups", "module 'proj'");
}

FP8_TEST_RANKS(Fp8Messages, RanksIntroduceThemselvesOnce, 2) {
  using Texts = std::vector<std::string>;
  const Registered known;
  const std::string mine = known.group->rank() == 0 ? "none" : "three";
  EXPECT_EQ(registered_group(kMessages)->introduce(mine), (Texts{"none", "three"}));
  EXPECT_EQ(registered_group(kMessages)->introduce(mine), Texts{});  // another object, one group
  EXPECT_EQ(known.group->introduce(mine), Texts{});                  // whose ranks compare what they train before
}

FP8_TEST_RANKS(Fp8Messages, WhoNeverIntroducedItselfIsNamed, 2) {
  const Registered known;
  const auto group = registered_group(kMessages);
  if (group->rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(6));
  EXPECT_EQ(group->introduce("three"), (std::vector<std::string>{"three", ""}));
  float value = 0;
  EXPECT_REFUSED(group->all_reduce_max(&value, 1), "rank 0 of 2: all_reduce max of 1 elements",
                 "(rank 1 ran no fp8 region of this group)");
}

}  // namespace
}  // namespace fp8::runtime::distributed
