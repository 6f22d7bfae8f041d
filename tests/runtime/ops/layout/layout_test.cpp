// SPDX-License-Identifier: Apache-2.0
// in_place_interleave, kv_reorder and the deprecated movers: bytes of every dtype against plain loops and PyTorch on
// the CPU.
#include "runtime/ops/op_call.h"

namespace fp8::test {
namespace {

using at::Tensor;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kInt, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

Tensor numbers(at::IntArrayRef sizes, at::ScalarType type) {
  torch::manual_seed(4);
  return at::randint(0, 100, sizes).to(at::kFloat).to(type);
}

TEST(InPlaceInterleave, RepeatsEachOfTheFirstRowsFourTimes) {
  for (const auto type : kTypes) {
    const Tensor x = numbers({8, 3, 2, 5}, type);
    const Tensor expected = at::stack({x[0], x[0], x[0], x[0], x[1], x[1], x[1], x[1]});
    EXPECT_TRUE(same_bits(call("in_place_interleave", "", {hpu(x)})[0], expected)) << type;
    Tensor self = hpu(x);
    const Tensor y = call("in_place_interleave_", "", {self})[0];
    EXPECT_EQ(y.unsafeGetTensorImpl(), self.unsafeGetTensorImpl());
    EXPECT_TRUE(same_bits(self, expected)) << type;
  }
}

TEST(InPlaceInterleave, WantsFourDimensionsAndGroupsOfFour) {
  EXPECT_REFUSED(call("in_place_interleave", "", {at::ones({6, 1, 1, 1}, on_hpu())}), "[in_place_interleave]",
                 "[6, 1, 1, 1]");
  EXPECT_REFUSED(call("in_place_interleave_", "", {at::ones({8, 1, 1}, on_hpu())}), "[in_place_interleave]",
                 "4 dimensions");
}

struct Reorder {
  Tensor self, start, end, beams;  // beams: [B, 4]

  Tensor packed() const { return (beams * at::tensor({64, 16, 4, 1})).sum(1).to(at::kByte); }
  torch::jit::Stack arguments(const Tensor& on_device) const {
    return {on_device, hpu(start), hpu(end), hpu(packed())};
  }

  /// y[b, i, .., t, :] = x[b, beams[b, i], .., t, :] for start <= t < end.
  Tensor expected() const {
    Tensor y = self.clone();
    for (std::int64_t b = 0; b < self.size(0); ++b) {
      const auto from = start[b].item<int>(), to = end[b].item<int>();
      for (std::int64_t i = 0; i < 4; ++i)
        for (auto t = from; t < to; ++t)
          y[b][i].select(-2, t).copy_(self[b][beams[b][i].item<std::int64_t>()].select(-2, t));
    }
    return y;
  }
};

Reorder reorder(const Tensor& self) {
  torch::manual_seed(6);
  const std::int64_t batch = self.size(0), tokens = self.size(-2);
  const Tensor start = at::randint(0, tokens, {batch}, at::kInt);
  return {self, start, start + (at::rand({batch}) * (tokens + 1 - start)).to(at::kInt), at::randint(0, 4, {batch, 4})};
}

TEST(KvReorder, MovesBeamsWithinTheTokensOfEachBatchEntry) {
  for (const auto type : kTypes)
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{3, 4, 2, 9, 5}, {5, 4, 6, 3}, {1, 4, 1, 32, 1}, {0, 4, 2, 2}}) {
      const Reorder r = reorder(numbers(sizes, type));
      const Tensor before = hpu(r.self);
      EXPECT_TRUE(same_bits(call("kv_reorder", "", r.arguments(before))[0], r.expected())) << type << sizes;
      EXPECT_TRUE(same_bits(before, r.self)) << "kv_reorder leaves its input alone";
      Tensor self = hpu(r.self);
      EXPECT_EQ(call("kv_reorder_", "", r.arguments(self))[0].unsafeGetTensorImpl(), self.unsafeGetTensorImpl());
      EXPECT_TRUE(same_bits(self, r.expected())) << type << sizes;
    }
}

TEST(KvReorder, WritesThroughViews) {
  const Reorder r = reorder(numbers({3, 4, 9, 2, 5}, at::kBFloat16).transpose(2, 3));
  const Tensor base = hpu(r.self.transpose(2, 3).contiguous());
  Tensor view = base.transpose(2, 3);
  call("kv_reorder_", "", r.arguments(view));
  EXPECT_TRUE(same_bits(base.transpose(2, 3), r.expected()));
}

TEST(KvReorder, DeprecatedNameTakesCodesOnly) {
  const Reorder r = reorder(numbers({2, 4, 6, 3}, at::kChar));
  Tensor self = hpu(r.self);
  call("fp8_kv_reorder_", "", r.arguments(self));
  EXPECT_TRUE(same_bits(self, r.expected()));
  EXPECT_REFUSED(call("fp8_kv_reorder_", "", r.arguments(hpu(r.self.to(at::kFloat)))), "[fp8_kv_reorder_]",
                 "Float8_e4m3fn", "got Float");
}

