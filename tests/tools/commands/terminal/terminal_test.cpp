// SPDX-License-Identifier: Apache-2.0
// The scripts in the shells themselves, as far as they are there: what each offers for a command line.

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/terminal/message.h"
#include "support/command.h"

namespace fp8::commands {
namespace {

using ::testing::IsSupersetOf;

using Offers = std::set<std::string>;

/// What a command of sh prints, and its status as of waitpid.
std::pair<std::string, int> run_shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {"popen failed", -1};
  std::string text;
  for (char buffer[4096]; const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe);) text.append(buffer, n);
  return {text, pclose(pipe)};
}

/// True if a program is in PATH.
bool is_installed(const std::string& program) {
  return run_shell("command -v " + program + " > /dev/null 2>&1").second == 0;
}

/// Lines of what a shell prints on `script`; a tab ends a word.
Offers offers_of(const std::string& shell, const std::string& script) {
  const test::TempDir folder;
  std::ofstream(folder / "script") << script;
  const auto [text, status] = run_shell(shell + " '" + (folder / "script").string() + "' 2>&1");
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
  EXPECT_THAT(bash_offers({""}), IsSupersetOf(args("measure quantize measurements help completion --help")));
  EXPECT_THAT(bash_offers({"qu"}), ElementsAre("quantize"));
  EXPECT_THAT(bash_offers({"help", "tr"}), ElementsAre("train"));
  EXPECT_THAT(bash_offers({"help", "form"}), ElementsAre("formats"));
  EXPECT_THAT(bash_offers(args("quantize -p {}", "FP8_B")), ElementsAre("FP8_BLOCK"));
  EXPECT_THAT(bash_offers({"quantize", "--sch"}), ElementsAre("--scheme"));
  EXPECT_THAT(bash_offers(args("quantize --scheme {}", "")), ElementsAre("block", "channel", "mx", "tensor"));
  EXPECT_THAT(bash_offers(args("quantize --scheme = b")), ElementsAre("block"));
  EXPECT_THAT(bash_offers(args("quantize --scheme =")), ElementsAre("block", "channel", "mx", "tensor"));
  EXPECT_THAT(bash_offers(args("convert --model kjv-byte")), ElementsAre("kjv-byte-1.7M"));
  EXPECT_THAT(bash_offers({"measurements", ""}), IsSupersetOf({"merge", "unify", "show"}));
  EXPECT_THAT(bash_offers(args("measurements unify --r")), ElementsAre("--ranks"));
  EXPECT_THAT(bash_offers(args("measurements diff kjv-byte")), ElementsAre("kjv-byte-1.7M"));
  EXPECT_THAT(bash_offers({"config", ""}), IsSupersetOf({"check", "deepspeed", "explain"}));
  EXPECT_THAT(bash_offers({"completion", ""}), ElementsAre("bash", "fish", "zsh"));
  EXPECT_THAT(bash_offers(args("quantize --samples {}", "")), IsEmpty());  // a number
  EXPECT_THAT(bash_offers({"evaluate", "--d"}), AllOf(Contains("--data"), Not(Contains("--dynamic"))));
  EXPECT_THAT(bash_offers({"nonsense", ""}), IsEmpty());
}

Offers fish_offers(const std::string& line) {
  return offers_of("fish --no-config",
                   script_of(Shell::fish) + "cd " FP8_SOURCE_DIR "/tools/demo_data\ncomplete -C '" + line + "'\n");
}

