// SPDX-License-Identifier: Apache-2.0
// Codes never lie in memory without a handler or with another weight's scale: what is written into a converted weight,
// what is copied out of one, what takes its memory's place, and what comes back from the host and from archives.
#include "fp8/runtime/intercept/weight_copy.h"

#include "support/hpu_test.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

/// A converted module: weight [4, 6] of codes with one scale.
struct Converted {
  torch::nn::Linear layer{torch::nn::LinearOptions(6, 4).bias(false)};
  std::string name;
  double scale_inv;
  at::Tensor values;  ///< as the codes decode, on hpu
  Converted(std::string module, double scale, double size = 1.0) : name(std::move(module)), scale_inv(scale) {
    at::NoGradGuard no_grad;
    layer->weight.set_data(at::randn({4, 6}) * size);
    layer->to(kHpu);
    const auto handler = std::make_shared<CodesHandler>(scale);
    convert_to_codes(layer->weight, name, handler, scale);
    values = handler->decoded(layer->weight);
  }
  at::Tensor w() const { return layer->weight.detach(); }
  at::Tensor run() const {
    const at::NoGradGuard no_grad;
    return torch::nn::Linear(layer)(at::ones({2, 6}, on_hpu()));
  }
};

at::Tensor expected(const at::Tensor& values) { return at::matmul(at::ones({2, 6}, on_hpu()), values.t()); }
at::Tensor values_of(const at::Tensor& codes) { return call_fp8("dequantize", {codes}).toTensor(); }
at::Tensor bare(const at::Tensor& codes) { return codes.view(at::kByte).cpu().clone().view(codes.scalar_type()); }

struct WeightCopy : ::testing::Test {
  Converted a{"a", 0.02}, b{"b", 2.0, 98.0};
  at::Tensor into = b.w();  // another handle on b's memory
};

TEST_F(WeightCopy, OfAWholeWeightTakesItsScaleAlong) {
  const at::NoGradGuard no_grad;
  b.layer->weight.copy_(a.layer->weight);
  EXPECT_TRUE(same_bits(values_of(b.w()), a.values));
  EXPECT_TRUE(same_bits(b.run(), expected(a.values)));
  EXPECT_EQ(json_of(call_fp8("tag_of", {b.w()}))["modules"], io::Json({"b"}));
  EXPECT_TRUE(same_bits(a.run(), expected(a.values)));
}

TEST_F(WeightCopy, OfAStateDictTakesTheScalesAlongWhateverTheRoute) {
  const at::NoGradGuard no_grad;
  for (const char* route : {"hpu", "clone", "cpu", "cpu and back"}) {
    Converted to("b", 2.0, 98.0);
    for (const auto& item : a.layer->named_parameters()) {
      const std::string way = route;
      const at::Tensor value = way == "hpu"     ? item.value()
                               : way == "clone" ? item.value().clone()
                               : way == "cpu"   ? item.value().cpu()
                                                : item.value().cpu().to(kHpu);
      to.layer->named_parameters()[item.key()].copy_(value);
    }
    EXPECT_TRUE(same_bits(to.run(), expected(a.values))) << route;
  }
}

TEST_F(WeightCopy, OfCodesWithoutAScaleThrows) {
  const at::Tensor codes = bare(a.w()), before = bare(into);
  const std::vector<std::pair<const char*, std::function<void()>>> writes = {
      {"codes on hpu", [&] { into.copy_(codes.to(kHpu)); }},
      {"codes on cpu", [&] { into.copy_(codes); }},
      {"rows", [&] { into.narrow(0, 0, 2).copy_(codes.narrow(0, 0, 2)); }},
      {"rows of another scale", [&] { into.narrow(0, 0, 2).copy_(a.w().narrow(0, 0, 2)); }},
      {"rows of a host copy", [&] { into.narrow(0, 0, 2).copy_(a.w().cpu().narrow(0, 0, 2)); }},
      {"transposed", [&] { into.t().copy_(codes.t()); }},
      {"one row for all", [&] { into.copy_(a.w()[0]); }},
  };
  for (const auto& [what, write] : writes) {
    EXPECT_TRUE(throws_with({"[copy]", "module 'b'", "Float8_e4m3fn"}, write)) << what;
    EXPECT_TRUE(same_bits(into, before)) << what;
  }
  EXPECT_REFUSED(into.copy_(codes), "converted module", "fp8::tag");
  EXPECT_TRUE(same_bits(b.run(), expected(b.values)));
}

