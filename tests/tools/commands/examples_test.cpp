// SPDX-License-Identifier: Apache-2.0
// tools/examples: each script parses, and every option that it gives to fp8 is one of that command. tests/tools/pages
// runs those that one machine can run.
#include <regex>

#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> examples() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FP8_SOURCE_DIR "/tools/examples"))
    if (entry.path().extension() == ".sh" || entry.path().extension() == ".py") files.push_back(entry.path());
  return files;
}

bool runs(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

/// Long options in a text, without values: "--shares", ...
std::vector<std::string> options_in(const std::string& text) {
  static const std::regex option("(^|[\\s,])(--[a-z][a-z-]*)");
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
  std::vector<std::string> names;
  for (const auto& file : examples()) names.push_back(file.filename().string());
  EXPECT_THAT(names, UnorderedElementsAre("slurm_array.sh", "slurm_ddp.sh", "mpirun.sh", "torchrun_two_nodes.sh",
                                          "ray_calibrate.py", "vllm_generate.py", "quantize_module.py", "moe.sh",
                                          "qwen_vl.sh", "inc_handover.sh"));
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

}  // namespace
}  // namespace fp8
