// SPDX-License-Identifier: Apache-2.0
// Outputs that can't be written, or must not be: the input, what somebody else keeps there, full and read-only disks,
// two runs at once.
#include <sys/mount.h>

#include <cerrno>
#include <thread>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BadOutput, TheInputIsNeverTouched) {
  const Model model;
  const auto before = contents(model.path());
  const auto beside = names_in(model.path().parent_path());
  std::filesystem::create_directory_symlink(model.path(), model.path().parent_path() / "link");
  for (const std::string tail : {"", "/", "/inside", "/../model/deep/inside", "/.."}) {
    SCOPED_TRACE(tail);
    expect_refused(
        fp8({"quantize", "--json", "--dynamic", "--overwrite", "--model", model.name(), "--out", model.name() + tail}));
  }
  expect_refused(fp8({"quantize", "--json", "--dynamic", "--model", model.name(), "--out", model.name() + "/inside"}),
                 {"inside the input"});
  const std::string link = (model.path().parent_path() / "link").string();
  expect_refused(fp8({"quantize", "--dynamic", "--overwrite", "--model", link, "--out", model.name()}),
                 {"is the input itself"});
  expect_refused(fp8({"quantize", "--dynamic", "--overwrite", "--model", model.name(), "--out", link}),
                 {"is the input itself"});
  std::filesystem::remove(link);
  EXPECT_EQ(contents(model.path()), before);
  EXPECT_EQ(names_in(model.path().parent_path()), beside);
}

TEST(BadOutput, WhatStandsThereIsKept) {
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "diary");
  write_file(folder / "diary/monday.txt", "rain");
  expect_refused(fp8({"quantize", "--dynamic", "--model", demo_model(), "--out", (folder / "diary").string()}),
                 {"not empty"});
  expect_refused(
      fp8({"quantize", "--dynamic", "--overwrite", "--model", demo_model(), "--out", (folder / "diary").string()}),
      {"not overwritten"});
  EXPECT_EQ(contents(folder / "diary"), (std::map<std::string, std::string>{{"monday.txt", "rain"}}));

  quantize(demo_model(), folder / "fp8", {"--dynamic"});
  const auto first = contents(folder / "fp8");
  const Model bad;
  bad.write("model.safetensors", "junk");
  expect_refused(
      fp8({"quantize", "--dynamic", "--overwrite", "--model", bad.name(), "--out", (folder / "fp8").string()}));
  EXPECT_EQ(contents(folder / "fp8"), first);  // a run that fails replaces nothing
  quantize(demo_model(), folder / "fp8", {"--weights-only", "--overwrite"});
  EXPECT_NE(contents(folder / "fp8"), first);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("diary", "fp8"));
}

TEST(BadOutput, FilesInTheWayAreNamed) {
  const test::TempDir folder;
  write_file(folder / "file", "");
  for (const std::string name : {"file", "file/below"}) {
    const std::string out = (folder / name).string();
    expect_refused(fp8({"quantize", "--dynamic", "--model", demo_model(), "--out", out}), {"file"});
    expect_refused(
        fp8({"measure", "--model", demo_model(), "--data", calibration_text(), "--samples", "1", "--out", out}),
        {"file"});
  }
  for (const std::string& out : {std::string("/proc/fp8"), folder.path().string(), (folder / "file/below").string()}) {
    expect_refused(fp8({"evaluate", "--json", "--model", demo_model(), "--data", heldout_text(), "--samples", "1",
                        "--dump-logits", out}));
  }
  expect_refused(fp8({"quantize", "--dynamic", "--overwrite", "--model", demo_model(), "--out", "/"}));
  expect_refused(fp8({"quantize", "--dynamic", "--model", demo_model(), "--out", "/proc/fp8"}), {"/proc/fp8"});
  expect_refused(
      fp8({"quantize", "--dynamic", "--model", demo_model(), "--out", (folder / std::string(300, 'x')).string()}));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("file"));
}

