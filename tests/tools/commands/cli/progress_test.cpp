// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace fp8::commands {
namespace {

TEST(Progress, LineHasBarShareAndTimeLeft) {
  EXPECT_EQ(Progress::line("evaluate", 6, 24, 10), "evaluate [######..................]  25% 6/24, 30.0 s left");
  EXPECT_EQ(Progress::line("evaluate", 0, 24, 1), "evaluate [........................]   0% 0/24");
  EXPECT_EQ(Progress::line("evaluate", 24, 24, 5), "evaluate [########################] 100% 24/24");
}

/// What `use` writes to stderr while stderr is a pipe.
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

}  // namespace
}  // namespace fp8::commands
