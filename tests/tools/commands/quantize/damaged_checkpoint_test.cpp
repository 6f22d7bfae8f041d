// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are damaged, hostile or merely unusual, met by the program: the right message in one line and exit
// code 1, or none at all where the file is legal.
#include <functional>

#include "runtime/io/tensors/safetensors_bytes.h"
#include "runtime/io/tensors/torch_bytes.h"
#include "support/peak_memory.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using io::safetensors_bytes;

const std::string kIndex = "model.safetensors.index.json";

void put(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// A Linear's weight of 2 x 2 bf16 ones.
std::string shard(const std::string& name) {
  const std::string one = "\x80\x3f";
  return safetensors_bytes("{\"" + name + R"(":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})",
                           one + one + one + one);
}

std::string header(const std::string& text, std::size_t data = 0) {
  return safetensors_bytes(text, std::string(data, 'x'));
}

struct Case {
  const char* name;
  const char* message;  ///< nullptr: the checkpoint is fine
  std::function<void(const fs::path&)> make;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

void two_shards(const fs::path& d, const std::string& map) {
  put(d / "one.safetensors", shard("a.weight"));
  put(d / "two.safetensors", shard("b.weight"));
  put(d / kIndex, "{\"weight_map\":{" + map + "}}");
}

const Case kCases[] = {
    {"Shards", nullptr,
     [](const fs::path& d) { two_shards(d, R"("a.weight":"one.safetensors","b.weight":"two.safetensors")"); }},
    {"MissingShard", "names the shard 'three.safetensors', which is missing",
     [](const fs::path& d) { two_shards(d, R"("a.weight":"one.safetensors","b.weight":"three.safetensors")"); }},
    {"SwappedShards", "tensor 'b.weight' is not in its shard 'one.safetensors'",
     [](const fs::path& d) { two_shards(d, R"("a.weight":"two.safetensors","b.weight":"one.safetensors")"); }},
    {"PathTraversal", "weight_map of 'a.weight' is \"../out.safetensors\", expected a plain file name",
     [](const fs::path& d) { two_shards(d, R"("a.weight":"../out.safetensors")"); }},
    {"AbsolutePath", "expected a plain file name",
     [](const fs::path& d) { two_shards(d, R"("a.weight":"/etc/passwd")"); }},
    {"IndexWithATensorTwice", "1:45: duplicate key 'a.weight'",
     [](const fs::path& d) { two_shards(d, R"("a.weight":"one.safetensors","a.weight":"one.safetensors")"); }},
    {"EmptyIndex", "weight_map is empty", [](const fs::path& d) { two_shards(d, ""); }},
    {"IndexThatIsNoJson", kIndex.c_str(), [](const fs::path& d) { put(d / kIndex, "weight_map"); }},
    {"HugeIndex", "bytes, allowed at most",
     [](const fs::path& d) {
       put(d / kIndex, "{");
       fs::resize_file(d / kIndex, std::uintmax_t{1} << 40);
     }},
    {"ShardThatIsAPipe", "one.safetensors: is not a regular file",
     [](const fs::path& d) {
       two_shards(d, R"("a.weight":"one.safetensors")");
       fs::remove(d / "one.safetensors");
       ASSERT_EQ(mkfifo((d / "one.safetensors").c_str(), 0600), 0);
     }},
    {"ShardThatIsADevice", "one.safetensors: is a link to /dev/zero, allowed: a file of the model's folder",
     [](const fs::path& d) {
       two_shards(d, R"("a.weight":"one.safetensors")");
       fs::remove(d / "one.safetensors");
       fs::create_symlink("/dev/zero", d / "one.safetensors");
     }},
    {"ShardThatIsAFolder", "one.safetensors: is a folder, expected a file",
     [](const fs::path& d) {
       two_shards(d, R"("a.weight":"one.safetensors")");
       fs::remove(d / "one.safetensors");
       fs::create_directory(d / "one.safetensors");
     }},
    {"ShardThatLinksToItself", "one.safetensors: can't open: Too many levels of symbolic links",
     [](const fs::path& d) {
       two_shards(d, R"("a.weight":"one.safetensors")");
       fs::remove(d / "one.safetensors");
       fs::create_symlink("one.safetensors", d / "one.safetensors");
     }},
    {"IndexThatLinksToItself", "model.safetensors.index.json: can't open: Too many levels of symbolic links",
     [](const fs::path& d) {
       put(d / "model.safetensors", shard("a.weight"));
       fs::create_symlink(kIndex, d / kIndex);
     }},
    {"ModelThatLinksNowhere", "model.safetensors: can't open: No such file or directory",
     [](const fs::path& d) { fs::create_symlink("../blobs/gone", d / "model.safetensors"); }},
    {"OverlappingTensors", "tensor 'b' starts at byte 1 of the data, expected 2 (it overlaps the one before)",
     [](const fs::path& d) {
       put(d / "model.safetensors", header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                           R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                           3));
     }},
    {"CutShort", "(cut short?)",
     [](const fs::path& d) { put(d / "model.safetensors", shard("a.weight").substr(0, 60)); }},
    {"UnalignedTensors", nullptr,
     [](const fs::path& d) {  // f32 at byte 1, bf16 at byte 5, in a header whose length is no multiple of 8
       put(d / "model.safetensors",
           safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"F32","shape":[],"data_offsets":[1,5]},)"
                             R"("l.weight":{"dtype":"BF16","shape":[1,2],"data_offsets":[5,9]}})",
                             std::string("\1\0\0\x80\x3f\x80\x3f\0\x40", 9)));
     }},
    {"EmptyTensors", nullptr,
     [](const fs::path& d) {
       put(d / "model.safetensors", header(R"({"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                                           R"("l.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("y":{"dtype":"F32","shape":[0],"data_offsets":[1,1]}})",
                                           1));
     }},
    {"NameThatIsNotUtf8", "(header):1:3: invalid UTF-8 byte '\\xff' in a string",
     [](const fs::path& d) {
       put(d / "model.safetensors", header("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1));
     }},
    {"HeaderLongerThanTheFile", "(cut short?)",
     [](const fs::path& d) { put(d / "model.safetensors", std::string("\x00\xe1\xf5\x05\0\0\0\0{", 9)); }},
    {"TorchSave", nullptr,
     [](const fs::path& d) {
       put(d / "pytorch_model.bin",
           io::torch_bytes::file_of({"0", "FloatStorage", 4, 0, {2, 2}, {1, 2}}, std::string(16, '\0')));
     }},
    {"TorchSaveOfAProgram",
     "asks for 'posix.system', which is not allowed: a pickle is a program, and this reader runs none of it",
     [](const fs::path& d) {
       put(d / "pytorch_model.bin", io::torch_bytes::zip({{"a/data.pkl",
                                                           "\x80\x02"
                                                           "cposix\nsystem\nX\x04" +
                                                               std::string("\0\0\0", 3) + "exit\x85R."}}));
     }},
    {"TorchSaveIndexWithoutItsShard", "pytorch_model.bin.index.json: names the shard 'one.bin', which is missing",
     [](const fs::path& d) { put(d / "pytorch_model.bin.index.json", R"({"weight_map":{"a":"one.bin"}})"); }},
};

class DamagedCheckpoint : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(, DamagedCheckpoint, testing::ValuesIn(kCases),
                         [](const auto& i) { return std::string(i.param.name); });

TEST_P(DamagedCheckpoint, IsToldInOneLine) {
  const test::TempDir dir;
  fs::create_directory(dir / "m");
  put(dir / "m/config.json", R"({"model_type": "llama"})");
  GetParam().make(dir / "m");
  const auto inspected = run_fp8("inspect {} --tensors-only", dir / "m");
  if (GetParam().message == nullptr) {
    EXPECT_EQ(inspected.code, 0) << inspected.err;
    EXPECT_EQ(inspected.err, "");
    return;
  }
  const auto quantized = run_fp8("quantize --model {} --out {} --dynamic", dir / "m", dir / "out");
  for (const auto* run : {&inspected, &quantized}) {
    EXPECT_EQ(run->code, 1);
    EXPECT_EQ(run->error_lines(), 1) << run->err;
    EXPECT_EQ(run->out, "");
    EXPECT_THAT(run->err, HasSubstr(GetParam().message));
    EXPECT_THAT(run->err, HasSubstr("fp8: error: "));
  }
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(UnusualCheckpoint, UnalignedAndTransposedWeightsAreQuantizedAsTheyMean) {
  const test::TempDir dir;
  for (const char* name : {"st", "bin"}) {
    fs::create_directory(dir / name);
    put(dir.path() / name / "config.json", R"({"rms_norm_eps": 1e-05, "x": 1.0})");
  }
  // [[1, 2], [3, 4]] at an odd byte, and as the transpose of [[1, 3], [2, 4]]
  const std::string values("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40", 16),
      transposed("\0\0\x80\x3f\0\0\x40\x40\0\0\0\x40\0\0\x80\x40", 16);
  put(dir / "st/model.safetensors",
      safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("w.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[1,17]}})",
                        "x" + values));
  const io::torch_bytes::Tensor w{"0", "FloatStorage", 4, 0, {2, 2}, {1, 2}}, a{"1", "ByteStorage", 1, 0, {1}, {1}};
  using namespace io::torch_bytes;  // NOLINT
  put(dir / "bin/pytorch_model.bin",
      zip({{"x/data.pkl", pickle(dict(text("a") + pickled(a) + text("w.weight") + pickled(w)))},
           {"x/data/0", transposed},
           {"x/data/1", "x"}}));
  std::string bytes[2];
  for (const int i : {0, 1}) {
    const auto from = dir / (i == 0 ? "st" : "bin"), to = dir / (i == 0 ? "st8" : "bin8");
    const auto run = run_fp8("quantize --model {} --out {} --dynamic", from, to);
    ASSERT_EQ(run.code, 0) << run.err;
    bytes[i] = read_file(to / "model.safetensors");
    EXPECT_THAT(read_file(to / "config.json"),
                StartsWith(R"({"rms_norm_eps": 1e-05, "x": 1.0, "quantization_config": {)"));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  // Rows (1, 2) and (3, 4): scale_inv 2/448 and 4/448, codes 224 (0x76) and 448 (0x7e), 336 (0x7a or 0x7b: 352) and
  // 448.
  EXPECT_THAT(bytes[0], HasSubstr("\x76\x7e"));
}

TEST(UnusualCheckpoint, ManyTensorsInBoundedMemory) {
  const test::TempDir dir;
  constexpr int kTensors = 300'000;
  std::string text = "{";
  for (int i = 0; i < kTensors; ++i)
    text += (i == 0 ? "" : ",") + ("\"model.layers." + std::to_string(i)) +
            R"(.weight":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," + std::to_string(i + 1) +
            "]}";
  put(dir / "model.safetensors", header(text + "}", kTensors));
  const auto base = run_fp8({"--version"});
  ASSERT_EQ(base.code, 0);
  const std::int64_t before = test::peak_memory_of_children();
  const auto run = run_fp8({"inspect", dir.path().string()});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("in 300000 tensors"));
  EXPECT_LT(test::peak_memory_of_children() - before, 10 * static_cast<std::int64_t>(text.size()));
}

}  // namespace
}  // namespace fp8
