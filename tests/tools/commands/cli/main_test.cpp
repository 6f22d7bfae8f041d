// SPDX-License-Identifier: Apache-2.0
// Exit codes and messages of the program as a whole.
#include <regex>

#include "support/golden.h"
#include "support/values.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

/// One line on stderr that starts as promised, nothing on stdout.
void expect_error(const test::Run& run, int code, const std::string& part) { expect_refused(run, {part}, code); }

/// What a command line that is wrong says.
std::string wrong_usage(const std::string& line) {
  const auto run = run_fp8(args(line));
  expect_refused(run, {}, 2);
  return run.err;
}

using Fp8 = InFolder;

TEST_F(Fp8, WrongUsageIsExitCode2) {
  expect_error(run_fp8({"measurements"}), 2, "measurements: no command given, allowed: ");
  EXPECT_GOLDEN(wrong_usage(text));
  for (const char* command : {"doctor", "evaluate"})
    expect_error(run_fp8({"--json", command}), 2, "unknown option '--json', allowed: --help, --version or a command");
}

TEST_F(Fp8, NoOutputTakesThePlaceOfTheInput) {
  const std::string text = (folder / "text.txt").string();
  std::ofstream(text) << "In the beginning";
  fs::create_hard_link(text, folder / "link.txt");
  for (const auto& out : {fs::path(text), folder / "." / "text.txt", folder / "link.txt"})
    expect_error(run_fp8("embed $DEMO --data {} --out {}", text, out), 2, "which is --data, allowed: another path");
  EXPECT_EQ(read_file(text), "In the beginning");
}

TEST_F(Fp8, BadValuesNameTheAllowedOnes) {
  EXPECT_GOLDEN(wrong_usage(text));
  expect_error(run_fp8("evaluate --model {} --data d", ""), 2, "--model");
}

TEST_F(Fp8, TheNearestNameIsSaid) {
  expect_error(run_fp8({"quantise"}), 2, "unknown command 'quantise', did you mean 'quantize'?\n");
  EXPECT_GOLDEN(wrong_usage(text));
  std::ofstream(folder / "quant.json") << R"({"mode": "QUANTIZE", "scale_method": "maxab"})";
  EXPECT_THAT(run_fp8("config check {}", folder / "quant.json").out, HasSubstr("did you mean 'maxabs_hw'?"));
}

TEST_F(Fp8, HelpOfACommandInTwoWays) {
  EXPECT_EQ(run_fp8({"help"}).out, run_fp8({"--help"}).out);
  EXPECT_EQ(run_fp8({}).out, run_fp8({"--help"}).out);
  EXPECT_EQ(run_fp8({}).code, 0);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"quantize"}, {"measurements"}, {"measurements", "unify"}}) {
    auto first = command, last = command;
    first.insert(first.begin(), "help");
    last.emplace_back("--help");
    const auto help = succeeded(run_fp8(first));
    EXPECT_EQ(help.out, run_fp8(last).out);
    last.back() = "-h";
    EXPECT_EQ(help.out, run_fp8(last).out);
  }
  const auto common = run_fp8({"help", "quantize"}).out, all = run_fp8("help quantize --help-all").out;
  EXPECT_THAT(common,
              AllOf(HasSubstr("--dynamic"), Not(HasSubstr("--shares")), HasSubstr("fp8 quantize --help-all shows ")));
  EXPECT_THAT(all, AllOf(HasSubstr("Advanced options:"), HasSubstr("Several processes:"), HasSubstr("--shares")));
  EXPECT_EQ(all, run_fp8({"quantize", "--help-all"}).out);
  expect_error(run_fp8({"help", "quantise"}), 2, "did you mean 'quantize'?");
  EXPECT_THAT(run_fp8({"help", "help"}).out, HasSubstr("Usage: fp8 help "));
  EXPECT_EQ(run_fp8({"help", "--help"}).out, run_fp8({"help", "help"}).out);
  expect_error(run_fp8("help quantize x"), 2, "help: unexpected argument 'x'");
}

