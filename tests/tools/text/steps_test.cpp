// SPDX-License-Identifier: Apache-2.0
// Single steps (normalizers, pre-tokenizers, decoders) and small tokenizers with unusual settings, against what Hugging
// Face's tokenizers makes of the same input (fixtures/steps.json, written by make_step_fixtures.py).
#include "fp8/tools/text/steps.h"

#include <string>
#include <vector>

#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using Strings = std::vector<std::string>;

const io::Json& steps() {
  static const io::Json json = io::read_json(testing::fixtures() / "steps.json");
  return json;
}

Strings texts() { return steps().at("texts").get<Strings>(); }

TEST(Steps, PreTokenizersCutAsHuggingFace) {
  ASSERT_GT(steps().at("pre_tokenizers").size(), 39u);
  for (const auto& entry : steps().at("pre_tokenizers")) {
    const PreTokenizer pre_tokenizer = make_pre_tokenizer(JsonPart(entry[0], "steps.json", "pre_tokenizer"));
    const Strings inputs = texts();
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      Strings words;
      pre_tokenizer(inputs[n], true, [&](std::string_view word, bool) {
        words.emplace_back(word);
        return true;
      });
      EXPECT_EQ(words, entry[1].at(n).get<Strings>()) << entry[0] << " on " << io::Json(inputs[n]);
    }
  }
}

TEST(Steps, APreTokenizerStopsWhenTold) {
  for (const auto& entry : steps().at("pre_tokenizers")) {
    const PreTokenizer pre_tokenizer = make_pre_tokenizer(JsonPart(entry[0], "steps.json", "pre_tokenizer"));
    int words = 0;
    EXPECT_FALSE(pre_tokenizer("one two 34 five", true, [&](std::string_view, bool) { return ++words < 1; }))
        << entry[0];
    EXPECT_EQ(words, 1) << entry[0];
  }
}

TEST(Steps, NormalizersWriteAsHuggingFace) {
  ASSERT_GE(steps().at("normalizers").size(), 22u);
  for (const auto& entry : steps().at("normalizers")) {
    const Normalizer normalizer = make_normalizer(JsonPart(entry[0], "steps.json", "normalizer"));
    Strings inputs = texts();
    if (entry[1].size() > inputs.size()) {  // the normalization forms
      for (const auto& text : steps().at("mark_texts")) inputs.push_back(text);
    }
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      EXPECT_EQ(normalizer(inputs[n]), entry[1].at(n).get<std::string>())
          << entry[0] << " on " << io::Json(inputs[n]).dump(-1, ' ', true);
    }
  }
}

TEST(Steps, DecodersReadAsHuggingFace) {
  const auto inputs = steps().at("token_lists").get<std::vector<Strings>>();
  ASSERT_GE(steps().at("decoders").size(), 13u);
  for (const auto& entry : steps().at("decoders")) {
    const Decoder decoder = make_decoder(JsonPart(entry[0], "steps.json", "decoder"));
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      std::string text;
      for (const std::string& piece : decoder(inputs[n])) text += piece;
      EXPECT_EQ(text, entry[1].at(n).get<std::string>()) << entry[0] << " on " << io::Json(inputs[n]);
    }
  }
}

TEST(Steps, SmallTokenizersEncodeAsHuggingFace) {
  ASSERT_GE(steps().at("tokenizers").size(), 13u);
  int number = 0;
  for (const auto& entry : steps().at("tokenizers")) {
    const testing::Folder folder;
    folder.write("tokenizer.json", entry[0].dump());
    const Tokenizer tokenizer(folder.path());
    const Strings inputs = texts();
    ASSERT_GE(entry[1].size(), 20u);
    for (std::size_t n = 0; n < entry[1].size(); ++n) {
      EXPECT_EQ(tokenizer.encode(inputs[n]), entry[1].at(n).get<std::vector<std::int64_t>>())
          << "tokenizer " << number << " on " << io::Json(inputs[n]);
    }
    ++number;
  }
}

}  // namespace
}  // namespace fp8::text