TEST(KvReorder, BadArgumentsInTheVendorsWords) {
  const Reorder r = reorder(numbers({2, 4, 6, 3}, at::kFloat));
  const auto with = [&](std::size_t index, const Tensor& t) {
    auto arguments = r.arguments(hpu(r.self));
    arguments[index] = hpu(t);
    call("kv_reorder_", "", arguments);
  };
  EXPECT_REFUSED(with(1, r.start.to(at::kLong)), "Start tensor must be of type Int32");
  EXPECT_REFUSED(with(2, r.end.to(at::kLong)), "End tensor must be of type Int32");
  EXPECT_REFUSED(with(3, r.beams.to(at::kInt)), "Beam_idx tensor must be of type UInt8");
  EXPECT_REFUSED(with(1, r.start.unsqueeze(0)), "Start tensor must have dimensions 1");
  EXPECT_REFUSED(with(2, r.end.unsqueeze(0)), "End tensor must have dimensions 1");
  EXPECT_REFUSED(with(3, r.packed().unsqueeze(0)), "Beam_idx tensor must have dimensions 1");
  EXPECT_REFUSED(with(1, at::zeros({3}, at::kInt)), "2 elements", "got 3");
  EXPECT_REFUSED(with(0, at::ones({2, 3, 6, 3})), "4 beams");
  EXPECT_REFUSED(with(2, at::full({2}, 7, at::kInt)), "end <= 6", "end 7");
  EXPECT_REFUSED(with(1, at::full({2}, -1, at::kInt)), "0 <= start", "start -1");
  Tensor self = hpu(r.self);
  auto arguments = r.arguments(self);
  arguments[2] = hpu(at::tensor({6, 7}, at::kInt));
  EXPECT_NE(error_of([&] { call("kv_reorder_", "", arguments); }), "");
  EXPECT_TRUE(same_bits(self, r.self)) << "nothing half done";
}

TEST(DeprecatedMovers, MoveBytes) {
  for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kChar, at::kByte}) {
    const Tensor x = numbers({2, 3, 4}, type), device = hpu(x);
    const auto bytes = [](const Tensor& t) { return t.cpu().contiguous().view(at::kByte); };
    const auto empty = [&](at::IntArrayRef sizes) { return at::empty(sizes, on_hpu(type)); };
    EXPECT_TRUE(same_bits(bytes(call("fp8_transpose", "", {device, empty({2, 4, 3})})[0]),
                          bytes(x).transpose(1, 2).contiguous()));
    EXPECT_TRUE(
        same_bits(bytes(call("fp8_permute", "", {device, std::vector<std::int64_t>{2, 0, 1}, empty({4, 2, 3})})[0]),
                  bytes(x).permute({2, 0, 1}).contiguous()));
    const Tensor reshaped = call("fp8_reshape", "", {device, std::vector<std::int64_t>{6, -1}})[0];
    EXPECT_TRUE(same_bits(bytes(reshaped), bytes(x).view({6, 4})));
    EXPECT_FALSE(reshaped.is_alias_of(device));
    const Tensor index = at::tensor({2, 0}, on_hpu(at::kLong));
    EXPECT_TRUE(same_bits(bytes(call("fp8_index_select_v2", "", {device, 1, index})[0]),
                          bytes(x).index_select(1, index.cpu())));
    EXPECT_TRUE(same_bits(bytes(call("fp8_repeat_v2", "", {device, std::vector<std::int64_t>{2, 1, 3}})[0]),
                          bytes(x).repeat({2, 1, 3})));
    Tensor self = empty({2, 3, 4});
    call("fp8_copy_", "", {self, device});
    EXPECT_TRUE(same_bits(self, x));
    const Tensor source = hpu(numbers({2, 2, 4}, type));
    call("fp8_index_copy_", "", {self, 1, index.to(at::kInt), source});
    EXPECT_TRUE(same_bits(bytes(self), bytes(x).index_copy(1, index.cpu(), bytes(source))));
  }
}

TEST(DeprecatedMovers, RefuseOtherDtypesAndSizes) {
  const Tensor x = hpu(numbers({3, 4}, at::kFloat8_e4m3fn)), f32 = at::ones({3, 4}, on_hpu());
  EXPECT_REFUSED(call("fp8_copy_", "", {x, f32}), "[fp8_copy_]", "got Float");
  EXPECT_REFUSED(call("fp8_copy_", "", {hpu(numbers({3, 4}, at::kFloat8_e5m2)), x}), "[fp8_copy_]",
                 "src of dtype Float8_e5m2");
  EXPECT_REFUSED(call("fp8_transpose", "", {x, x.clone()}), "[fp8_transpose]", "sizes [4, 3]");
  EXPECT_REFUSED(call("fp8_reshape", "", {f32, std::vector<std::int64_t>{12}}), "[fp8_reshape]", "got Float");
}

TEST(LayoutMeta, GivesSizes) {
  const Tensor x = at::empty({8, 4, 2, 5}, at::kMeta),
               ints = at::empty({8}, at::TensorOptions(at::kMeta).dtype(at::kInt)),
               beams = at::empty({8}, at::TensorOptions(at::kMeta).dtype(at::kByte));
  EXPECT_EQ(call("in_place_interleave", "", {x})[0].sizes(), x.sizes());
  EXPECT_EQ(call("kv_reorder", "", {x, ints, ints, beams})[0].sizes(), x.sizes());
  EXPECT_EQ(call("kv_reorder_", "", {x, ints, ints, beams})[0].sizes(), x.sizes());
  EXPECT_REFUSED(call("kv_reorder", "", {x, x, ints, beams}), "Start tensor must be of type Int32");
}

}  // namespace
}  // namespace fp8::test
