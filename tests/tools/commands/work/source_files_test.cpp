// SPDX-License-Identifier: Apache-2.0
// Files that change underneath are told apart, each way with its own words.
#include <fstream>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "fp8/version.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

class Sources : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(model());
    write(model() / "config.json", "{}");
    write(model() / "model.safetensors", "12345678");
    write(folder / "data.txt", "text");
  }
  fs::path model() const { return folder / "model"; }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string change_in(const SourceFiles& files) {
    return error_of<io::Error>([&] { files.check_unchanged(); });
  }
  test::TempDir folder;
};

TEST_F(Sources, EveryChangeIsNamed) {
  const auto look = [&] { return SourceFiles(model(), {folder / "data.txt", folder / "absent", ""}); };
  auto files = look();
  EXPECT_EQ(change_in(files), "");
  write(model() / "measurement.json", "{}");  // not a part of the model
  EXPECT_EQ(change_in(files), "");
  EXPECT_EQ(files.to_json(), look().to_json());

  write(model() / "model.safetensors", "1234");
  EXPECT_THAT(change_in(files), AllOf(HasSubstr("model.safetensors: changed"), HasSubstr("8 to 4 bytes")));
  files = look();
  write(model() / "new", "abcd");
  fs::rename(model() / "new", model() / "model.safetensors");
  EXPECT_THAT(change_in(files), HasSubstr("model.safetensors: was replaced"));
  files = look();
  fs::last_write_time(folder / "data.txt", fs::last_write_time(folder / "data.txt") + std::chrono::seconds(2));
  EXPECT_THAT(change_in(files), HasSubstr("data.txt: was written to"));
  EXPECT_NE(files.to_json(), look().to_json());
  files = look();
  fs::remove(model() / "config.json");
  EXPECT_THAT(change_in(files), HasSubstr("config.json: was removed"));
}

TEST_F(Sources, CopiesHaveTheSameEnds) {
  std::string large(200'000, 'a');
  write(model() / "model.safetensors", large);
  fs::create_directory(folder / "there");
  fs::copy(model(), folder / "there/model", fs::copy_options::recursive);
  fs::copy(folder / "data.txt", folder / "there/data.txt");
  const auto ends_here = SourceFiles(model(), {folder / "data.txt"}).ends();
  const auto ends_there = [&] { return SourceFiles(folder / "there/model", {folder / "there/data.txt"}).ends(); };
  EXPECT_EQ(ends_here.size(), 3u);
  EXPECT_EQ(ends_here, ends_there());
  for (const std::size_t at : {std::size_t{0}, std::size_t{65'535}, large.size() - 65'536, large.size() - 1}) {
    auto other = large;
    other[at] = 'b';
    write(folder / "there/model/model.safetensors", other);
    EXPECT_NE(ends_here, ends_there()) << at;
  }
  write(folder / "there/model/model.safetensors", large + "a");
  EXPECT_NE(ends_here, ends_there());
}

TEST_F(Sources, OneFileIsAModelToo) {
  const SourceFiles files(folder / "data.txt", {});
  EXPECT_EQ(files.to_json().size(), 1u);
  write(folder / "data.txt", "longer text");
  EXPECT_THAT(change_in(files), HasSubstr("data.txt: changed"));
}

TEST(Fingerprint, AnotherVersionIsAnotherProgram) {
  const io::Json own = with_program({{"batch", 8}});
  EXPECT_EQ(
      own,
      (io::Json{{"batch", 8}, {"version", FP8_VERSION}, {"instruction set", kernels::name_of(kernels::simd_level())}}));
  auto other = own;
  other["version"] = "0.0.1";
  EXPECT_EQ(io::difference(other, own), "'version' was \"0.0.1\", is \"" FP8_VERSION "\"");
}

TEST(Fingerprint, TheInstructionSetIsTheOneInForce) {
  const kernels::ScopedSimdLevel scalar(kernels::SimdLevel::scalar);
  EXPECT_EQ(with_program({})["instruction set"], "scalar");
}

}  // namespace
}  // namespace fp8::commands
