// SPDX-License-Identifier: Apache-2.0
// Which words of a command line are whose: MODEL beside options that take several words, none or a former name.
#include <optional>

#include "fp8/tools/commands/cli/options.h"
#include "support/command.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

using Words = std::vector<std::string>;

/// A command of MODEL and one option of each kind; "M" among the words is a folder, "T" a file that is there.
struct Typed {
  std::filesystem::path model, out;
  Words data, include, hints;
  std::optional<double> wait;
  std::string stage, error;
  bool json = false, quiet = false;

  explicit Typed(Words words, bool staged = false) {
    const test::TempDir folder;
    std::filesystem::create_directory(folder / "model");
    std::ofstream(folder / "text");
    const std::string m = (folder / "model").string(), t = (folder / "text").string();
    for (auto& word : words) word = word == "M" ? m : word == "T" ? t : word;
    CLI::App app("", "test");
    app.allow_extras();
    Options options(app);
    if (staged)
      options.choice("STAGE", {"fit", "test"}, [this](std::size_t i) { stage = i == 0 ? "fit" : "test"; }, "");
    options.model(model, "");
    options.files("--data", [this](const auto& values) { data = values; }, "", Options::Need::optional);
    options.path("--out", out, "");
    options.list("--include", include, "");
    options.number_or_none("--wait", wait, 0, 9, "");
    options.flag("--json", json, "");
    options.flag("--quiet", quiet, "");
    options.renamed("--inputs", "--data");
    error = error_of([&] {
      options.parse(words);
      options.check();
    });
    hints = options.hints();
    const auto short_name = [&](const std::string& path) { return path == m ? "M" : path == t ? "T" : path; };
    model = short_name(model.string());
    for (auto& file : data) file = short_name(file);
  }
};

TEST(Arguments, ModelIsAWordOrAnOption) {
  for (const Words& words : {Words{"M"},
                             {"--model", "M"},
                             {"-m", "M"},
                             {"--model=none", "--json"},
                             {"--", "M"},
                             {"--out", "o", "M"},
                             {"--wait", "M"},
                             {"--wait", "3", "M"},
                             {"--include", "a", "M"}}) {
    const Typed parsed(words);
    EXPECT_EQ(parsed.error, "") << ::testing::PrintToString(words);
    EXPECT_EQ(parsed.model, words[0] == "--model=none" ? "none" : "M") << ::testing::PrintToString(words);
  }
  EXPECT_EQ(Typed({"M", "--model", "M"}).error, "");
  EXPECT_EQ(Typed({"a/", "--model", "a/."}).error, "");
  EXPECT_EQ(Typed({"a", "--model", "b"}).error, "MODEL: found 'a', and --model 'b', allowed: one of them");
  EXPECT_EQ(Typed({"a", "b"}).error, "test: unexpected argument 'b'");
  EXPECT_EQ(Typed({}).error, "test: MODEL is required");
  EXPECT_EQ(Typed({"--model", ""}).error, "--model: found '', allowed: a path");
}

TEST(Arguments, AListTakesNoModel) {
  for (const Words& words : {Words{"M", "--data", "a", "T"},
                             {"--data", "a", "T", "M"},
                             {"-d", "a", "T", "--model", "M"},
                             {"-da", "T", "M"},
                             {"--data=a", "T", "M"},
                             {"--data", "a", "--json", "--data", "T", "M"},
                             {"-d", "a", "T", "--json", "M"},
                             {"--inputs", "a", "T", "M"}}) {
    const Typed parsed(words);
    EXPECT_EQ(parsed.error, "") << ::testing::PrintToString(words);
    EXPECT_EQ(parsed.model, "M") << ::testing::PrintToString(words);
    EXPECT_EQ(parsed.data, (Words{"a", "T"})) << ::testing::PrintToString(words);
  }
  // TorchScript files are models, whether they are there or not.
  EXPECT_EQ(Typed({"--data", "a", "m.pt"}).model, "m.pt");
  // What is no model is the option's, and what it took is said.
  EXPECT_EQ(Typed({"--data", "a", "T"}).model, "");
  EXPECT_EQ(Typed({"--data", "a", "b"}).error, "test: MODEL is required (--data took a, b)");
  EXPECT_EQ(Typed({"--data", "M"}).data, Words{"M"});
  EXPECT_THAT(Typed({"x", "--data", "a", "M"}).error, HasSubstr("unexpected argument '/"));
}

TEST(Arguments, FlagsStandTogether) {
  const Typed parsed({"-qjo", "out", "M"});
  EXPECT_EQ(parsed.error, "");
  EXPECT_TRUE(parsed.quiet && parsed.json);
  EXPECT_EQ(parsed.out, "out");
  EXPECT_EQ(Typed({"-oout", "M"}).out, "out");
  EXPECT_EQ(Typed({"-o=out", "M"}).out, "out");
  EXPECT_EQ(Typed({"M", "-o", "-odd"}).out, "-odd");
  EXPECT_THAT(Typed({"-x", "M"}).error, HasSubstr("unknown option '-x'"));
  EXPECT_THAT(Typed({"M", "-o"}).error, HasSubstr("--out"));
}

TEST(Arguments, AFormerNameIsTheNameAndIsSaidOnce) {
  const Typed parsed({"M", "--inputs=a", "--inputs", "b"});
  EXPECT_EQ(parsed.data, (Words{"a", "b"}));
  EXPECT_EQ(parsed.hints, Words{"--inputs is called --data now"});
  EXPECT_THAT(Typed({"M", "--data", "a"}).hints, IsEmpty());
}

TEST(Arguments, AWordOfAChoiceIsNoModel) {
  for (const Words& words : {Words{"fit", "M"}, {"M", "fit"}, {"--data", "a", "M", "fit"}}) {
    const Typed parsed(words, /*staged=*/true);
    EXPECT_EQ(parsed.error, "");
    EXPECT_EQ(parsed.stage, "fit");
    EXPECT_EQ(parsed.model, "M");
  }
  EXPECT_EQ(Typed({"M"}, true).stage, "");
  EXPECT_EQ(Typed({"fti", "M"}, true).error, "STAGE: found 'fti', allowed: fit, test");
}

}  // namespace
}  // namespace fp8::commands