TEST(Completion, FishOffersTheSame) {
  if (!is_installed("fish")) GTEST_SKIP() << "no fish here";
  EXPECT_THAT(fish_offers("fp8 "), IsSupersetOf(args("measure quantize measurements help completion")));
  EXPECT_THAT(fish_offers("fp8 qu"), ElementsAre("quantize"));
  EXPECT_THAT(fish_offers("fp8 help tr"), ElementsAre("train"));
  EXPECT_THAT(fish_offers("fp8 quantize --sch"), ElementsAre("--scheme"));
  EXPECT_THAT(fish_offers("fp8 quantize --scheme "), ElementsAre("block", "channel", "mx", "tensor"));
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
  if (!is_installed("zsh")) GTEST_SKIP() << "no zsh here";
  const test::TempDir folder;
  const std::string file = (folder / "fp8.zsh").string(), dump = (folder / "dump").string();
  std::ofstream(file) << script_of(Shell::zsh);
  std::string script =
      "zmodload zsh/zpty\nzpty shell 'PS1= zsh -f -i'\n"
      "zpty -w shell \"PS1=''; cd " FP8_SOURCE_DIR
      "/tools/demo_data; unsetopt beep; stty cols 300; autoload -U compinit; compinit -u -d '" +
      dump + "'; source '" + file +
      "'; print RE''ADY\"\n"
      "zpty -r -m shell out '*READY*'\n";
  script += zsh_case("fp8 qu", "quantize");
  script += zsh_case("fp8 measurements ", "postprocess*unify");
  script += zsh_case("fp8 quantize --sch", "--scheme");
  script += zsh_case("fp8 quantize --scheme ", "block*channel*mx*tensor");
  script += zsh_case("fp8 measurements unify --ra", "--ranks");
  script += zsh_case("fp8 measurements diff kjv-byte", "kjv-byte-1.7M");
  EXPECT_EQ(offers_of("timeout 60 zsh -f", script).size(), 6u);
}

CommandPage page() {
  return {"measurements cut",
          "Cuts measurements into pieces.",
          "fp8 measurements cut stats --pieces 3 --out pieces --way long",
          {{.names = {"PATH"},
            .type = "PATH",
            .help = "What is cut",
            .value = Value::file,
            .required = true,
            .repeated = true,
            .positional = true},
           {.names = {"--out"}, .type = "PATH", .help = "Folder", .value = Value::file, .required = true},
           {.names = {"-n", "--pieces"}, .type = "N", .fallback = "2", .help = "How many", .value = Value::word},
           {.names = {"--way"},
            .type = "long|short",
            .help = "How",
            .words = {"long", "short"},
            .value = Value::word,
            .shelf = Shelf::advanced},
           {.names = {"--join"}, .help = "Of several", .shelf = Shelf::processes}}};
}

TEST(HelpText, CommonOptionsFirstAndTheRestOnRequest) {
  EXPECT_EQ(help_text(page(), 80, false),
            "Cuts measurements into pieces.\n\n"
            "Usage: fp8 measurements cut PATH... --out PATH [OPTION]...\n\n"
            "Arguments:\n"
            "  PATH                     What is cut\n\n"
            "Options:\n"
            "  --out PATH               Folder\n"
            "  -n, --pieces N           How many (default 2)\n\n"
            "Example:\n"
            "  fp8 measurements cut stats --pieces 3 --out pieces --way long\n\n"
            "fp8 measurements cut --help-all shows 2 options more.\n");
  const std::string all = help_text(page(), 80, true);
  EXPECT_THAT(all, HasSubstr("\nAdvanced options:\n  --way long|short         How\n\n"
                             "Several processes:\n  --join                   Of several\n"));
  EXPECT_THAT(all, Not(HasSubstr("options more")));
}

TEST(HelpText, UsageShowsWhatIsToBeChosen) {
  CommandPage choosing = page();
  choosing.alternatives = {{"--way", "--join"}};
  EXPECT_EQ(usage_line(choosing), "fp8 measurements cut PATH... --out PATH (--way NAME | --join) [OPTION]...");
  choosing.options[1].names = {"-o", "--out"};
  choosing.example = "fp8 measurements cut a\nfp8 measurements cut b";
  EXPECT_THAT(help_text(choosing, 80, false),
              AllOf(HasSubstr("PATH... -o PATH ("), HasSubstr("\nExamples:\n  fp8 measurements cut a\n  fp8 meas")));
}

TEST(HelpText, LongTextsGoOnBelowThemselves) {
  EXPECT_EQ(wrapped("one two three", 8, 2), "one two\n  three");
  EXPECT_EQ(wrapped("one two three", 100, 2), "one two three");
  EXPECT_EQ(wrapped("seventeenletters x", 8, 2), "seventeenletters\n  x");
  EXPECT_EQ(wrapped("\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xA4", 5, 0),
            "\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xA4");  // columns, not bytes
  EXPECT_EQ(wrapped("", 8, 2), "");
}