TEST_F(WeightCopy, OfAPartWithTheSameScaleIsRight) {
  Converted same("c", 2.0, 98.0);
  into.narrow(0, 0, 2).copy_(same.w().narrow(0, 1, 2));
  EXPECT_TRUE(same_bits(values_of(b.w()), at::cat({same.values.narrow(0, 1, 2), b.values.narrow(0, 2, 2)})));
  into.narrow(0, 0, 1).copy_(into.narrow(0, 3, 1));
  EXPECT_TRUE(same_bits(values_of(b.w())[0], b.values[3]));
}

TEST_F(WeightCopy, BytesOnPurposeGoOn) {
  into.view(at::kByte).copy_(a.w().view(at::kByte));
  EXPECT_TRUE(same_bits(into, a.w()));
  EXPECT_EQ(json_of(call_fp8("tag_of", {b.w()}))["modules"], io::Json({"b"}));
}

TEST_F(WeightCopy, OfAStorageTakesTheMarksAlong) {
  const auto itself = [](T t) {
    return at::empty({0}, on_hpu(at::kByte)).set_(t.storage());
  };  // as Python's deepcopy does
  const at::Tensor fresh = at::empty({24}, on_hpu(at::kByte)), bytes = at::empty({24}, on_hpu(at::kByte));
  itself(fresh).copy_(itself(a.w()));
  const at::Tensor copy = at::empty({0}, on_hpu(at::kFloat8_e4m3fn)).set_(fresh.storage(), 0, {4, 6}, {6, 1});
  EXPECT_REFUSED(copy.to(at::kFloat), "module 'a'");
  EXPECT_TRUE(same_bits(values_of(copy), a.values));
  into.copy_(copy);
  EXPECT_TRUE(same_bits(b.run(), expected(a.values)));
  bytes.copy_(a.w().view(at::kByte).flatten());  // on purpose
  EXPECT_EQ(call_fp8("tag_of", {bytes}).toStringRef(), "null");
  EXPECT_REFUSED(a.w().cpu().new_empty({2}), "new_empty", "module 'a'");  // a deepcopy on the host
}

TEST_F(WeightCopy, OfPartsInheritsTheOneScale) {
  const at::Tensor w = a.w();
  const std::vector<std::pair<const char*, std::function<at::Tensor(T)>>> parts = {
      {"rows", [](T t) { return t.narrow(0, 1, 2).clone(); }},
      {"chunk", [](T t) { return t.chunk(2, 1)[1].contiguous(); }},
      {"flatten", [](T t) { return t.flatten().clone(); }},
      {"transposed rows", [](T t) { return t.narrow(0, 1, 2).t().contiguous(); }},
      {"expand", [](T t) { return t.expand({2, 4, 6}).contiguous(); }},
      {"as_strided", [](T t) { return t.as_strided({2, 2}, {12, 2}).contiguous(); }},
      {"diagonal", [](T t) { return t.diagonal().clone(); }},
      {"permute", [](T t) { return t.view({2, 2, 6}).permute({1, 0, 2}).contiguous(); }},
      {"copy_", [](T t) { return at::empty({6}, t.options()).copy_(t[2]); }},
  };
  for (const auto& [what, part] : parts) {
    const at::Tensor copy = part(w);
    EXPECT_FALSE(copy.is_alias_of(w)) << what;
    EXPECT_REFUSED(copy.to(at::kFloat), "module 'a'") << what;
    EXPECT_REFUSED(copy.sum(), "module 'a'") << what;
    EXPECT_TRUE(same_bits(values_of(copy), part(a.values))) << what;
  }
}

