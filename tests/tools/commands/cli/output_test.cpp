// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/output.h"

#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <thread>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/report.h"
#include "support/golden.h"

namespace fp8::commands {
namespace {

TEST(Output, OneLine) {
  EXPECT_EQ(one_line("a\nb\r\n\tc\n"), "a b c");
  EXPECT_EQ(one_line("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(one_line("\x1b[31mred"), "[31mred");
  EXPECT_EQ(one_line("a\xC2\x9B"
                     "31mb\xE2\x80\xA8"
                     "c"),
            "a 31mb c")
      << "CSI of C1, a line separator";
  EXPECT_EQ(one_line("lm_head\xE2\x80\x8B"), "lm_head\\u200b") << "another name";
  EXPECT_EQ(one_line("a\xFF"), "a\xEF\xBF\xBD");
  EXPECT_EQ(one_line(""), "");
}

TEST(Outputs, WhatExistsIsReplacedOnRequestAlone) {
  const test::TempDir dir;
  EXPECT_NO_THROW(refuse_existing("", false));
  EXPECT_NO_THROW(refuse_existing(dir / "new.html", false));
  std::ofstream(dir / "old.html") << "<html>";
  std::ofstream(dir / "p_hooks_maxabs.json") << "{}";
  const auto error_of = [&](const char* name, bool overwrite) {
    return test::error_of<io::Error>([&] { refuse_existing(dir / name, overwrite); });
  };
  const std::string how = "allowed: another path, or --overwrite to replace it";
  EXPECT_EQ(error_of("old.html", false), (dir / "old.html").string() + ": exists (a file of 6 B), " + how);
  EXPECT_EQ(error_of("p_hooks_maxabs.json", false),
            (dir / "p_hooks_maxabs.json").string() + ": exists (a file of a measurement, 2 B), " + how);
  EXPECT_NO_THROW(refuse_existing(dir / "old.html", true));
  EXPECT_EQ(error_of("", true), (dir / "").string() + ": is a folder, expected a file");
}

/// A command that names a file or folder to write has --overwrite; measure makes a backup of what was there.
TEST(Outputs, EveryCommandThatWritesCanBeAskedToReplace) {
  const auto has = [](const CommandPage& page, std::initializer_list<const char*> names) {
    return std::ranges::any_of(
        page.options, [&](const OptionRow& row) { return std::ranges::find(names, row.long_name()) != names.end(); });
  };
  int writing = 0;
  const std::function<void(const CommandPage&)> look = [&](const CommandPage& page) {
    std::ranges::for_each(page.children, look);
    if (page.name == "measure" || !has(page, {"--out", "--html", "--plot", "--dump-logits"})) return;
    ++writing;
    EXPECT_TRUE(has(page, {"--overwrite"})) << page.name;
  };
  look(page_of_program());
  EXPECT_GE(writing, 13);
}

/// The bytes that write_stdout() sends to a terminal, or to a pipe.
std::string written(const std::string& text, bool terminal) {
  int ends[2] = {-1, -1};
  if (terminal ? ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0 : ::pipe(ends) != 0) return "no ends";
  if (terminal) {  // newlines stay what they are
    termios settings = {};
    ::tcgetattr(ends[1], &settings);
    ::cfmakeraw(&settings);
    ::tcsetattr(ends[1], TCSANOW, &settings);
  }
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(ends[1], STDOUT_FILENO);
  write_stdout(text);
  ::dup2(before, STDOUT_FILENO);
  char got[1024];
  const auto size = ::read(ends[0], got, sizeof got);
  for (const int fd : {ends[0], ends[1], before}) ::close(fd);
  return {got, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

TEST(Output, ATextGivesTheTerminalNoOrders) {
  // The clipboard (OSC 52), a title, the cursor, CSI in C1, a turned direction, what takes no room.
  const std::string orders =
      "a\x1b]52;c;cm0gLXJm\x07\x1b[2J\r\xC2\x9B"
      "1m\xE2\x80\xAE"
      "b\xF3\xA0\x80\x81\n\tcaf\xC3\xA9";
  EXPECT_EQ(written(orders, true),
            "a\\u001b]52;c;cm0gLXJm\\u0007\\u001b[2J\\u000d\\u009b1m\\u202eb\\udb40\\udc01\n\tcaf\xC3\xA9");
  EXPECT_EQ(written(orders, false), orders);
  const std::string json =
      "{\"text\":\"\xC2\x9B"
      "1m\xF3\xA0\x80\x81\x7F\"}";
  EXPECT_EQ(io::parse_json(written(json, true), "terminal"), io::parse_json(json, "pipe"));
}

TEST(Output, AnAllocatorsMessageIsOneForPeople) { EXPECT_GOLDEN(memory_message(text)); }

TEST(Output, Grouped) {
  EXPECT_GOLDEN(grouped(std::stoll(text)));
  EXPECT_EQ(grouped(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(Output, HumanBytes) {
  EXPECT_GOLDEN(human_bytes(std::stoll(text)));
  EXPECT_EQ(human_bytes(INT64_MAX), "9223.4 PB");
}

TEST(Output, HumanSeconds) { EXPECT_GOLDEN(human_seconds(std::stod(text))); }

TEST(Table, AlignsColumnsByCharactersWithoutTrailingSpaces) {
  Table table({"name", ">bytes", "note"});
  table.row({"caf\xC3\xA9", "7", ""});
  table.row({"longer name", "1,000", "x"});
  EXPECT_EQ(table.text(0),
            "name         bytes  note\n"
            "caf\xC3\xA9             7\n"
            "longer name  1,000  x\n");
}

TEST(Table, RowsHaveAsManyCellsAsTheHeader) {
  Table table({"a", "b"});
  EXPECT_THROW(table.row({"1"}), std::logic_error);
}

Table wide() {
  Table table({"module", ">weight\nSQNR dB", ">weight\namax", "why"});
  table.row({"model.layers.10.self_attn.q_proj", "31.5", "0.7", "its scale is that of its neighbours"});
  return table;
}

TEST(Table, WhatFitsStaysAsItIs) {
  EXPECT_EQ(wide().text(0), wide().text(100));
  EXPECT_EQ(wide().text(0).substr(0, wide().text(0).find("\n")),
            "module                            weight SQNR dB  weight amax  why");
}

TEST(Table, FitsByHeadersOfTwoLinesThenProseThenNames) {
  EXPECT_EQ(wide().text(76),
            "                                   weight  weight\n"
            "module                            SQNR dB    amax  why\n"
            "model.layers.10.self_attn.q_proj     31.5     0.7  its scale is that of its\n"
            "                                                   neighbours\n");
  EXPECT_EQ(wide().text(64),
            "                              weight  weight\n"
            "module                       SQNR dB    amax  why\n"
            "..layers.10..q_proj             31.5     0.7  its scale is that\n"
            "                                              of its neighbours\n");
}

TEST(Table, ColumnsWithoutRoomAreNamed) {
  EXPECT_EQ(wide().text(40),
            "                          weight  weight\n"
            "module                   SQNR dB    amax\n"
            "..layers.10..q_proj         31.5     0.7\n"
            "(no room for: why; COLUMNS or a pipe makes room)\n");
}

TEST(Table, ColumnsOfZerosGoFirst) {
  Table table({"module", ">saturated", ">flushed", ">dB"});
  table.row({"model.layers.1.mlp.up_proj", "0", "0.0", "31.5"});
  table.row({"model.layers.2.mlp.up_proj", "0", "0.2", "30"});
  EXPECT_NE(table.text(100).find("saturated"), std::string::npos);
  EXPECT_EQ(table.text(45),
            "module                      flushed    dB\n"
            "model.layers.1.mlp.up_proj      0.0  31.5\n"
            "model.layers.2.mlp.up_proj      0.2    30\n"
            "(0 in each row: saturated)\n");
}

TEST(Table, LongTextsOnTheRightGoOnBelowThemselves) {
  Table table({"quantize", ">DIR"});
  table.row({"scheme", "E4M3 channel weights, dynamic token activations, ocp"});
  table.row({"source", "3.3 MB"});
  EXPECT_EQ(table.text(40),
            "quantize                             DIR\n"
            "scheme     E4M3 channel weights, dynamic\n"
            "                  token activations, ocp\n"
            "source                            3.3 MB\n");
}

TEST(Broken, AtSpaces) {
  EXPECT_EQ(wrapped("one two three four\nfive\n\n", 0), "one two three four\nfive\n\n");
  EXPECT_EQ(wrapped("a sentence of six words here\nfive", 20), "a sentence of six\n  words here\nfive\n");
}

TEST(Fact, GoesOnBelowItself) {
  EXPECT_EQ(summary_line("size", "1.8 MB in 67 tensors", 0), "size    1.8 MB in 67 tensors\n");
  EXPECT_EQ(summary_line("damage", "28 modules, all of them within 1.5 dB", 40),
            "damage  28 modules, all of them within\n        1.5 dB\n");
  EXPECT_EQ(summary_line("form", "", 80), "form\n");
}

TEST(Table, NoLineIsLongerThanTheTerminal) {
  for (const std::size_t width : {30, 80, 120, 200}) {
    std::istringstream lines(wide().text(width));
    for (std::string line; std::getline(lines, line);) {
      if (line[0] == '(') continue;
      EXPECT_LE(line.size(), width);
    }
  }
}

TEST(Progress, LineHasBarShareAndTimeLeft) {
  EXPECT_EQ(Progress::line("evaluate", 6, 24, 10), "evaluate [######..................]  25% 6/24, 30.0 s left");
  EXPECT_EQ(Progress::line("evaluate", 0, 24, 1), "evaluate [........................]   0% 0/24");
  EXPECT_EQ(Progress::line("evaluate", 24, 24, 5), "evaluate [########################] 100% 24/24");
  EXPECT_EQ(Progress::line("train", 6, 24, 10, "loss 2.5000"),
            "train [######..................]  25% 6/24, loss 2.5000, 30.0 s left");
  EXPECT_EQ(about(61), "1 min");
  EXPECT_EQ(about(3600), "60 min");
  EXPECT_EQ(about(7200), "2.0 h");
  EXPECT_EQ(about(144000), "40 h");
}

/// The text that `use` writes to stderr while stderr is a pipe.
template <class Use>
std::string stderr_of(const Use& use) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const int kept = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  use();
  dup2(kept, STDERR_FILENO);
  close(kept);
  close(ends[1]);
  std::string text(4096, '\0');
  const auto n = read(ends[0], text.data(), text.size());
  close(ends[0]);
  return text.substr(0, n > 0 ? static_cast<std::size_t>(n) : 0);
}

TEST(Progress, SilentWhereStderrIsNoTerminal) {
  const Context context;
  EXPECT_EQ(stderr_of([&] { Progress(context, "evaluate", 3).update(2); }), "");
}

TEST(Context, WarningsAreOneLineAndQuietable) {
  Context context;
  EXPECT_EQ(stderr_of([&] { context.warn("a\nb"); }), "fp8: warning: a b\n");
  context.quiet = true;
  EXPECT_EQ(stderr_of([&] { context.warn("a"); }), "");
}

TEST(Stopwatch, CountsSecondsSinceItWasMade) {
  const Stopwatch watch;
  const double before = watch.seconds();
  EXPECT_GE(before, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(watch.seconds(), before + 0.02);
}

}  // namespace
}  // namespace fp8::commands
