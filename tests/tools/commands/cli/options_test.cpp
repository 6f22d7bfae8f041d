// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/options.h"

#include "fp8/tools/commands/cli/command.h"
#include "support/command.h"
#include "support/golden.h"
#include "support/scoped_variable.h"
#include "support/throws_with.h"

namespace fp8::commands {

enum class Colour : std::uint8_t { red, green, blue };
constexpr auto names_of(Colour) {
  using enum Colour;
  return std::to_array<EnumName<Colour>>({{green, "green"}, {red, "red"}, {blue, "navy blue"}});
}

namespace {

using Words = std::vector<std::string>;

TEST(ParseInteger, WholeTextOnly) {
  EXPECT_EQ(parse_integer("42"), 42);
  EXPECT_EQ(parse_integer("-7"), -7);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  for (const char* bad : {"", " 1", "1 ", "1.0", "1e3", "0x10", "9223372036854775808", "one", "+1"})
    EXPECT_EQ(parse_integer(bad), std::nullopt) << bad;
}

TEST(ParseNumber, DotWhateverTheLocaleAndFinite) {
  EXPECT_EQ(parse_number("0.5"), 0.5);
  EXPECT_EQ(parse_number("1e-3"), 1e-3);
  for (const char* bad : {"", "0,5", "nan", "inf", "1e999", "1.5x"}) EXPECT_EQ(parse_number(bad), std::nullopt) << bad;
}

/// Parses with one option of each kind; the message of the error, or "".
struct Parsed {
  std::string text, error;
  std::int64_t integer = 3;
  double number = 1;
  std::optional<std::size_t> choice;
  bool flag = false;

  explicit Parsed(std::vector<std::string> arguments) {
    CLI::App app("", "test");
    app.allow_extras();
    Options options(app);
    options.text("--text", text, "", Options::Need::required);
    options.integer("--integer", integer, 1, 10, "");
    options.number("--number", number, 0, 2, "");
    options.choice("--choice", {"red", "green"}, [this](std::size_t i) { choice = i; }, "");
    options.flag("--flag", flag, "");
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
    error = error_of([&] {
      app.parse(std::move(arguments));
      options.check();
    });
  }
};

TEST(Options, ValuesReachTheirTargets) {
  const Parsed parsed({"--text", "--odd [a,b]", "--integer=7", "--number", "0.25", "--choice", "green", "--flag"});
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.text, "--odd [a,b]");
  EXPECT_EQ(parsed.integer, 7);
  EXPECT_EQ(parsed.number, 0.25);
  EXPECT_EQ(parsed.choice, 1u);
  EXPECT_TRUE(parsed.flag);
  EXPECT_EQ(Parsed({"--text", "x"}).integer, 3);
}

TEST(Options, MessagesNameWhatWasFoundAndWhatIsAllowed) {
  EXPECT_GOLDEN(Parsed(test::args(text)).error);
  EXPECT_NE(Parsed({"--text", "a", "--flag=3"}).error, "");
  EXPECT_NE(Parsed({"--text", "a", "--text", "b"}).error, "");
  EXPECT_NE(Parsed({"--text"}).error, "");
}

TEST(Options, AFilesValuesGiveWayToTheCommandLine) {
  CLI::App app("", "test");
  Options options(app);
  std::string text;
  std::int64_t integer = 3;
  bool flag = false;
  std::vector<std::string> list;
  options.text("--text", text, "");
  options.integer("--integer", integer, 1, 10, "");
  options.flag("--flag", flag, "");
  options.list("--list", list, "");
  app.parse(std::vector<std::string>{"given", "--text"});  // as CLI11 wants a vector
  EXPECT_FALSE(options.take("--text", "from a file", "a.yaml:1: text"));
  EXPECT_EQ(text, "given");
  EXPECT_TRUE(options.take("--integer", "4", "a.yaml:2: integer"));
  EXPECT_TRUE(options.take("--integer", "5", "b.yaml:9: integer"));
  EXPECT_EQ(integer, 5);
  EXPECT_TRUE(options.take("--flag", "true", "a.yaml:3: flag"));
  EXPECT_TRUE(flag);
  EXPECT_TRUE(options.take("--flag", "false", "b.yaml:3: flag"));
  EXPECT_FALSE(flag);
  EXPECT_TRUE(options.take("--list", std::vector<std::string>{"a", "b"}, "a.yaml:4: list"));
  EXPECT_TRUE(options.take("--list", std::vector<std::string>{"c"}, "b.yaml:4: list"));
  EXPECT_EQ(options.taken("--list"), std::vector<std::string>{"c"});
  EXPECT_EQ(options.taken("--flag"), std::vector<std::string>{"false"});
  EXPECT_EQ(options.taken("--integer"), std::vector<std::string>{"5"});
  EXPECT_EQ(list, std::vector<std::string>{"c"});
  EXPECT_EQ(options.source_of("--text"), "command line");
  EXPECT_EQ(options.source_of("--integer"), "b.yaml:9: integer");
  options.flag("--other", flag, "");
  EXPECT_EQ(options.source_of("--other"), "default");
  const auto error = [&](const std::string& name, const std::string& value) -> std::string {
    return error_of<io::Error>([&] { options.take(name, value, "c.yaml:5: key"); });
  };
  EXPECT_EQ(error("--integer", "11"), "c.yaml:5: key: found '11', allowed: an integer from 1 to 10");
  EXPECT_EQ(error("--flag", "maybe"), "c.yaml:5: key: found 'maybe', allowed: true, false");
}

TEST(Options, ANumberOrNone) {
  const auto parsed = [](std::vector<std::string> arguments) {
    CLI::App app("", "test");
    Options options(app);
    std::optional<double> number;
    bool flag = false;
    options.number_or_none("--wait", number, 0, 9, "");
    options.flag("--flag", flag, "");
    std::reverse(arguments.begin(), arguments.end());
    app.parse(std::move(arguments));
    return number;
  };
  EXPECT_EQ(parsed({}), std::nullopt);
  EXPECT_EQ(parsed({"--wait"}), 0);
  EXPECT_EQ(parsed({"--wait", "--flag"}), 0);
  EXPECT_EQ(parsed({"--wait", "2.5", "--flag"}), 2.5);
  EXPECT_EQ(parsed({"--wait=3"}), 3);
  for (const char* bad : {"10", "x", "nan"})
    EXPECT_EQ(error_of<UsageError>([&] { parsed({"--wait", bad}); }),
              "--wait: found '" + std::string(bad) + "', allowed: a number from 0 to 9, or nothing");
}

/// The colours that the arguments choose, and the help.
struct Colours {
  Colour any = Colour::red, some = Colour::red, own = Colour::red;
  std::optional<Colour> optional;
  std::string error, help;