TEST_F(WeightCopy, ByTheVendorsReshapeInheritsTheScale) {
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{4, 6}, {24}, {2, 12}}) {
    torch::jit::Stack stack{a.w(), shape};
    c10::Dispatcher::singleton().findSchemaOrThrow("hpu::fp8_reshape", "").callBoxed(stack);
    const at::Tensor y = stack.front().toTensor();
    EXPECT_FALSE(y.is_alias_of(a.w()));
    EXPECT_REFUSED(y.to(at::kFloat), "module 'a'");
    EXPECT_TRUE(same_bits(values_of(y), a.values.reshape(shape)));
  }
}

TEST_F(WeightCopy, SetDataAndSetTakeMarkedMemoryAlone) {
  const at::NoGradGuard no_grad;
  const at::Tensor codes = bare(a.w()).to(kHpu);
  EXPECT_REFUSED(b.layer->weight.set_data(codes), "[set_]", "module 'b'", "without a mark");
  EXPECT_REFUSED(b.layer->weight.set_data(codes.cpu()), "[set_]", "module 'b'", "without a mark");
  EXPECT_REFUSED(b.layer->weight.set_(codes), "[set_]", "module 'b'", "without a mark");
  EXPECT_REFUSED(b.layer->weight.set_(codes.storage(), 0, {4, 6}, {6, 1}), "[set_]", "module 'b'", "without a mark");
  EXPECT_TRUE(same_bits(b.run(), expected(b.values)));
  b.layer->weight.set_data(a.w());
  EXPECT_TRUE(same_bits(b.run(), expected(a.values)));
  Converted c("c", 3.0);
  c.layer->weight.set_(a.w());
  EXPECT_TRUE(same_bits(c.run(), expected(a.values)));
  Converted d("d", 4.0);
  d.layer->weight.set_(a.w().storage(), 0, {4, 6}, {6, 1});
  EXPECT_TRUE(same_bits(d.run(), expected(a.values)));
  d.layer->weight.set_data(a.values.clone());  // values: no fp8 any more
  EXPECT_TRUE(same_bits(d.run(), expected(a.values)));
}

TEST_F(WeightCopy, SwappedWeightsKeepTheirScales) {
  std::swap(a.layer->weight, b.layer->weight);
  EXPECT_TRUE(same_bits(a.run(), expected(b.values)));
  EXPECT_TRUE(same_bits(b.run(), expected(a.values)));
}

TEST_F(WeightCopy, AnArchiveIsTakenInByTheSameScalesAlone) {
  std::stringstream stream;
  torch::save(a.layer, stream);
  const std::string bytes = stream.str();
  for (const bool on_cpu : {false, true}) {
    std::stringstream other(bytes);
    EXPECT_REFUSED(torch::load(b.layer, other, on_cpu ? std::optional<at::Device>(at::kCPU) : std::nullopt), "[set_]",
                   "module 'b'", "same scales", "module 'a'")
        << on_cpu;
    EXPECT_TRUE(same_bits(b.run(), expected(b.values)));
  }
  Converted same("a", 0.02);
  std::stringstream again(bytes);
  torch::load(same.layer, again);
  EXPECT_TRUE(same_bits(same.run(), expected(a.values)));
  std::stringstream third(bytes);
  torch::load(same.layer, third, at::kCPU);
  same.layer->to(kHpu);
  EXPECT_TRUE(same_bits(same.run(), expected(a.values)));
}

