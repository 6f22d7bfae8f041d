// SPDX-License-Identifier: Apache-2.0
// Heads that are the word table and heads that are not, by tie_word_embeddings and by what a checkpoint has: as in
// transformers (heads.json, written by make_heads.py).
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "fp8/tools/models/decoder/encoder_decoder.h"
#include "fp8/tools/models/registry.h"
#include "support/throws_with.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using testing::Fixture;
using ::testing::HasSubstr;

const io::Json& heads_json() {
  static const io::Json json = io::read_json(testing::fixture_folder().parent_path() / "heads.json");
  return json;
}

/// BART's encoder and decoder have tables of words of their own where it says false: refused.
bool is_refused(const io::Json& config) {
  return config["model_type"] == "bart" && !config.value("tie_word_embeddings", true);
}

/// Sets the key of a config and of its text part; null: leaves it out.
void set_key(io::Json& config, const io::Json& whole, const io::Json& part) {
  const auto set = [](io::Json& object, const io::Json& value) {
    object.erase("tie_word_embeddings");
    if (!value.is_null()) object["tie_word_embeddings"] = value;
  };
  set(config, whole);
  if (config.contains("text_config")) set(config["text_config"], part);
}

bool is_tied(const io::Json& config) {
  const auto parsed = parse_config(config, "config.json");
  const auto* both = dynamic_cast<const EncoderDecoderConfig*>(parsed.values.get());
  return both != nullptr ? both->decoder.tied : dynamic_cast<const DecoderConfig&>(*parsed.values).tied;
}

TEST(HeadsOfConfigs, AreTiedWhereTransformersTiesThem) {
  std::set<std::string> types;
  for (const auto& item : heads_json()["ties"]) {
    io::Json config = item["config"];
    types.insert(config["model_type"]);
    for (const auto& says : item["says"]) {
      set_key(config, says[0], says[1]);
      SCOPED_TRACE(config["model_type"].get<std::string>() + ": " + says.dump());
      if (is_refused(config))
        EXPECT_THAT(test::error_of([&] { is_tied(config); }), HasSubstr("key 'tie_word_embeddings': found false"));
      else
        EXPECT_EQ(is_tied(config), says[2].get<bool>());
    }
  }
  for (const auto& family : model_families()) EXPECT_TRUE(types.contains(family.model_type)) << family.model_type;
}

class Heads : public ::testing::TestWithParam<std::string> {};

TEST_P(Heads, LogitsAreThoseOfTransformers) {
  const auto& json = heads_json()["heads"][GetParam()];
  for (const auto& item : json["cases"]) {
    const auto &key = item[0], &has_own = item[1], &expected = item[2];
    SCOPED_TRACE(item);
    Fixture fixture(GetParam());
    set_key(fixture.config, key, key);
    for (const auto& [name, tensor] : json["own"].items())
      has_own.get<bool>() ? fixture.put(name, tensor) : fixture.leave_out(name);
    const test::TempDir folder;
    fixture.write(folder.path());
    const at::NoGradGuard no_grad;
    const auto logits = [&] {
      const auto& run = fixture.runs.back();
      const auto model = load_model(folder.path(), {.dtype = at::kFloat}).model;
      if (!run.answers.defined()) return model->forward(run.ids);
      return model->forward(at::cat({run.ids, run.answers}, 1), nullptr, CausalLM::Logits::all, run.ids.size(1));
    };
    if (expected.is_null() || is_refused(fixture.config)) {  // the first: transformers makes a head up
      EXPECT_THAT(test::error_of(logits),
                  HasSubstr(is_refused(fixture.config) ? "key 'tie_word_embeddings': found false, allowed: true"
                                                       : "is missing (config.json: an untied head, tie_word_"));
      continue;
    }
    const auto theirs = testing::tensor_of(json["logits"][expected.get<std::size_t>()]).to(at::kFloat);
    const auto ours = logits().select(1, -1)[0].narrow(0, 0, theirs.size(0));
    EXPECT_LE((ours - theirs).abs().max().item<float>(), 3e-4f);
  }
}

std::vector<std::string> names_of_heads() {
  std::vector<std::string> names;
  for (const auto& item : heads_json()["heads"].items()) names.push_back(item.key());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Heads, ::testing::ValuesIn(names_of_heads()), testing::test_name);

}  // namespace
}  // namespace fp8::models