TEST_F(Fp8, HelpOfTopics) {
  const auto help = run_fp8({"help"}).out;
  for (const auto& [topic, text] : {std::pair{"presets", "FP8_WEIGHT_ONLY"},
                                    {"formats", "modelopt"},
                                    {"environment", "QUANT_CONFIG"},
                                    {"exit-codes", "130, 143"}}) {
    EXPECT_THAT(help, HasSubstr("\n  " + std::string(topic))) << topic;
    EXPECT_THAT(succeeded(run_fp8({"help", topic})).out, HasSubstr("\n  " + std::string(text))) << topic;
  }
}

/// Code points of the longest line; lines that name what there was no room for don't count.
std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("(no room for:")) continue;
    const auto inside = std::ranges::count_if(line, [](char c) { return (c & 0xC0) == 0x80; });
    longest = std::max(longest, line.size() - static_cast<std::size_t>(inside));
  }
  return longest;
}

TEST_F(Fp8, HelpIsAsWideAsTheTerminal) {
  for (const std::size_t width : {80u, 120u, 200u})
    for (const char* locale : {"C", "C.UTF-8"}) {
      const auto help =
          run_fp8({"train", "--help-all"}, {.environment = {{"COLUMNS", std::to_string(width)}, {"LC_ALL", locale}}});
      const std::size_t longest = longest_line(help.out);
      EXPECT_LE(longest, width);
      EXPECT_GE(longest, std::min<std::size_t>(width, 120) - 10);
    }
}

TEST_F(Fp8, TablesAreNoWiderThanTheTerminal) {
  const auto out = (folder / "out").string(), wide = (folder / "bf16").string();
  const auto preset = (test::demo_data() / "../../configs/json/maxabs_quant.json").string();
  const std::vector<std::vector<std::string>> commands = {
      args("quantize --model $DEMO --dynamic --out {} --overwrite", out),
      args("convert --model {} --format bf16 --out {} --overwrite", out, wide),
      {"inspect", out},
      args("inspect {} --all", out),
      args("inspect $DEMO --all"),
      args("inspect $DEMO --plan"),
      args("config explain {} --model $DEMO", preset),
      args("config explain {}", preset),
      {"doctor"}};
  for (const auto& command : commands) {
    const auto whole = run_fp8(command).out;
    for (const auto& [width, locale] : {std::pair{80u, "C"}, {120u, "C.UTF-8"}, {200u, "C"}}) {
      const auto run = run_fp8(command, {.environment = {{"COLUMNS", std::to_string(width)}, {"LC_ALL", locale}}});
      EXPECT_EQ(run.code, 0) << run.err;
      EXPECT_LE(longest_line(run.out), width) << run.out;
      EXPECT_EQ(run.out.empty(), whole.empty());
    }
  }
  const auto all = args("inspect $DEMO --all");  // a pipe has no width
  EXPECT_EQ(run_fp8(all, {.environment = {{"COLUMNS", "0"}}}).out, run_fp8(all).out);
}

TEST_F(Fp8, ColorsWhereTheyAreAskedFor) {
  const std::string red = "\x1b[1;31mfp8: error:\x1b[0m ";
  EXPECT_THAT(run_fp8("inspect /no --color always").err, StartsWith(red + "/no"));
  EXPECT_THAT(run_fp8({"nonsense", "--color=always"}).err, StartsWith(red + "unknown command"));
  EXPECT_THAT(run_fp8({"inspect", "/no"}, {.environment = {{"FORCE_COLOR", "1"}}}).err, StartsWith(red));
  for (const char* name : {"NO_COLOR", "CLICOLOR"})
    EXPECT_THAT(run_fp8({"inspect", "/no"}, {.environment = {{name, "0"}}}).err, StartsWith("fp8: error: "));
  EXPECT_THAT(run_fp8(args("inspect /no --color never"), {.environment = {{"FORCE_COLOR", "1"}}}).err,
              StartsWith("fp8: error: "));
  expect_error(run_fp8("doctor --color blue"), 2, "--color: found 'blue', allowed: auto, always, never");
}