TEST_F(WeightCopy, WhatAnArchiveHoldsIsNoValues) {
  for (const bool from_host : {false, true})
    for (const bool to_host : {false, true}) {
      std::stringstream stream;
      torch::save(from_host ? a.w().cpu() : a.w(), stream);
      at::Tensor loaded;
      torch::load(loaded, stream, to_host ? std::optional<at::Device>(at::kCPU) : std::optional<at::Device>(kHpu));
      EXPECT_TRUE(same_bits(loaded, bare(a.w())));
      EXPECT_REFUSED(loaded.to(at::kFloat), "module 'a'") << from_host << to_host;
      EXPECT_REFUSED(at::linear(at::ones({2, 6}, loaded.options().dtype(at::kFloat)), loaded), "module 'a'")
          << from_host << to_host;
      EXPECT_REFUSED(into.copy_(loaded), "[copy]", "module 'b'", "same scales") << from_host << to_host;
      Converted same("a", 0.02);
      same.w().copy_(loaded);
      EXPECT_TRUE(same_bits(same.run(), expected(a.values))) << from_host << to_host;
    }
}

TEST_F(WeightCopy, WatchedWeightsStayWatchedWhereTheirMemoryIsExchanged) {
  const auto handler = std::make_shared<RecordingHandler>();
  torch::nn::Linear layer = hpu(torch::nn::Linear(6, 4));
  runtime::tag_weight(layer->weight, "layer", handler);
  const at::Tensor flat = at::zeros({100}, on_hpu());
  layer->weight.set_data(flat.narrow(0, 40, 24).view({4, 6}));
  layer(at::ones({2, 6}, on_hpu()));
  EXPECT_EQ(handler->calls.size(), 1u);
  at::linear(at::ones({2, 6}, on_hpu()), flat.narrow(0, 0, 24).view({4, 6}));  // not the weight
  EXPECT_EQ(handler->calls.size(), 1u);
}

using HostCopy = WeightCopy;

TEST_F(HostCopy, IsNoValues) {
  const at::Tensor w = a.w(), host = w.cpu(), rows = host.narrow(0, 1, 2), other = bare(w);
  EXPECT_EQ(host.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(host, other));
  const std::vector<std::pair<const char*, std::function<void(T)>>> uses = {
      {"copy", [](T t) { t.to(at::kFloat); }},
      {"copy", [](T t) { t.to(kHpu, at::kBFloat16); }},
      {"copy", [](T t) { at::empty(t.sizes()).copy_(t); }},
      {"copy", [](T t) { t.detach().copy_(at::ones(t.sizes())); }},
      {"copy", [](T t) { t.detach().copy_(bare(t)); }},
      {"resolve_neg", [](T t) { t.resolve_neg(); }},  // tolist() reads the memory next
      {"_local_scalar_dense", [](T t) { t[0][0].item(); }},
      {"index_select", [](T t) { t.index_select(0, at::tensor({0})); }},
      {"cat", [](T t) { at::cat({t, t}); }},
      {"add", [](T t) { at::add(t, 1); }},
      {"fill_", [](T t) { t.detach().fill_(1); }},
      {"where", [&](T t) { at::where(at::ones(t.sizes(), at::kBool), t, other.narrow(0, 0, t.size(0))); }},
  };
  for (const auto& [op, use] : uses)
    for (const at::Tensor& t : {host, rows, host.clone(), rows.clone(), host.detach()})
      EXPECT_REFUSED(use(t), op, "module 'a'") << op << " " << t.sizes();
  EXPECT_REFUSED(w.resolve_neg(), "resolve_neg", "module 'a'");
  EXPECT_TRUE(same_bits(host, other));
  EXPECT_TRUE(same_bits(host.view(at::kByte).to(at::kInt), other.view(at::kByte).to(at::kInt)));  // bytes on purpose
  EXPECT_TRUE(same_bits(values_of(host), a.values.cpu()));
  EXPECT_TRUE(same_bits(values_of(rows), a.values.cpu().narrow(0, 1, 2)));
}

