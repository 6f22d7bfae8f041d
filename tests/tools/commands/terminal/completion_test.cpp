// SPDX-License-Identifier: Apache-2.0
// The scripts in the shells themselves, as far as they are there: what each offers for a command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/terminal/page.h"
#include "support/shell.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

using Offers = std::set<std::string>;

/// Lines of what a shell prints on `script`; a tab ends a word.
Offers offers_of(const std::string& shell, const std::string& script) {
  const test::TempDir folder;
  std::ofstream(folder / "script") << script;
  const auto [text, status] = test::run_shell(shell + " '" + (folder / "script").string() + "' 2>&1");
  EXPECT_EQ(status, 0) << text;
  Offers words;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) words.insert(line.substr(0, line.find('\t')));
  return words;
}

const std::string& script_of(Shell shell) {
  static const CommandPage program = page_of_program();
  static const std::string scripts[] = {completion_script(program, Shell::bash), completion_script(program, Shell::zsh),
                                        completion_script(program, Shell::fish)};
  return scripts[static_cast<std::size_t>(shell)];
}

/// words: after "fp8"; the last is being typed, and may be empty.
Offers bash_offers(const std::vector<std::string>& words) {
  std::string line = "COMP_WORDS=(fp8";
  for (const auto& word : words) line += " '" + word + "'";
  return offers_of("bash --norc", script_of(Shell::bash) + "cd " FP8_SOURCE_DIR "/tools/demo_data\n" + line +
                                      ")\nCOMP_CWORD=" + std::to_string(words.size()) +
                                      "\n_fp8\n[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"\n");
}

TEST(Completion, BashOffersCommandsOptionsChoicesAndFiles) {
  EXPECT_THAT(bash_offers({""}), IsSupersetOf({"measure", "quantize", "measurements", "help", "completion", "--help"}));
  EXPECT_THAT(bash_offers({"qu"}), ElementsAre("quantize"));
  EXPECT_THAT(bash_offers({"help", "tr"}), ElementsAre("train"));
  EXPECT_THAT(bash_offers({"quantize", "--sch"}), ElementsAre("--scheme"));
  EXPECT_THAT(bash_offers({"quantize", "--scheme", ""}), ElementsAre("block", "channel", "tensor"));
  EXPECT_THAT(bash_offers({"quantize", "--scheme", "=", "b"}), ElementsAre("block"));
  EXPECT_THAT(bash_offers({"quantize", "--scheme", "="}), ElementsAre("block", "channel", "tensor"));
  EXPECT_THAT(bash_offers({"convert", "--model", "kjv-byte"}), ElementsAre("kjv-byte-1.7M"));
  EXPECT_THAT(bash_offers({"measurements", ""}), IsSupersetOf({"merge", "unify", "show"}));
  EXPECT_THAT(bash_offers({"measurements", "unify", "--r"}), ElementsAre("--ranks"));
  EXPECT_THAT(bash_offers({"measurements", "diff", "kjv-byte"}), ElementsAre("kjv-byte-1.7M"));
  EXPECT_THAT(bash_offers({"config", ""}), IsSupersetOf({"check", "deepspeed", "explain"}));
  EXPECT_THAT(bash_offers({"completion", ""}), ElementsAre("bash", "fish", "zsh"));
  EXPECT_THAT(bash_offers({"quantize", "--block", ""}), IsEmpty());  // a number
  EXPECT_THAT(bash_offers({"evaluate", "--d"}), AllOf(Contains("--data"), Not(Contains("--dynamic"))));
  EXPECT_THAT(bash_offers({"nonsense", ""}), IsEmpty());
}

Offers fish_offers(const std::string& line) {
  return offers_of("fish --no-config",
                   script_of(Shell::fish) + "cd " FP8_SOURCE_DIR "/tools/demo_data\ncomplete -C '" + line + "'\n");
}

TEST(Completion, FishOffersTheSame) {
  if (!test::is_installed("fish")) GTEST_SKIP() << "no fish here";
  EXPECT_THAT(fish_offers("fp8 "), IsSupersetOf({"measure", "quantize", "measurements", "help", "completion"}));
  EXPECT_THAT(fish_offers("fp8 qu"), ElementsAre("quantize"));
  EXPECT_THAT(fish_offers("fp8 help tr"), ElementsAre("train"));
  EXPECT_THAT(fish_offers("fp8 quantize --sch"), ElementsAre("--scheme"));
  EXPECT_THAT(fish_offers("fp8 quantize --scheme "), ElementsAre("block", "channel", "tensor"));
  EXPECT_THAT(fish_offers("fp8 convert --model kjv-byte"), ElementsAre("kjv-byte-1.7M/"));
  EXPECT_THAT(fish_offers("fp8 measurements "), IsSupersetOf({"merge", "unify", "show"}));
  EXPECT_THAT(fish_offers("fp8 measurements unify --r"), ElementsAre("--ranks"));
  EXPECT_THAT(fish_offers("fp8 measurements diff kjv-byte"), ElementsAre("kjv-byte-1.7M/"));
  EXPECT_THAT(fish_offers("fp8 evaluate --d"), AllOf(Contains("--data"), Not(Contains("--dynamic"))));
}

/// What is typed with a tab behind it shows `expected`. Through a pseudo terminal, as zsh completes nowhere else; it
/// waits until the text is there.
std::string zsh_case(const std::string& typed, const std::string& expected) {
  return "zpty -w -n shell '" + typed + "'$'\\t'; zpty -r -m shell out '*" + expected + "*' && print '" + typed +
         "'; zpty -w -n shell $'\\x15'\n";
}

TEST(Completion, ZshOffersTheSame) {
  if (!test::is_installed("zsh")) GTEST_SKIP() << "no zsh here";
  const test::TempDir folder;
  const std::string file = (folder / "fp8.zsh").string(), dump = (folder / "dump").string();
  std::ofstream(file) << script_of(Shell::zsh);
  std::string script =
      "zmodload zsh/zpty\nzpty shell 'PS1= zsh -f -i'\n"
      "zpty -w shell \"PS1=''; cd " FP8_SOURCE_DIR
      "/tools/demo_data; unsetopt beep; stty cols 300; "
      "autoload -U compinit; compinit -u -d '" +
      dump + "'; source '" + file +
      "'; print RE''ADY\"\n"
      "zpty -r -m shell out '*READY*'\n";
  script += zsh_case("fp8 qu", "quantize");
  script += zsh_case("fp8 measurements ", "postprocess*unify");
  script += zsh_case("fp8 quantize --sch", "--scheme");
  script += zsh_case("fp8 quantize --scheme ", "block*channel*tensor");
  script += zsh_case("fp8 measurements unify --ra", "--ranks");
  script += zsh_case("fp8 measurements diff kjv-byte", "kjv-byte-1.7M");
  EXPECT_EQ(offers_of("timeout 60 zsh -f", script).size(), 6u);
}

}  // namespace
}  // namespace fp8::commands