TEST_F(Fp8, ManPagesAndCompletions) {
  const auto written = succeeded(run_fp8("man --out {}", folder / "man1"));
  for (const char* page : {"fp8.1", "fp8-quantize.1", "fp8-measurements.1", "fp8-measurements-merge.1", "fp8-man.1"})
    EXPECT_GT(read_file(folder / "man1" / page).size(), 500u) << page;
  EXPECT_EQ(run_fp8("man measurements merge").out, read_file(folder / "man1/fp8-measurements-merge.1"));
  EXPECT_EQ(run_fp8({"man"}).out, read_file(folder / "man1/fp8.1"));
  for (const char* shell : {"bash", "zsh", "fish"})
    EXPECT_THAT(run_fp8({"completion", shell}).out, HasSubstr("FP8_DYNAMIC"));
  expect_error(run_fp8({"completion"}), 2, "completion: SHELL is required");
}

TEST_F(Fp8, FilesMayBeCalledLikeCommands) {
  expect_error(run_fp8({"inspect", "evaluate"}), 1, "evaluate: no such file or folder");
  expect_error(run_fp8("measurements diff show inspect"), 1, "inspect_hooks_maxabs.json");
}

TEST_F(Fp8, FailuresAreExitCode1) {
  expect_error(run_fp8({"inspect", "/no/such/file"}), 1, "/no/such/file");
  expect_error(run_fp8("generate --model /no/such/model --prompt x --device cpu"), 1,
               "/no/such/model: expected a model folder, found nothing");
}

TEST_F(Fp8, VersionAndHelp) {
  const auto version = succeeded(run_fp8({"--version"}));
  EXPECT_TRUE(std::regex_match(version.out, std::regex("fp8 [0-9]+\\.[0-9]+\\.[0-9]+( \\([0-9a-f]+(-dirty)?\\))?\n")))
      << version.out;
  for (const std::vector<std::string>& more : {std::vector<std::string>{"-V"},
                                               {"quantize", "-V"},
                                               {"measurements", "-V"},
                                               args("measurements show --version")})
    EXPECT_EQ(run_fp8(more).out, version.out);
  const auto help = succeeded(run_fp8({"--help"}));
  for (const std::string command : {"evaluate", "generate", "inspect", "run"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const auto own = succeeded(run_fp8({command, "--help"}));
    EXPECT_EQ(own.err, "");
    EXPECT_THAT(own.out, ::testing::ContainsRegex("Examples?:\n  fp8 " + command));
    const auto all = run_fp8({command, "--help-all"});
    for (const char* option :
         {"--json", "--device hpu|cpu", "--dialect", "--dtype f32|bf16|f16", "--threads", "--seed", "--quiet"})
      EXPECT_THAT(all.out, HasSubstr(option)) << command;
  }
  for (const std::string command : {"measure", "quantize", "doctor"})
    EXPECT_THAT(run_fp8({command, "--help"}).out,
                AllOf(::testing::ContainsRegex("Examples?:\n  fp8 " + command), HasSubstr("--json")));
}

TEST_F(Fp8, StdoutThatCantBeWrittenIsAFailure) {
  expect_error(run_fp8({"inspect", test::demo_model()}, {.close_stdout = true}), 1, "stdout: can't be written");
  expect_error(run_fp8({"inspect", test::demo_model()}, {.stdout_file = "/dev/full"}), 1,
               "stdout: can't be written: No space left");
}

TEST_F(Fp8, PipeClosedByItsReader) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  const auto run = run_fp8({"inspect", test::demo_model()}, {.stdout_fd = ends[1]});
  close(ends[1]);
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.err, "fp8: error: stdout: closed by its reader\n");
}

// tools/examples: each script parses, and every option that it gives to fp8 is one of that command. tests/tools/pages
// runs those that one machine can run.

std::vector<fs::path> examples() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FP8_SOURCE_DIR "/tools/examples"))
    if (entry.path().extension() == ".sh" || entry.path().extension() == ".py") files.push_back(entry.path());
  return files;
}

bool runs(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

/// Options in a text, without values: "--shares", "-o", ...
std::vector<std::string> options_in(const std::string& text) {
  static const std::regex option("(^|[\\s,])(--[a-z][a-z-]*|-[a-z](?=[\\s,]|$))");
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), option), end; at != end; ++at) found.push_back((*at)[2]);
  return found;
}