  explicit Colours(std::vector<std::string> arguments) {
    CLI::App app("", "test");
    Options options(app);
    options.choice<Colour>("--any", any, "");
    options.choice<Colour>("--optional", optional, "");
    options.choice("--some", some, "", choice_of({Colour::blue, Colour::red}));
    options.choice<Colour>("--own", own, "", {{Colour::blue, "azure"}, {Colour::green, "verdant"}});
    help = app.help();
    error = error_of([&] { app.parse(std::move(arguments)); });
  }
};

TEST(Options, ChoicesOfAnEnumAreItsValues) {
  const Colours chosen({"--any=navy blue", "--optional=green", "--some=navy blue", "--own=verdant"});
  EXPECT_EQ(chosen.error, "");
  EXPECT_TRUE(chosen.any == Colour::blue && chosen.some == Colour::blue && chosen.own == Colour::green);
  EXPECT_TRUE(chosen.optional == Colour::green);
  EXPECT_FALSE(Colours({}).optional.has_value());
}

TEST(Options, ChoicesOfAnEnumAreListedInTheOrderOfTheTable) {
  EXPECT_GOLDEN(Colours({text}).error);
  EXPECT_THAT(Colours({}).help, HasSubstr("green|red|navy blue"));
}

TEST(OptionShelves, NewcomersSeeFew) {
  EXPECT_EQ(shelf_of("quantize", "--dynamic"), Shelf::common);
  EXPECT_EQ(shelf_of("quantize", "--shard-size"), Shelf::advanced);
  EXPECT_EQ(shelf_of("quantize", "--lease-seconds"), Shelf::processes);
  EXPECT_EQ(shelf_of("measurements expand", "--ranks"), Shelf::common);
  EXPECT_EQ(shelf_of("quantize", "--json"), Shelf::common);
  EXPECT_EQ(shelf_of("somebody's", "--shares"), Shelf::common);
}

/// Each command has fewer than 30 options on its first screen, all with a sentence, and none twice.
TEST(OptionShelves, EveryCommandsFirstScreen) {
  std::set<std::string> shelves;
  const auto look_at = [&](const CommandPage& page) {
    std::set<std::string> names;
    for (const OptionRow& option : page.options) {
      for (const auto& name : option.names) EXPECT_TRUE(names.insert(name).second) << page.name << " " << name;
      EXPECT_GT(option.help.size(), 5u) << page.name << " " << option.long_name();
      shelves.insert(std::to_string(static_cast<int>(option.shelf)));
    }
    EXPECT_LT(std::ranges::count(page.options, Shelf::common, &OptionRow::shelf), 30) << page.name;
    const bool has_help = names.contains("--help-all") && (page.name == "help" || names.contains("--help"));
    EXPECT_TRUE(has_help || !page.children.empty()) << page.name;
  };
  const CommandPage program = page_of_program();
  EXPECT_GE(program.children.size(), 14u);
  for (const CommandPage& page : program.children) {
    look_at(page);
    for (const CommandPage& child : page.children) look_at(child);
  }
  EXPECT_EQ(shelves.size(), 3u);
}

/// Options of a command's own, beside those that several share and the data's; usual: those that --help shows. One more
/// is a decision: can a value of an option that is there say it? Then this row, and tools/pages/options.md.
TEST(OptionShelves, NoCommandGrowsUnseen) {
  struct Count {
    std::ptrdiff_t own, usual;
    auto operator<=>(const Count&) const = default;
  };
  const std::map<std::string, Count> allowed = {
      {"measure", {17, 4}},
      {"quantize", {29, 13}},  // at most 30 and 14
      {"convert", {17, 5}},
      {"evaluate", {11, 2}},
      {"generate", {8, 5}},
      {"embed", {4, 3}},
      {"train", {71, 13}},
      {"run", {7, 3}},
      {"inspect", {14, 8}},
      {"config", {6, 4}},
      {"measurements merge", {1, 1}},
      {"measurements unify", {5, 5}},
      {"measurements expand", {2, 2}},
      {"measurements postprocess", {2, 1}},
      {"measurements diff", {3, 2}},
      {"measurements show", {0, 0}},
      {"doctor", {1, 1}},
      {"completion", {0, 0}},
      {"man", {1, 1}},
      {"help", {0, 0}},
  };
  const std::set<std::string> shared = {"--json",       "--overwrite", "--device",   "--dialect", "--dtype",
                                        "--threads",    "--seed",      "--load",     "--quiet",   "--color",
                                        "--verbose",    "--help",      "--version",  "--data",    "--skip",
                                        "--no-sandbox", "--batch",     "--help-all", "--samples", "--seq-len"};
  std::map<std::string, Count> found;
  const auto count = [&](const CommandPage& page) {
    auto own = page.options;
    std::erase_if(own, [&](const OptionRow& row) { return row.positional || shared.contains(row.long_name()); });
    found[page.name] = {std::ssize(own), std::ranges::count(own, Shelf::common, &OptionRow::shelf)};
  };
  for (const CommandPage& page : page_of_program().children) {
    if (page.children.empty()) count(page);
    for (const CommandPage& child : page.children) count(child);
  }
  EXPECT_EQ(found.size(), allowed.size());
  for (const auto& [command, counts] : found) {
    const Count row = allowed.contains(command) ? allowed.at(command) : Count{-1, -1};
    EXPECT_TRUE(counts == row) << command << ": own " << counts.own << ", usual " << counts.usual;
  }
  EXPECT_LE(found["quantize"].own, 30);
  EXPECT_LE(found["quantize"].usual, 14);
}

/// What a command may open is what its options name; one that does not say that its value is a path would be refused
/// its file.
TEST(OptionReach, EveryPathSaysWhatItIsFor) {
  const auto look_at = [](const Command& command, const std::string& name) {
    Context context;
    const Parser parser(command, name, context);
    for (const OptionRow& row : parser.options().rows()) {
      const std::string& option = row.long_name();
      const bool has = parser.options().reach_of(option == "MODEL" ? "--model" : option) != io::Reach::none;
      const bool names_file = row.value == Value::file || row.type == "DIR" || row.type == "FILE" || row.type == "OUT";
      const bool tells_of_file =
          row.value == Value::text &&
          std::ranges::any_of(std::array{"folder", "Folder", "prefix", "JSON file", "Run file", "library"},
                              [&](const char* word) { return row.help.find(word) != std::string::npos; });
      EXPECT_TRUE(has || !(names_file || tells_of_file)) << name << " " << option << ": " << row.help;
      EXPECT_TRUE(!has || row.value == Value::file || row.value == Value::text) << name << " " << option;
    }
  };
  for (const Command& command : commands()) {
    if (command.add != nullptr) look_at(command, command.name);
    for (const Command& child : command.children) look_at(child, std::string(command.name) + " " + child.name);
  }
}

TEST(EnvironmentProblems, AreThoseOfTheDeviceALineEach) {
  EXPECT_THAT(environment_problems(), IsEmpty());
  const test::ScopedVariable right("FP8_HPU_DEVICE", "gaudi2");
  EXPECT_THAT(environment_problems(), IsEmpty());
  const test::ScopedVariable wrong("FP8_HPU_DEVICE", "gaudi9"), memory("FP8_HPU_MEMORY", "much");
  EXPECT_THAT(environment_problems(),
              UnorderedElementsAre(AllOf(HasSubstr("FP8_HPU_DEVICE"), HasSubstr("gaudi9"), HasSubstr("gaudi3")),
                                   AllOf(HasSubstr("FP8_HPU_MEMORY"), HasSubstr("much"))));
}

TEST(EnvironmentProblems, OfOtherReadersAreNotJudgedHere) {
  const test::ScopedVariable other("OMP_WAIT_POLICY", "sometimes");
  EXPECT_THAT(environment_problems(), IsEmpty());
}

// Which words of a command line are whose: MODEL beside options that take several words, none or a former name.

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
    options.path("--out", out, io::Reach::folder, "");
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
  EXPECT_GOLDEN(Typed(test::args(text)).error);
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