TEST(HelpText, FitsTheTerminal) {
  const CommandPage program = page_of_program();
  std::vector<CommandPage> pages = {program};
  for (const CommandPage& child : program.children) {
    pages.push_back(child);
    pages.insert(pages.end(), child.children.begin(), child.children.end());
  }
  for (const std::size_t width : {60u, 80u, 120u, 200u})
    for (const CommandPage& one : pages) {
      std::istringstream lines(help_text(one, width, true));
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(line.size(), std::max<std::size_t>(std::min<std::size_t>(width, 120), 78)) << width << ": " << line;
    }
}

/// The examples of all commands fit into a line of 80 columns, to be copied.
TEST(HelpText, ExamplesAreNotBroken) {
  const CommandPage program = page_of_program();
  for (const CommandPage& page : program.children) {
    EXPECT_THAT(help_text(page, 80, false), Not(HasSubstr(" \\\n"))) << page.name;
    for (const CommandPage& child : page.children)
      EXPECT_THAT(help_text(child, 80, false), Not(HasSubstr(" \\\n"))) << child.name;
  }
}

TEST(HelpText, ACommandLineThatIsBrokenIsStillOne) {
  CommandPage narrow = page();
  const std::string text = help_text(narrow, 44, false);
  EXPECT_THAT(text, HasSubstr("  fp8 measurements cut stats --pieces 3 \\\n      --out pieces --way long\n"));
}

TEST(ManPage, HasWhatTheTableHas) {
  const CommandPage page{
      "measurements cut",
      "Cuts 'em",
      "fp8 measurements cut a\\b",
      {{.names = {"PATH"}, .type = "PATH", .help = ".hidden?", .value = Value::file, .positional = true},
       {.names = {"-n", "--pieces"}, .type = "N", .fallback = "2", .help = "How many", .value = Value::word}}};
  const std::string text = man_page(page, "1.2.3");
  EXPECT_EQ(man_name(page), "fp8-measurements-cut");
  EXPECT_THAT(text, AllOf(HasSubstr(".TH FP8\\-MEASUREMENTS\\-CUT 1 \"\" \"fp8 1.2.3\" \"fp8 manual\"\n"),
                          HasSubstr(".SH NAME\nfp8\\-measurements\\-cut \\- Cuts \\(aqem\n"),
                          HasSubstr(".TP\n\\fIPATH\\fR\n\\&.hidden?\n"),
                          HasSubstr(".TP\n\\fB\\-n\\fR, \\fB\\-\\-pieces\\fR \\fIN\\fR\nHow many\n(default 2)\n"),
                          HasSubstr("a\\eb\n.EE\n"), HasSubstr("130, 143\n")));
}

/// What a program says of the page of each command; "" where nothing is wrong.
std::string complaints(const std::string& program) {
  const test::TempDir folder;
  const CommandPage all = page_of_program();
  std::string files;
  const auto write = [&](const CommandPage& page) {
    const auto file = folder / (man_name(page) + ".1");
    std::ofstream(file) << man_page(page, "1.2.3");
    files += " '" + file.string() + "'";
  };
  write(all);
  for (const CommandPage& page : all.children) {
    write(page);
    for (const CommandPage& child : page.children) write(child);
  }
  return run_shell("for f in" + files + "; do " + program + " \"$f\" 2>&1 > /dev/null; done").first;
}

TEST(ManPage, GroffHasNothingToSay) {
  if (!is_installed("groff")) GTEST_SKIP() << "no groff here";
  EXPECT_EQ(complaints("groff -man -ww -Tascii"), "");
}

TEST(ManPage, MandocHasNothingToSay) {
  if (!is_installed("mandoc")) GTEST_SKIP() << "no mandoc here";
  EXPECT_EQ(complaints("mandoc -T lint -W error"), "");
}

TEST(Message, NamesOfFunctionsAreLeftOut) {
  EXPECT_EQ(without_origin("[models] m/config.json: key 'x'"), "m/config.json: key 'x'");
  EXPECT_EQ(without_origin("--load: [custom op] found"), "--load: found");
  EXPECT_EQ(without_origin("a: [b] c: [d e] f"), "a: c: f");
}