TEST_F(HostCopy, ComesBackRight) {
  a.layer->to(at::kCPU);
  EXPECT_REFUSED(a.layer->to(at::kFloat), "module 'a'");
  EXPECT_REFUSED(a.layer->to(kHpu, at::kFloat), "module 'a'");
  a.layer->to(kHpu);
  EXPECT_TRUE(same_bits(a.run(), expected(a.values)));
  const at::Tensor rows = a.w().cpu().narrow(0, 1, 2).to(kHpu);
  EXPECT_TRUE(same_bits(values_of(rows), a.values.narrow(0, 1, 2)));
}

TEST_F(HostCopy, ComputesWithTheValues) {
  const at::Tensor host = a.w().cpu(), values = a.values.cpu(), x = at::arange(12, at::kFloat).view({2, 6});
  const std::vector<std::pair<const char*, std::function<at::Tensor(T)>>> products = {
      {"linear", [&](T w) { return at::linear(x, w, at::ones({4})); }},
      {"mm", [&](T w) { return at::mm(x, w.t()); }},
      {"addmm", [&](T w) { return at::addmm(at::ones({4}), x, w.t(), 2, 3); }},
      {"mv", [&](T w) { return at::mv(w, x[0]); }},
      {"bmm", [&](T w) { return at::bmm(x.unsqueeze(0), w.t().unsqueeze(0)); }},
      {"convolution", [&](T w) { return at::conv1d(x.view({1, 6, 2}), w.unsqueeze(2)); }},
      {"embedding", [&](T w) { return at::embedding(w, at::tensor({3, 0})); }},
      {"a part", [&](T w) { return at::mm(x, w.narrow(0, 1, 2).t()); }},
  };
  for (const auto& [name, product] : products) EXPECT_TRUE(same_bits(product(host), product(values))) << name;
}

TEST_F(HostCopy, NewTensorsLikeItAreOfItsValuesDtype) {
  for (const at::Tensor& like : {at::full_like(a.w(), 0.3), at::rand_like(a.w()), at::randn_like(a.w())}) {
    EXPECT_EQ(like.scalar_type(), values_dtype(a.w()));
    EXPECT_EQ(like.sizes(), a.w().sizes());
  }
  EXPECT_TRUE(at::equal(at::full_like(a.w(), 0.3), at::full({4, 6}, 0.3, a.values.options())));
  EXPECT_EQ(at::full_like(a.w(), 2, at::kInt).scalar_type(), at::kInt);
}

TEST_F(HostCopy, OfATransposedPartHasItsValues) {
  const at::Tensor part = a.w().narrow(0, 1, 2).t(), values = a.values.narrow(0, 1, 2).t();
  EXPECT_TRUE(same_bits(values_of(part.clone()), values));
  EXPECT_TRUE(same_bits(values_of(part.cpu().to(kHpu)), values));
  EXPECT_TRUE(same_bits(values_of(a.w().cpu().narrow(0, 1, 2).t().to(kHpu)), values));
  EXPECT_REFUSED(at::empty({6, 4}, a.w().options()).narrow(1, 0, 2).copy_(part), "module 'a'", "one after the other");
}

TEST_F(HostCopy, OfAModuleIsGuardedToo) {
  const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(a.layer->clone(at::Device(at::kCPU)));
  EXPECT_REFUSED(clone->weight.to(at::kFloat), "module 'a'");
  EXPECT_REFUSED(clone->to(at::kFloat), "module 'a'");
  clone->to(kHpu);
  EXPECT_TRUE(same_bits(clone->forward(at::ones({2, 6}, on_hpu())), expected(a.values)));
}

TEST_F(HostCopy, OutlivesTheModule) {
  at::Tensor host;
  {
    Converted gone("gone", 0.5);
    host = gone.w().cpu();
    a.values = gone.values;
  }
  EXPECT_TRUE(same_bits(at::linear(at::ones({2, 6}, on_hpu()), host.to(kHpu)), expected(a.values)));
}