TEST(BadOutput, AFileSizeLimitIsAFailedWrite) {
  const test::TempDir folder;
  expect_refused(fp8_limited(RLIMIT_FSIZE, 100000,
                             {"quantize", "--dynamic", "--model", demo_model(), "--out", (folder / "out").string()}));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

/// A tmpfs of some bytes, where mounting is allowed.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& options)
      : mounted_(mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return folder_.path(); }
  bool make_read_only() const { return mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0; }

 private:
  test::TempDir folder_;
  bool mounted_;
};

TEST(BadOutput, AFullDiskKeepsNothing) {
  for (const std::string size : {"8k", "1m"}) {
    const SmallDisk disk("size=" + size);
    if (!disk.mounted()) GTEST_SKIP() << "a small tmpfs can't be mounted here (not root)";
    const std::string out = (disk.path() / "out").string();
    expect_refused(fp8({"quantize", "--json", "--dynamic", "--model", demo_model(), "--out", out}),
                   {"no space left on device"});
    expect_refused(fp8({"evaluate", "--json", "--model", demo_model(), "--data", heldout_text(), "--samples", "40",
                        "--dump-logits", out}),
                   {"no space left on device"});
    EXPECT_THAT(names_in(disk.path()), IsEmpty());
  }
  // A measurement is three files of some 15, 6 and 1 kB: the disk fills up at each of them.
  const test::TempDir folder;
  for (const std::string size : {"4k", "16k", "24k"}) {
    const SmallDisk disk("size=" + size);
    ASSERT_TRUE(disk.mounted());
    const std::string out = (disk.path() / "deep/out").string(), config = (folder / "config.json").string();
    expect_refused(fp8({"measure", "--json", "--model", demo_model(), "--data", calibration_text(), "--samples", "1",
                        "--out", out}),
                   {"no space left on device"});
    EXPECT_THAT(names_in(disk.path()), IsEmpty()) << size;
    write_file(config, R"({"mode": "MEASURE", "measure_exclude": "NONE", "dump_stats_path": ")" + out + "/s\"}");
    expect_evaluate_refused(demo_model(), {"no space left on device"}, {{"QUANT_CONFIG", config}});
    EXPECT_THAT(names_in(disk.path()), IsEmpty()) << size;
  }
}

TEST(BadOutput, AReadOnlyDiskIsNoticedBeforeTheWork) {
  const SmallDisk disk("size=1m");
  if (!disk.mounted() || !disk.make_read_only()) GTEST_SKIP() << "a small tmpfs can't be mounted here (not root)";
  const std::string out = (disk.path() / "out").string();
  expect_refused(fp8({"quantize", "--dynamic", "--model", demo_model(), "--out", out}), {"ead-only"});
  expect_refused(fp8({"measure", "--model", demo_model(), "--data", calibration_text(), "--out", out}),
                 {"can't be written", "ead-only"});
}

TEST(BadOutput, OfTwoRunsOnOneOutputOneSaysSo) {
  const test::TempDir folder;
  test::Run runs[2];
  const auto start = [&](int i) {
    runs[i] = fp8({"quantize", "--dynamic", "--model", demo_model(), "--out", (folder / "out").string()});
  };
  for (int round = 0; round < 3; ++round) {
    std::filesystem::remove_all(folder / "out");
    std::thread other(start, 1);
    start(0);
    other.join();
    // Either they overlapped and the second met the lock, or the second came when the first had finished.
    const int failed = runs[0].code == 0 ? 1 : 0;
    EXPECT_EQ(runs[1 - failed].code, 0) << runs[1 - failed].err;
    expect_refused(runs[failed]);
    EXPECT_THAT(runs[failed].err, AnyOf(::testing::HasSubstr("another run is writing it now"),
                                        ::testing::HasSubstr("exists and is not empty")));
    EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
  }
}

}  // namespace
}  // namespace fp8::e2e
