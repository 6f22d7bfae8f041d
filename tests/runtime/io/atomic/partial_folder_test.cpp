// SPDX-License-Identifier: Apache-2.0
// OutputDirectory with Partial: what a killed run leaves (here: a child that ends at once), and who goes on with it.
#include <sys/wait.h>
#include <unistd.h>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using PartialFolderTest = IoTest;
using testing::ElementsAre;
namespace fs = std::filesystem;

/// A run that is killed after it wrote one file.
void killed_run(const fs::path& out, Partial partial) {
  const pid_t child = ::fork();
  if (child == 0) {
    OutputDirectory folder(out, false, partial);
    std::ofstream(folder.file("part")) << "half" << std::flush;
    ::_exit(0);  // no destructor
  }
  int status = 0;
  ::waitpid(child, &status, 0);
}

TEST_F(PartialFolderTest, NowGoesOnWithWhatIsThere) {
  for (const Partial first : {Partial::later, Partial::now}) {
    killed_run(path("out"), first);
    EXPECT_THAT(names_in(folder_), ElementsAre(".out.lock", ".out.partial"));
    OutputDirectory out(path("out"), false, Partial::now);
    EXPECT_TRUE(out.continued());
    EXPECT_FALSE(out.discarded());
    EXPECT_EQ(bytes_of(out.file("part")), "half");
    std::ofstream(out.file("config.json")) << "{}";
    out.sync();
    fs::remove(out.file("part"));
    out.commit();
    EXPECT_THAT(names_in(path("out")), ElementsAre("config.json"));
    EXPECT_THAT(names_in(folder_), testing::Not(testing::Contains(".out.partial")));
    fs::remove_all(path("out"));
  }
}

TEST_F(PartialFolderTest, OthersBeginAnewAndSaySo) {
  for (const Partial second : {Partial::later, Partial::never}) {
    killed_run(path("out"), Partial::later);
    OutputDirectory out(path("out"), false, second);
    EXPECT_TRUE(out.discarded());
    EXPECT_FALSE(out.continued());
    EXPECT_FALSE(fs::exists(out.file("part")));
  }
  EXPECT_TRUE(names_in(folder_).empty());
  killed_run(path("out"), Partial::never);
  OutputDirectory out(path("out"), false, Partial::now);
  EXPECT_FALSE(out.continued());
}

TEST_F(PartialFolderTest, AFailedRunKeepsItsPartsOnlyIfItResumes) {
  {
    OutputDirectory out(path("out"), false, Partial::later);
    std::ofstream(out.file("part")) << "half";
  }
  EXPECT_TRUE(names_in(folder_).empty());
  { OutputDirectory out(path("out"), false, Partial::now); }
  EXPECT_TRUE(names_in(folder_).empty());  // nothing was made
  {
    OutputDirectory out(path("out"), false, Partial::now);
    std::ofstream(out.file("part")) << "half" << std::flush;
    remove_temporaries();  // what a second Ctrl-C does
  }
  EXPECT_THAT(names_in(folder_), ElementsAre(".out.partial"));
  EXPECT_EQ(bytes_of(path(".out.partial/part")), "half");
}

TEST_F(PartialFolderTest, WhatIsNoFolderIsNotContinued) {
  put(".out.partial", "a file");
  EXPECT_THAT(test::one_line_error<Error>([&] { OutputDirectory out(path("out"), false, Partial::now); }),
              testing::HasSubstr("can't create"));
  fs::remove(path(".out.partial"));
  fs::create_directory(path("elsewhere"));
  fs::create_directory_symlink(path("elsewhere"), path(".out.partial"));
  EXPECT_THAT(test::one_line_error<Error>([&] { OutputDirectory out(path("out"), false, Partial::now); }),
              testing::HasSubstr("can't create"));
}

}  // namespace
}  // namespace fp8::io
