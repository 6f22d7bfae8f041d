// SPDX-License-Identifier: Apache-2.0
// Libraries of operators: loaded once, refused by name, taken back when they are closed.
#include "fp8/runtime/custom/extension.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/parts.h"
#include "runtime/custom/sample_ops.h"
#include "support/golden.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace {

using namespace fp8;
using namespace fp8::runtime;
using namespace fp8::test;

bool is_registered() { return c10::Dispatcher::singleton().findSchema({"sample_ext::twice", ""}).has_value(); }

TEST(Extension, ItsOperatorsGoWithItsLibrary) {  // first: load_extension() loads for good
  if (is_registered()) GTEST_SKIP() << "another test of this process has loaded it";
  void* library = dlopen(FP8_SAMPLE_EXTENSION, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(call_op("sample_ext::twice", {hpu(at::full({3}, 2.5F))})[0].sum().item<float>(), 15);
  ASSERT_EQ(dlclose(library), 0);
  EXPECT_FALSE(is_registered());
}

TEST(Extension, LoadsOnceAndSaysWhatCameWithIt) {
  const auto loaded = load_extension(FP8_SAMPLE_EXTENSION), again = load_extension(FP8_SAMPLE_EXTENSION);
  EXPECT_EQ(loaded.ops, std::vector<std::string>{"sample_ext::twice"});
  EXPECT_EQ(again.file, loaded.file);
  ASSERT_EQ(extensions().size(), 1U);
  EXPECT_EQ(call_op("sample_ext::twice", {hpu(at::ones({3}))})[0].sum().item<float>(), 6);
  // Another file with the same operator: refused, and the first stays registered.
  const TempDir folder;
  const auto copy = folder.path() / "copy.so";
  std::filesystem::copy_file(FP8_SAMPLE_EXTENSION, copy);
  EXPECT_REFUSED(load_extension(copy), "copy.so", "[sample_ext::twice] found an operator of that name");
  EXPECT_EQ(call_op("sample_ext::twice", {hpu(at::ones({3}))})[0].sum().item<float>(), 6);
  EXPECT_EQ(extensions().size(), 1U);
}

TEST(Extension, AFailedOneFailsEachTime) {
  for (const std::string name : {"throws_int.so", "throws_static.so"}) {
    const std::string file = FP8_ODD_EXTENSIONS "/" + name, error = error_of([&] { load_extension(file); });
    EXPECT_THAT(error, HasSubstr(name + "': threw what is no std::exception"));
    EXPECT_EQ(error_of([&] { load_extension(file); }), error);
    EXPECT_FALSE(c10::Dispatcher::singleton().findSchema({"sample_ext::first", ""}).has_value());
  }
}

TEST(Extension, MayLoadOthersAndHavePartsAlone) {
  const auto loaded = load_extension(FP8_ODD_EXTENSIONS "/nested.so");
  EXPECT_EQ(loaded.ops.size(), 0U);
  EXPECT_EQ(loaded.parts, std::vector<std::string>{"callback Odd"});
  // Another file with the same part: refused, and the first's stays.
  const TempDir folder;
  const auto copy = folder.path() / "copy.so";
  std::filesystem::copy_file(FP8_ODD_EXTENSIONS "/nested.so", copy);
  EXPECT_REFUSED(load_extension(copy), "copy.so", "found the name 'Odd', allowed: one that is not taken");
  EXPECT_TRUE(fp8::trainer::is_part<fp8::trainer::TrainerCallback>("Odd"));
}

TEST(Extension, NamesFilesThatCantBeLoaded) {
  const TempDir folder;
  const auto text = folder.path() / "text.so";
  std::ofstream(text) << "no library\n";
  EXPECT_REFUSED(load_extension(""), "[extension] found ''");
  for (const auto& file : {folder.path() / "missing.so", text, folder.path()}) {
    const std::string error = error_of([&, file = file] { load_extension(file); });
    EXPECT_THAT(error, AllOf(HasSubstr(file.string()), HasSubstr("can't be loaded")));
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

// Every mistake is an error that names the operator.

/// The error of add() for an operator of that name and schema.
std::string refused(const std::string& name, const std::string& schema) {
  return error_of([&] { (void)CustomOp(name).schema(schema).shape(same_as(0)).kernel(gelu_mul).add(); });
}

TEST(CustomOpErrors, NamesAndSchemas) {
  for (const char* name : {"gelu", "::x", "my::", "my::a b", "my::a.b.c", "1my::x", ""})
    EXPECT_TRUE(refused(name, "(Tensor a) -> Tensor").find("allowed: space::op") != std::string::npos) << name;
  EXPECT_TRUE(refused("hpu::mine", "(Tensor a) -> Tensor").find("[hpu::mine] namespace 'hpu' is taken") == 0);
  const auto of_schema = [](const std::string& schema) {
    const std::string text = refused("my::bad", schema);
    EXPECT_THAT(text, StartsWith("[my::bad] ")) << schema;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_EQ(text.find("()"), text.find("-> ()") == std::string::npos ? std::string::npos : text.find("-> ()") + 3)
        << text << " gives no reason";
    return text;
  };
  EXPECT_GOLDEN(of_schema(text));
  EXPECT_THAT(of_schema(""), HasSubstr("schema: found ''"));
}

TEST(CustomOpErrors, TakenNamesAndMissingParts) {
  const auto first = gelu_mul_op("my::gelu_mul").add();
  EXPECT_REFUSED((void)gelu_mul_op("my::gelu_mul").add(), "[my::gelu_mul] found an operator of that name");
  const auto overload = gelu_mul_op("my::gelu_mul.other").add();
  EXPECT_REFUSED((void)CustomOp("my::x").schema("(Tensor a) -> Tensor").add(), "[my::x] found no kernel");
  EXPECT_TRUE(throws_with({"[my::x] found two kernels"}, [] {
    (void)gelu_mul_op("my::x").kernel([](CustomArguments) { return std::vector<at::Tensor>(); }).add();
  }));
  EXPECT_REFUSED((void)CustomOp("my::x").schema("(Tensor a) -> Tensor").kernel(gelu_mul).add(),
                 "[my::x] has no shape function");
  EXPECT_REFUSED((void)gelu_mul_op("my::x").backward("my::y").add(), "[my::x] found two backwards");
  EXPECT_REFUSED((void)CustomOp("my::x").backward(""), "[my::x] backward: found ''");
}

TEST(CustomOpErrors, MetaWithoutAShapeFunction) {
  const auto op = CustomOp("my::formless")
                      .schema("(Tensor a) -> Tensor")
                      .kernel([](CustomArguments in) { return std::vector{in[0].toTensor() * 2}; })
                      .add();
  EXPECT_EQ(call_op("my::formless", {at::ones({2}, on_hpu())})[0].sum().item<float>(), 4);
  EXPECT_REFUSED(call_op("my::formless", {at::ones({2}, at::kMeta)}), "[my::formless] has no shape function",
                 ".shape()");
}

TEST(CustomOpErrors, ShapeFunctions) {
  const std::vector<std::pair<std::vector<ResultForm>, const char*>> wrong = {
      {{}, "the shape function says 0 results, the schema says 1"},
      {{{{1}, at::kFloat}, {{1}, at::kFloat}}, "says 2 results"},
      {{{{2, -1}, at::kFloat}}, "the sizes [2, -1], allowed: 0 or more"},
      {{{{1LL << 40, 1LL << 40}, at::kFloat}}, "fewer than 2^63 bytes"},
      {{{{1}, at::ScalarType::Undefined}}, "says no dtype"}};
  for (const auto& [forms, words] : wrong) {
    const auto op = CustomOp("my::wrong")
                        .schema("(Tensor a) -> Tensor")
                        .shape([forms = forms](CustomArguments) { return forms; })
                        .kernel([](const HostCall&) { FAIL() << "called"; })
                        .add();
    EXPECT_REFUSED(call_op("my::wrong", {at::ones({2}, on_hpu())}), "[my::wrong]", words);
    EXPECT_REFUSED(call_op("my::wrong", {at::ones({2}, at::kMeta)}), "[my::wrong]", words);
  }
  const auto op = gelu_mul_op("my::seventh").shape(same_as(7)).add();
  const at::Tensor x = at::ones({2}, on_hpu());
  EXPECT_REFUSED(call_op("my::seventh", {x, x}), "[my::seventh] shape: ", "argument 7");
}

TEST(CustomOpErrors, ResultsOfTensorKernels) {
  const std::vector<std::pair<std::vector<at::Tensor>, const char*>> wrong = {
      {{}, "the kernel returned 0 tensors, the schema says 1"},
      {{at::ones({2}), at::ones({2})}, "the kernel returned 2 tensors"},
      {{at::ones({3})}, "the kernel returned the sizes [3], the shape function says [2]"},
      {{at::ones({2}, at::kDouble)}, "the kernel returned Double, the shape function says Float"},
      {{at::Tensor()}, "an undefined tensor"},
      {{at::ones({2}, on_hpu())}, "a tensor of hpu:0"},
      {{at::ones({2}).to_sparse()}, "layout Sparse"}};
  for (const auto& [returned, words] : wrong) {
    const auto op = CustomOp("my::returns")
                        .schema("(Tensor a) -> Tensor")
                        .shape(same_as(0))
                        .kernel([returned = returned](CustomArguments) { return returned; })
                        .add();
    EXPECT_REFUSED(call_op("my::returns", {at::ones({2}, on_hpu())}), "[my::returns]", words);
  }
}

TEST(CustomOpErrors, Operands) {
  const auto op = gelu_mul_op("my::gelu_mul").add();
  const at::Tensor x = at::ones({2}, on_hpu());
  const auto call = [&](const at::Tensor& b) { return error_of([&] { call_op("my::gelu_mul", {x, b}); }); };
  EXPECT_THAT(call(at::ones({2})), HasSubstr("[my::gelu_mul] operands on more than one device"));
  EXPECT_THAT(call(at::Tensor()), HasSubstr("[my::gelu_mul] found an undefined tensor"));
  EXPECT_EQ(call(at::ones({2}, on_hpu(at::kDouble))),
            "[my::gelu_mul] shape: found Double [2] beside Float [2], allowed: tensors of one size and dtype");
  EXPECT_THAT(call(at::ones({1}, on_hpu())), HasSubstr("[my::gelu_mul] shape: found Float [1] beside Float [2]"));
  EXPECT_EQ(call(at::ones({2}, on_hpu())), "");
  at::Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "fc1", std::make_shared<CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(call_op("my::gelu_mul", {w, w}), "my::gelu_mul", "fc1");
}

TEST(CustomOpErrors, AKernelThatThrowsLeaksNothing) {
  int mode = 0;
  const auto op = CustomOp("my::fails")
                      .schema("(Tensor a) -> Tensor")
                      .shape([](CustomArguments) { return std::vector{ResultForm{{1000, 1000}, at::kFloat}}; })
                      .kernel([&](const HostCall& call) {
                        if (mode == 0) throw std::runtime_error("no luck");
                        if (mode == 1) throw 7;
                        if (mode == 2) (void)call.in<float>(3);
                        if (mode == 3) (void)call.out<std::int64_t>(0);
                        (void)call.params<int>();
                      })
                      .add();
  const at::Tensor x = at::ones({2}, on_hpu()).t();
  const auto before = memory_stats();
  const char* words[] = {"[my::fails] kernel: no luck", "[my::fails] kernel: threw what is no std::exception",
                         "[my::fails] the kernel asks for argument 3", "result 0: found Float, the kernel takes Long",
                         "[my::fails] params: found 0 bytes, the kernel takes 4"};
  for (const char* text : words) {
    EXPECT_REFUSED(call_op("my::fails", {x}), text);
    ++mode;
  }
  const auto after = memory_stats();
  EXPECT_EQ(after.InUse, before.InUse);
  EXPECT_EQ(after.ActiveAllocs, before.ActiveAllocs);
  set_memory_limit(before.InUse + 1000);
  EXPECT_REFUSED(call_op("my::fails", {x}), "out of memory");
  set_memory_limit(before.Limit);
}

TEST(CustomOpErrors, Gradients) {
  std::vector<at::Tensor> gradients;
  const auto op = gelu_mul_op("my::gelu_mul").backward([&](const BackwardCall&) { return gradients; }).add();
  const at::Tensor a = at::ones({2}, on_hpu()).requires_grad_(), b = at::ones({2}, on_hpu());
  const auto run = [&] { call_op("my::gelu_mul", {a, b})[0].sum().backward(); };
  EXPECT_TRUE(throws_with({"[my::gelu_mul] backward gave 0 gradients, the arguments hold 2"}, run));
  gradients = {at::ones({3}, on_hpu()), at::Tensor()};
  EXPECT_TRUE(throws_with({"[my::gelu_mul] backward gave tensor 0 a gradient of the sizes [3], it has [2]"}, run));
  gradients[0] = at::ones({2}, on_hpu());
  run();  // an undefined gradient is none
  EXPECT_EQ(a.grad().sum().item<float>(), 2);
}

TEST(CustomOpErrors, ForwardModeTangents) {
  const auto op = gelu_mul_op("my::gelu_mul").add();
  const at::Tensor a = at::ones({2}, on_hpu()), b = at::ones({2}, on_hpu());
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const at::Tensor dual = at::_make_dual(a, at::ones({2}, on_hpu()), static_cast<std::int64_t>(level));
    const auto run = [&] { call_op("my::gelu_mul", {dual, b}); };
    EXPECT_TRUE(throws_with({"[my::gelu_mul] found a forward-mode tangent"}, run));
    const at::NoGradGuard no_grad;  // says nothing of forward mode
    EXPECT_TRUE(throws_with({"[my::gelu_mul] found a forward-mode tangent"}, run));
  }
  torch::autograd::ForwardADLevel::release_idx(level);
  EXPECT_EQ(call_op("my::gelu_mul", {a, b}).size(), 1U);
}

TEST(CustomOpErrors, ACallThatUnloadsItself) {  // is not waited for: it would never end
  std::optional<CustomOpHandle> op;
  testing::internal::CaptureStderr();
  op = CustomOp("my::leaves")
           .schema("(Tensor a) -> Tensor")
           .kernel([&](CustomArguments in) {
             op.reset();
             return std::vector{in[0].toTensor() * 2};
           })
           .add();
  EXPECT_EQ(call_op("my::leaves", {at::ones({2}, on_hpu())})[0].sum().item<float>(), 4);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("[my::leaves] unloaded within a call"));
}

TEST(CustomOpErrors, AfterTheHandleItIsGone) {
  at::Tensor y;
  {
    const auto op = gelu_mul_op("my::gelu_mul").add();
    y = call_op("my::gelu_mul", {at::ones({2}, on_hpu()).requires_grad_(), at::ones({2}, on_hpu())})[0];
  }
  EXPECT_REFUSED(call_op("my::gelu_mul", {at::ones({2}), at::ones({2})}), "my::gelu_mul");
  EXPECT_REFUSED(y.sum().backward(), "[my::gelu_mul] is not registered any more");
  const auto again = gelu_mul_op("my::gelu_mul").add();
  EXPECT_EQ(call_op("my::gelu_mul", {at::zeros({2}), at::ones({2})})[0].sum().item<float>(), 0);
}

}  // namespace