TEST(Message, OtherBracketsStay) {
  for (const char* text : {"shape: [2, 3] found", "[1] x", "[] x", "a [b] c", "[b]c", "[abc", "", "x: [", "[a.b] x",
                           "[te::Linear] expected 2", "[my::op] found", "model.layers[0]: y"})
    EXPECT_EQ(without_origin(text), text);
}

bool colored(ColorMode mode, bool terminal, const std::map<std::string, std::string>& environment) {
  return takes_color(mode, terminal, [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(Screen, ColorsAreForTerminalsUnlessSomebodySaysSo) {
  using enum ColorMode;
  EXPECT_TRUE(colored(automatic, true, {}));
  EXPECT_FALSE(colored(automatic, false, {}));
  EXPECT_FALSE(colored(automatic, true, {{"NO_COLOR", "1"}}));
  EXPECT_FALSE(colored(automatic, true, {{"NO_COLOR", "0"}}));  // whatever its value, no-color.org says
  EXPECT_TRUE(colored(automatic, true, {{"NO_COLOR", ""}}));
  EXPECT_FALSE(colored(automatic, true, {{"CLICOLOR", "0"}}));
  EXPECT_TRUE(colored(automatic, true, {{"CLICOLOR", "1"}}));
  EXPECT_FALSE(colored(automatic, false, {{"CLICOLOR", "1"}}));
  EXPECT_TRUE(colored(automatic, false, {{"CLICOLOR_FORCE", "1"}}));
  EXPECT_TRUE(colored(automatic, false, {{"FORCE_COLOR", "3"}}));
  EXPECT_FALSE(colored(automatic, false, {{"FORCE_COLOR", "0"}}));
  EXPECT_FALSE(colored(automatic, false, {{"FORCE_COLOR", "1"}, {"NO_COLOR", "1"}}));
  EXPECT_TRUE(colored(always, false, {{"NO_COLOR", "1"}}));
  EXPECT_FALSE(colored(never, true, {{"FORCE_COLOR", "1"}}));
}

TEST(Screen, PaintEndsWhereTheTextEnds) { EXPECT_EQ(painted("fp8:", Color::red), "\x1b[1;31mfp8:\x1b[0m"); }

TEST(Spelling, FewWrongLettersOrTheBeginningOfOne) {
  const std::vector<std::string> commands = args("measure quantize evaluate generate train run inspect");
  EXPECT_EQ(meant("quantise", commands), "quantize");
  EXPECT_EQ(meant("quantzie", commands), "quantize");
  EXPECT_EQ(meant("QUANTIZE", commands), "quantize");
  EXPECT_EQ(meant("eval", commands), "evaluate");
  EXPECT_EQ(meant("trian", commands), "train");
  EXPECT_EQ(meant("rnu", commands), "run");
  for (const char* other : {"cpu", "serve", "", "q", "e", "help"}) EXPECT_EQ(meant(other, commands), "") << other;
  EXPECT_EQ(meant(std::string(100000, 'a'), commands), "");
}

TEST(Spelling, DashesDontCount) {
  const std::vector<std::string> options = args("--model --dialect --measurements --help");
  EXPECT_EQ(meant("--ditalect", options), "--dialect");
  EXPECT_EQ(meant("-model", options), "--model");
  EXPECT_EQ(meant("--measure", options), "--measurements");
  EXPECT_EQ(meant("--keep", options), "");
  EXPECT_EQ(did_you_mean("--modle", options), ", did you mean '--model'?");
  EXPECT_EQ(did_you_mean("--x", options), "");
  EXPECT_EQ(meant("--model", {}), "");
}

/// Of the tests' own command lines (support/command.h).
TEST(Args, AreSplitAsByAShell) {
  EXPECT_EQ(args("a --b 'In the' {} {} {}", "x y", 3, test::Words{"1", "2"}),
            (test::Words{"a", "--b", "In the", "x y", "3", "1", "2"}));
  EXPECT_EQ(args("--m {} '{}' {}", "", test::Words()), (test::Words{"--m", "", "{}"}));
  EXPECT_EQ(args("$DEMO"), test::Words{test::demo_model()});
  EXPECT_THAT(args(""), IsEmpty());
}

}  // namespace
}  // namespace fp8::commands
