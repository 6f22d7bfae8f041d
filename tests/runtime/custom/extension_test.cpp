// SPDX-License-Identifier: Apache-2.0
// Libraries of operators: loaded once, refused by name, taken back when they are closed.
#include "fp8/runtime/custom/extension.h"

#include <dlfcn.h>

#include <filesystem>

#include "fp8/runtime/trainer/parts.h"
#include "runtime/custom/sample_ops.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace {

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
    EXPECT_NE(error.find(name + "': threw what is no std::exception"), std::string::npos) << error;
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
    EXPECT_NE(error.find(file.string()), std::string::npos) << error;
    EXPECT_NE(error.find("can't be loaded"), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

}  // namespace