/// {command, options} of each call of fp8; what `place` of an array of bash's has goes with it.
std::vector<std::pair<std::string, std::vector<std::string>>> calls_in(std::string text) {
  text = std::regex_replace(text, std::regex("\\\\\n"), " ");
  text = std::regex_replace(text, std::regex("(^|\n) *#[^\n]*"), "\n");
  std::smatch array;
  const std::string more =
      std::regex_search(text, array, std::regex("place=\\(([^)]*)\\)")) ? " " + array[1].str() : "";
  static const std::regex call("fp8 ([a-z]+) ([^\n]*)");
  std::vector<std::pair<std::string, std::vector<std::string>>> calls;
  for (std::sregex_iterator at(text.begin(), text.end(), call), end; at != end; ++at)
    calls.emplace_back((*at)[1], options_in(" " + (*at)[2].str() + more));
  return calls;
}

TEST(Examples, AreThere) {
  auto names = collected(examples(), [](const auto& file) { return file.filename().string(); });
  EXPECT_THAT(names, UnorderedElementsAre("slurm_array.sh", "slurm_ddp.sh", "mpirun.sh", "torchrun_two_nodes.sh",
                                          "ray_calibrate.py", "vllm_generate.py", "quantize_module.py", "moe.sh",
                                          "qwen_vl.sh", "inc_handover.sh", "tiny_models.py", "engines.py"));
}

TEST(Examples, Parse) {
  const bool python = runs("python3 --version");
  for (const auto& file : examples()) {
    const std::string name = "'" + file.string() + "'";
    if (file.extension() == ".sh") {
      EXPECT_TRUE(runs("bash -n " + name)) << file;
    } else if (python) {
      EXPECT_TRUE(runs("python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' " + name)) << file;
    }
  }
}

TEST(Examples, GiveOptionsThatThereAre) {
  std::map<std::string, std::vector<std::string>> known;
  for (const auto& file : examples()) {
    const auto calls = calls_in(read_file(file));
    EXPECT_TRUE(!calls.empty() || file.extension() == ".py") << file;
    for (const auto& [command, options] : calls) {
      auto& its = known[command];
      if (its.empty()) its = options_in(run_fp8({command, "--help-all"}).out);
      EXPECT_FALSE(options.empty() && command != "config") << file << " " << command;
      for (const auto& option : options) EXPECT_THAT(its, Contains(option)) << file << " " << command;
    }
  }
}

TEST(Outputs, AreRefusedBeforeAnyWork) {
  const test::TempDir dir;
  for (const char* name : {"o.safetensors", "o.html", "o.svg", "o.json", "fp8.1"}) std::ofstream(dir / name) << "mine";
  const std::vector<std::vector<std::string>> commands = {
      args("embed --model gone --data gone.txt --out {}", dir / "o.safetensors"),
      args("evaluate --model gone --data gone.txt --dump-logits {}", dir / "o.safetensors"),
      args("run gone.jit --data gone.wav --out {}", dir / "o.safetensors"),
      args("inspect gone --html {}", dir / "o.html"),
      args("inspect gone --plot {}", dir / "o.svg"),
      args("measurements diff gone gone --html {}", dir / "o.html"),
      args("config deepspeed hpu_deepspeed --out {}", dir / "o.json"),
      args("man --out {}", dir.path())};
  for (const auto& command : commands) {
    SCOPED_TRACE(::testing::PrintToString(command));
    expect_failed(run_fp8(command), {": exists (a file of 4 B), allowed: another path, or --overwrite to replace it"});
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_EQ(read_file(entry.path()), "mine") << entry.path();
  auto replacing = commands[6];
  replacing.push_back("--overwrite");
  EXPECT_EQ(run_fp8(replacing).code, 0);
  EXPECT_NE(read_file(dir / "o.json"), "mine");
}

TEST(Environment, ANameThatNobodyReadsIsSaid) {
  const auto run = succeeded(run_fp8({"completion", "bash"}, {.environment = {{"QUANT_CONFG", "q.json"}}}));
  EXPECT_EQ(run.err, "fp8: warning: QUANT_CONFG: nobody reads it, did you mean QUANT_CONFIG?\n");
}

}  // namespace
}  // namespace fp8
