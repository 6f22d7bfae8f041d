// SPDX-License-Identifier: Apache-2.0
// Checkpoint of safetensors.h.
#include "fp8/runtime/io/tensors/safetensors.h"
#include "runtime/io/io_test.h"
#include "runtime/io/tensors/safetensors_bytes.h"

namespace fp8::io {
namespace {

using CheckpointTest = IoTest;

const std::string kIndex = "model.safetensors.index.json";

// One tensor of two bytes.
std::string shard(const std::string& tensor, const std::string& data) {
  return safetensors_bytes("{\"" + tensor + "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", data);
}

TEST_F(CheckpointTest, OneFile) {
  put("model.safetensors", shard("a", "12"));
  put("consolidated.safetensors", "not a safetensors file, and none that is read");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.folder(), folder_);
  EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"a"});
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("b"));
  std::string data(2, '\0');
  checkpoint.read("a", data.data());
  EXPECT_EQ(data, "12");
  checkpoint.read("a", data.data(), 1, 1);
  EXPECT_EQ(data, "22");
  EXPECT_EQ(checkpoint.total_bytes(), 2u);
  EXPECT_IO_ERROR(checkpoint.info("b"), folder_.string() + ": has no tensor 'b'");
}

TEST_F(CheckpointTest, AFileInsteadOfAFolder) {
  const Checkpoint checkpoint(put("sub/any.safetensors", shard("a", "12")));
  EXPECT_EQ(checkpoint.folder(), path("sub"));
  EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"a"});
}

TEST_F(CheckpointTest, ShardsOfTheIndexWithAllTheirTensors) {
  put("m-2.safetensors", shard("b", "34"));
  put("m-1.safetensors", safetensors_bytes(R"({"extra":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                           "x12"));
  put("mtp.safetensors", shard("mtp.fc.weight", "56"));
  put("rows.safetensors", shard("input_ids", "56"));
  put(kIndex, R"({"metadata":{"total_size":5},"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}})");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"extra", "a", "b"}));
  EXPECT_EQ(checkpoint.total_bytes(), 5u);
  EXPECT_EQ(checkpoint.notices(),
            (std::vector<std::string>{
                "1 tensor of the shards that model.safetensors.index.json does not name, read as other readers do, "
                "the first is extra",
                "mtp.safetensors is not read, nor carried to an output"}));
  std::string data(2, '\0');
  checkpoint.read("a", data.data());
  EXPECT_EQ(data, "12");
  checkpoint.read("b", data.data());
  EXPECT_EQ(data, "34");
}

TEST_F(CheckpointTest, ATensorInTwoShardsComesFromTheOneInTheIndex) {
  put("m-1.safetensors", shard("a", "11"));
  put("m-2.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "22"));
  put(kIndex, R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.info("a").bytes(), 2u);
  EXPECT_THAT(checkpoint.notices().at(0), HasSubstr("1 tensor of the shards that another shard has too"));
  put("m-1.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "12"));
  put("m-2.safetensors", safetensors_bytes(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "34"));
  EXPECT_IO_ERROR(Checkpoint c(folder_), HasSubstr("tensor 'c' stands in two shards"));
}

TEST_F(CheckpointTest, OneFileBesideAnIndex) {
  put("model.safetensors", shard("a", "12"));
  put(kIndex, R"({"weight_map":{"b":"m-1.safetensors"}})");
  const Checkpoint gone(folder_);
  EXPECT_EQ(gone.names(), std::vector<std::string>{"a"});
  EXPECT_THAT(gone.notices().at(0), HasSubstr("names shards that are not there; model.safetensors is read"));
  put("m-1.safetensors", shard("b", "34"));
  EXPECT_IO_ERROR(Checkpoint c(folder_),
                  HasSubstr("model.safetensors: lies beside the shards of model.safetensors.index.json"));
  put(kIndex, R"({"weight_map":{"a":"model.safetensors","b":"m-1.safetensors"}})");
  EXPECT_EQ(Checkpoint(folder_).names(), (std::vector<std::string>{"b", "a"}));
}

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  EXPECT_IO_ERROR(Checkpoint c(path("none")), path("none").string() + ": no such folder");
  EXPECT_IO_ERROR(
      Checkpoint c(folder_),
      folder_.string() + ": holds neither model.safetensors nor model.safetensors.index.json (nor pytorch_model.bin)");
  put(kIndex, R"({"weight_map":{"a":"m-1.safetensors"}})");
  EXPECT_IO_ERROR(Checkpoint c(folder_),
                  path(kIndex).string() + ": names the shard 'm-1.safetensors', which is missing");
  put("m-1.safetensors", shard("b", "12"));
  EXPECT_IO_ERROR(Checkpoint c(folder_), path(kIndex).string() + ": tensor 'a' is not in its shard 'm-1.safetensors'");
}

TEST_F(CheckpointTest, AnIndexLeadsNowhereElse) {
  put("outside.safetensors", shard("a", "12"));
  for (const char* name : {"\"../outside.safetensors\"", "\"/etc/passwd\"", "\"sub/x\"", "\"..\"", "\"\"", "\"a\\\\b\"",
                           "\"a\\u0000b\"", "3"}) {
    put("model/" + kIndex, std::string("{\"weight_map\":{\"a\":") + name + "}}");
    EXPECT_IO_ERROR(Checkpoint c(path("model")), HasSubstr(": weight_map of 'a' is ")) << name;
  }
}

TEST_F(CheckpointTest, AnIndexWithoutItsMap) {
  for (const char* text : {"{}", "[]", "3", R"({"weight_map":[]})"}) {
    put(kIndex, text);
    EXPECT_IO_ERROR(Checkpoint c(folder_),
                    path(kIndex).string() + ": has no object 'weight_map' (tensor name: file name)");
  }
  put(kIndex, R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_IO_ERROR(Checkpoint c(folder_), HasSubstr(kIndex + ":1:24: duplicate key 'a'"));
}

}  // namespace
}  // namespace fp8::io
