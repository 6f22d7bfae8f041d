// SPDX-License-Identifier: Apache-2.0
// The demo model's tokens are bytes, so characters arrive in parts.
#include "fp8/tools/commands/evaluate/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/test_data.h"

namespace fp8::commands {
namespace {

class TextStreamTest : public ::testing::Test {
 protected:
  text::Tokenizer tokenizer_{test::demo_data() / "kjv-byte-1.7M"};

  static std::vector<std::int64_t> bytes(const std::string& text) {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
};

TEST_F(TextStreamTest, CharactersComeOutWhole) {
  const std::string text = "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80 end";
  TextStream stream(tokenizer_, bytes("a prompt"));
  std::string all;
  for (const auto id : bytes(text)) {
    const auto piece = stream.append(id);
    if (!piece.empty()) {
      EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80) << "a piece starts inside a character";
    }
    EXPECT_TRUE(piece.size() <= 1 || static_cast<unsigned char>(piece[0]) >= 0xC0) << piece;
    all += piece;
  }
  EXPECT_EQ(all + stream.finish(), text);
}

TEST_F(TextStreamTest, EmptyPrompt) {
  TextStream stream(tokenizer_, {});
  EXPECT_EQ(stream.append('x'), "x");
  EXPECT_EQ(stream.finish(), "");
}

TEST_F(TextStreamTest, BytesThatNeverBecomeACharacterAreGivenOut) {
  TextStream stream(tokenizer_, bytes("p"));
  std::string all;
  for (int i = 0; i < 40; ++i) all += stream.append(0x80);
  EXPECT_NE(all, "");
  TextStream cut(tokenizer_, bytes("p"));
  EXPECT_EQ(cut.append(0xC3), "");
  EXPECT_EQ(cut.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace fp8::commands
