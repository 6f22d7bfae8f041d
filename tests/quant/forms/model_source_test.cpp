// SPDX-License-Identifier: Apache-2.0
// What people hand over in place of a model folder is named, with what to do.
#include "fp8/quant/forms/model_source.h"

#include <filesystem>
#include <fstream>

#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::throws_with;

void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(ModelSource, AHubsNameGetsTheCommandThatDownloadsIt) {
  EXPECT_REFUSED(require_model_folder("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B: expected a model folder, found nothing",
                 "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B");
  for (const char* path : {"nothing", "/a/b", "a/b/c", "./a", "../a", "a/", "a b/c"})
    EXPECT_EQ(advice_on_name(path), "") << path;
  const TempDir tmp;
  EXPECT_EQ(advice_on_name(tmp / "gone"), "") << "its parent is there: a mistyped path";
}

TEST(ModelSource, AFolderWithAConfigIsAModel) {
  const TempDir tmp;
  write_file(tmp / "m/config.json", "{}");
  write_file(tmp / "m/adapter_config.json", "{}");  // left by a merge
  EXPECT_NO_THROW(require_model_folder(tmp / "m"));
}

TEST(ModelSource, AdaptersAreToBeMergedFirst) {
  const TempDir tmp;
  write_file(tmp / "lora/adapter_config.json", R"({"base_model_name_or_path": "org/base", "peft_type": "LORA"})");
  EXPECT_REFUSED(require_model_folder(tmp / "lora"), "lora: expected a model folder, found a LoRA adapter of org/base",
                 "merge_and_unload().save_pretrained('lora-merged')");
  write_file(tmp / "lora/adapter_config.json", "broken");
  EXPECT_REFUSED(require_model_folder(tmp / "lora"), "found a LoRA adapter;", "merge");
}

TEST(ModelSource, OtherProgramsFilesAreNamed) {
  const TempDir tmp;
  write_file(tmp / "gguf/model-Q4_K_M.gguf", "GGUF...");
  write_file(tmp / "plain", "GGUF...");
  write_file(tmp / "alone/model.safetensors", "");
  write_file(tmp / "whole/model.safetensors", "");
  write_file(tmp / "whole/config.json", "{}");
  write_file(tmp / "model.pth", "");
  write_file(tmp / "empty/README.md", "");
  const std::vector<std::pair<fs::path, std::vector<std::string>>> cases = {
      {tmp / "gguf", {"model-Q4_K_M.gguf", "found GGUF", "original checkpoint"}},
      {tmp / "gguf/model-Q4_K_M.gguf", {"found GGUF"}},
      {tmp / "plain", {"found GGUF"}},
      {tmp / "alone/model.safetensors", {"found a file without config.json beside it"}},
      {tmp / "whole/model.safetensors", {"found a file; take its folder, " + (tmp / "whole").string()}},
      {tmp / "model.pth", {"save_pretrained()"}},
      {tmp / "empty", {"found no config.json"}},
  };
  for (const auto& [path, words] : cases)
    EXPECT_TRUE(throws_with(words, [&, &path = path] { require_model_folder(path); })) << path;
}

TEST(ModelSource, PipelinesOfDiffusersAreRefusedWithTheReason) {
  const TempDir tmp;
  write_file(tmp / "p/model_index.json", R"({"_class_name": "FluxPipeline"})");
  EXPECT_REFUSED(require_model_folder(tmp / "p"), "found a diffusers pipeline (FluxPipeline)", "none of its readers");
  write_file(tmp / "t/config.json", R"({"_class_name": "FluxTransformer2DModel"})");
  write_file(tmp / "t/diffusion_pytorch_model.safetensors", "");
  EXPECT_REFUSED(require_model_folder(tmp / "t"), "found a diffusers model (FluxTransformer2DModel)");
}

TEST(ModelSource, PackedCheckpointsAreToBeMadeAnew) {
  for (const char* method : {"gptq", "awq", "bitsandbytes"})
    EXPECT_NE(advice_on_method({{"quant_method", method}}).find(std::string("packed by ") + method), std::string::npos);
  EXPECT_NE(advice_on_method({{"quant_method", "mxfp4"}}).find("MXFP4 already"), std::string::npos);
  for (const io::Json& other :
       {io::Json{{"quant_method", "fp8"}}, io::Json{{"quant_method", 3}}, io::Json::object(), io::Json(nullptr)})
    EXPECT_EQ(advice_on_method(other), "");
}

}  // namespace
}  // namespace fp8::quant
