// SPDX-License-Identifier: Apache-2.0
// Helpers of tests of models that answer a source text: fixtures as folders, pairs of ids, the program.
#pragma once
#include <ATen/Functions.h>

#include "support/in_process.h"
#include "tools/models/fixture.h"

namespace fp8::models::testing {

inline void write_pairs(const std::filesystem::path& file, const at::Tensor& sources, const at::Tensor& answers) {
  io::SafetensorsWriter writer(
      file, {{"input_ids", io::DType::I64, sources.sizes().vec()}, {"labels", io::DType::I64, answers.sizes().vec()}});
  writer.write("input_ids", sources.contiguous().const_data_ptr());
  writer.write("labels", answers.contiguous().const_data_ptr());
  writer.commit();
}

struct Answers : ::testing::TestWithParam<std::string> {
  std::string path(const std::string& name) const { return (folder / name).string(); }
  static test::Run run(const std::vector<std::string>& arguments) {
    return test::fp8_in_process("{} --json --quiet", arguments);
  }
  static io::Json json_of(const std::vector<std::string>& arguments) { return test::json_of(run(arguments)); }
  /// Tokens that no one knows the order of.
  static at::Tensor tokens(std::int64_t rows, std::int64_t length, std::int64_t seed) {
    return (at::arange(rows * length, at::kLong) * 7919 + seed * 104729)
               .square()
               .remainder(65521)
               .remainder(45)
               .view({rows, length}) +
           3;
  }
  std::int64_t start() const { return fixture.config["decoder_start_token_id"]; }

  const at::NoGradGuard no_grad;
  Fixture fixture{GetParam()};
  const test::TempDir folder;
};

}  // namespace fp8::models::testing