TEST_F(HostCopy, IsTheOnlyHostTensorWithAMark) {
  const at::Tensor plain = at::ones({4, 6}).to(at::kFloat8_e4m3fn);
  (void)a.w().cpu();
  EXPECT_FALSE(plain.key_set().has(c10::DispatchKey::DeferredInit));
  EXPECT_TRUE(same_bits(plain.to(kHpu).cpu().to(at::kFloat), at::ones({4, 6})));
  EXPECT_FALSE(at::empty_like(a.w().cpu()).key_set().has(c10::DispatchKey::DeferredInit));
}

// Stacked experts [E, N, K] (E = 3, N = 4, K = 6): matmul, bmm, baddbmm, einsum and slices, watched and as codes.

struct Form {
  const char* name;
  std::function<at::Tensor(T w)> run;
  int linears;  ///< calls that a handler of codes gets: one per expert, or one for all
};

at::Tensor stacked(at::IntArrayRef sizes) {
  torch::manual_seed(23);
  return at::randn(sizes, on_hpu());
}

/// Rows [ends[e - 1], ends[e]) of five times expert e, as mixtures of experts have it.
at::Tensor grouped(T w, std::vector<std::int32_t> ends) {
  return at::_grouped_mm(stacked({5, 6}), w.transpose(1, 2), at::tensor(ends, at::kInt).to(kHpu));
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"bmm", [](T w) { return at::bmm(stacked({3, 5, 6}), w.transpose(1, 2)); }, 3},
      {"bmm, weight left", [](T w) { return at::bmm(w, stacked({3, 6, 5})); }, 3},
      {"baddbmm", [](T w) { return at::baddbmm(stacked({3, 5, 4}), stacked({3, 5, 6}), w.transpose(1, 2), 0.5, 2); },
       3},
      {"matmul", [](T w) { return at::matmul(stacked({3, 5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 4-D", [](T w) { return at::matmul(stacked({2, 3, 5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 4-D broadcast", [](T w) { return at::matmul(stacked({2, 1, 5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 2-D", [](T w) { return at::matmul(stacked({5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 1-D", [](T w) { return at::matmul(stacked({6}), w.transpose(1, 2)); }, 3},
      {"matmul, weight left", [](T w) { return at::matmul(w, stacked({6, 5})); }, 3},
      {"matmul, weight left, vector", [](T w) { return at::matmul(w, stacked({6})); }, 3},
      {"einsum tk,enk", [](T w) { return at::einsum("tk,enk->ten", {stacked({5, 6}), w}); }, 1},
      {"einsum betk,enk", [](T w) { return at::einsum("betk,enk->betn", {stacked({2, 3, 5, 6}), w}); }, 3},
      {"one expert", [](T w) { return at::linear(stacked({5, 6}), w[1]); }, 1},
      {"one expert, matmul", [](T w) { return at::matmul(stacked({2, 5, 6}), w[2].t()); }, 1},
      {"one expert, F::linear", [](T w) { return torch::nn::functional::linear(stacked({5, 6}), w[0], stacked({4})); },
       1},
      {"one expert, vector", [](T w) { return at::matmul(w[0], stacked({6})); }, 1},
      {"one expert, weight left", [](T w) { return at::matmul(w[1], stacked({5, 6}).t()); }, 1},
      {"unbind", [](T w) { return at::linear(stacked({5, 6}), w.unbind(0)[2]); }, 1},
      {"narrow of an expert", [](T w) { return at::linear(stacked({5, 6}), w[1].narrow(0, 1, 2)); }, 1},
      {"two experts", [](T w) { return at::bmm(stacked({2, 5, 6}), w.narrow(0, 1, 2).transpose(1, 2)); }, 2},
      {"a batch of one expert", [](T w) { return at::matmul(stacked({4, 5, 6}), w.narrow(0, 1, 1).transpose(1, 2)); },
       1},
      {"a batch of one expert, 2-D", [](T w) { return at::matmul(stacked({5, 6}), w.narrow(0, 2, 1).transpose(1, 2)); },
       1},
      {"a batch of one expert, 1-D", [](T w) { return at::matmul(stacked({6}), w.narrow(0, 2, 1).transpose(1, 2)); },
       1},
      {"_grouped_mm", [](T w) { return grouped(w, {2, 2, 5}); }, 2},
      {"_grouped_mm, all experts", [](T w) { return grouped(w, {1, 4, 5}); }, 3},
      {"all as one matrix", [](T w) { return at::linear(stacked({5, 6}), w.view({12, 6})); }, 1},
  };
  return all;
}

at::Tensor weight() {
  torch::manual_seed(6);
  return at::randn({3, 4, 6}, on_hpu());
}

void expect_watched_once(const Form& f) {
  const at::Tensor expected = f.run(weight()), w = weight();
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(w, "experts", handler);
  EXPECT_TRUE(same_bits(f.run(w), expected)) << f.name;
  EXPECT_EQ(handler->calls.size(), 1u) << f.name;
}

TEST(StackedWatchers, SeeEachFormOnceAndChangeNoBit) {
  in_every_mode([] {
    for (const Form& f : forms()) expect_watched_once(f);
  });
}

TEST(StackedCodes, GiveTheProductOfTheDecodedWeight) {
  for (const Form& f : forms()) {
    at::Tensor w = weight();
    const auto handler = std::make_shared<CodesHandler>(0.02);
    const at::Tensor expected = f.run(hpu((w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02));
    convert_to_codes(w, "experts", handler, 0.02);
    const at::Tensor y = f.run(w);
    EXPECT_EQ(y.sizes(), expected.sizes()) << f.name;
    EXPECT_TRUE(at::allclose(y.cpu(), expected.cpu(), 1e-5, 1e-5)) << f.name;
    EXPECT_EQ(handler->linears, f.linears) << f.name;
  }
}

TEST(StackedCodes, ExpertsAreToldByTheirRows) {
  at::Tensor w = weight();
  const auto handler = std::make_shared<CodesHandler>(0.02);
  convert_to_codes(w, "experts", handler, 0.02);
  at::bmm(stacked({3, 5, 6}), w.transpose(1, 2));
  ASSERT_EQ(handler->views.size(), 3u);
  for (std::int64_t e = 0; e < 3; ++e) {
    EXPECT_EQ(handler->views[e].first_row, 4 * e);
    EXPECT_EQ(handler->views[e].rows, 4);
    EXPECT_EQ(handler->views[e].batch, 0);
    EXPECT_FALSE(handler->views[e].whole);
  }
}

TEST(StackedCodes, NotTransposedIsDequantized) {
  at::Tensor w = weight();
  const auto handler = std::make_shared<CodesHandler>(0.02);
  const at::Tensor decoded = hpu((w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02), x = stacked({3, 5, 4});
  convert_to_codes(w, "experts", handler, 0.02);
  EXPECT_TRUE(same_bits(at::bmm(x, w), at::bmm(x, decoded)));
  EXPECT_TRUE(
      same_bits(at::baddbmm(stacked({3, 5, 6}), x, w, 2, 0.5), at::baddbmm(stacked({3, 5, 6}), x, decoded, 2, 0.5)));
  EXPECT_EQ(handler->dequantized, 2);
  EXPECT_EQ(handler->linears, 0);
}

TEST(StackedCodes, ABatchThatFitsNoExpertsThrows) {
  at::Tensor w = weight();
  convert_to_codes(w, "experts", std::make_shared<CodesHandler>(0.02), 0.02);
  EXPECT_REFUSED(at::matmul(stacked({4, 5, 6}), w.transpose(1, 2)), "aten::matmul", "module 'experts'",
                 "batch of 1 or 3");
}

}  // namespace
}  // namespace fp8::test
