// SPDX-License-Identifier: Apache-2.0
// A tokenizer of each configuration that the families have, and each set of files that makes one, against what their
// own packages make of the same lines (fixtures/kinds.json and files.json, written by make_kind_fixtures.py).
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Folder;
using Ids = std::vector<std::int64_t>;

const io::Json& fixture(const char* name) {
  static const io::Json kinds = io::read_json(testing::fixtures() / "kinds.json");
  static const io::Json files = io::read_json(testing::fixtures() / "files.json");
  return std::string(name) == "kinds" ? kinds : files;
}

void expect_equal(const Tokenizer& tokenizer, const io::Json& lines, const io::Json& expected) {
  ASSERT_GE(lines.size(), 30u);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const Ids ids = expected.at("ids").at(n).get<Ids>();
    EXPECT_EQ(tokenizer.encode(lines[n].get<std::string>()), ids) << lines[n];
    EXPECT_EQ(tokenizer.decode(ids), expected.at("decoded").at(n).get<std::string>()) << lines[n];
  }
}

TEST(Kinds, EncodeAndDecodeAsHuggingFace) {
  const auto& kinds = fixture("kinds").at("kinds");
  ASSERT_GE(kinds.size(), 40u);
  for (const auto& [name, kind] : kinds.items()) {
    SCOPED_TRACE(name);
    const Folder folder;
    folder.write("tokenizer.json", kind.at("tokenizer").dump());
    expect_equal(Tokenizer(folder.path()), fixture("kinds").at("lines"), kind);
  }
}

void write_files(const Folder& folder, const io::Json& files) {
  for (const auto& [name, bytes] : files.items()) folder.write(name, *from_base64(bytes.get<std::string>()));
}

TEST(Files, EncodeAndDecodeAsTheirPackages) {
  const auto& kinds = fixture("files").at("kinds");
  ASSERT_GE(kinds.size(), 25u);
  for (const auto& [name, kind] : kinds.items()) {
    SCOPED_TRACE(name);
    const Folder folder;
    write_files(folder, kind.at("files"));
    expect_equal(Tokenizer(folder.path()), kind.at("lines"), kind);
  }
}

// Every byte of the smallest models, in turn: an error of one line or a tokenizer, nothing else.
TEST(Files, DamagedSentencePieceModelsDoNoHarm) {
  for (const char* const name : {"spm t5", "spm bpe nmt_nfkc"}) {
    const auto& files = fixture("files").at("kinds").at(name).at("files");
    const Folder folder;
    write_files(folder, files);
    const std::string file = files.contains("spiece.model") ? "spiece.model" : "tokenizer.model";
    const std::string whole = *from_base64(files.at(file).get<std::string>());
    int refused = 0;
    for (std::size_t i = 0; i < whole.size(); i += 3) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] + 1 + static_cast<char>(i % 200));
      folder.write(file, i % 2 ? damaged : whole.substr(0, i));
      try {
        Tokenizer(folder.path()).encode("ab the<s> \xC3\xA9");
      } catch (const io::Error& error) {
        ++refused;
        ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
    EXPECT_GT(refused, 100) << name;
  }
}

}  // namespace
}  // namespace fp8::text
