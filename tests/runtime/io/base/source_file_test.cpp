// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/file.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

class SourceFolder : public IoTest {
 protected:
  SourceFolder() {
    for (const char* folder : {"model/sub", "home", "models--a--b/snapshots/1/sub", "models--a--b/blobs"})
      fs::create_directories(path(folder));
    for (const char* file : {"model/real", "model/sub/real", "home/key", "models--a--b/blobs/0f", "models--a--b/other"})
      put(file, "x");
  }
  void link(const std::string& to, const std::string& name) { fs::create_symlink(to, path(name)); }
  /// Where it leads, below the test's folder; "": it is followed.
  std::string leads_to(const std::string& folder, const std::string& name) {
    const auto target = link_out_of(path(folder), name);
    return target ? fs::relative(*target, fs::canonical(folder_)).string() : "";
  }
};

TEST_F(SourceFolder, FollowsLinksWithinIt) {
  link("real", "model/same");
  link("sub/real", "model/down");
  link("../real", "model/sub/up");
  link(path("model/real").string(), "model/absolute");
  link("same", "model/twice");
  for (const char* name : {"real", "sub/real", "same", "down", "sub/up", "absolute", "twice", "none"}) {
    EXPECT_EQ(leads_to("model", name), "") << name;
    EXPECT_EQ(source_file(path("model"), name), path("model") / name);
  }
}

TEST_F(SourceFolder, FollowsNoneOutOfIt) {
  link("../home/key", "model/key");
  link("key", "model/twice");
  link("../../home/key", "model/sub/key");
  link(path("home/key").string(), "model/absolute");
  link("/proc/self/environ", "model/environ");
  for (const char* name : {"key", "twice", "sub/key", "absolute"}) EXPECT_EQ(leads_to("model", name), "home/key");
  EXPECT_EQ(test::one_line_error<Error>([&] { source_file(path("model"), "key"); }),
            path("model/key").string() + ": is a link to " + fs::canonical(path("home/key")).string() +
                ", allowed: a file of the model's folder itself, or a link to one; copy it there if you trust it");
  EXPECT_NE(test::one_line_error<Error>([&] { source_file(path("model"), "environ"); }), "");
}

TEST_F(SourceFolder, EntersNoFolderThatIsALink) {
  link("../home", "model/out");
  link("sub", "model/in");
  link(".", "model/self");
  EXPECT_EQ(leads_to("model", "out/key"), "home");
  EXPECT_EQ(leads_to("model", "in/real"), "model/sub");
  EXPECT_EQ(leads_to("model", "self/real"), "model");
}

TEST_F(SourceFolder, FollowsAHubsCacheIntoItsBlobsAlone) {
  const std::string snapshot = "models--a--b/snapshots/1";
  link("../../blobs/0f", snapshot + "/file");
  link("../../../blobs/0f", snapshot + "/sub/file");
  link("../../other", snapshot + "/other");
  link("../../../home/key", snapshot + "/key");
  link("../../home/key", "models--a--b/blobs/key");
  link("../../blobs/key", snapshot + "/by_blob");
  EXPECT_EQ(leads_to(snapshot, "file"), "");
  EXPECT_EQ(leads_to(snapshot, "sub/file"), "");
  EXPECT_EQ(leads_to(snapshot, "other"), "models--a--b/other");
  EXPECT_EQ(leads_to(snapshot, "key"), "home/key");
  EXPECT_EQ(leads_to(snapshot, "by_blob"), "home/key");
}

TEST_F(SourceFolder, AnUnpackedCacheCannotCallTheUsersFolderItsBlobs) {
  fs::create_directories(path("models--c--d/snapshots/1"));
  link("../home", "models--c--d/blobs");
  link("../../blobs/key", "models--c--d/snapshots/1/file");
  EXPECT_EQ(leads_to("models--c--d/snapshots/1", "file"), "home/key");
}

TEST_F(SourceFolder, MayBeALinkItself) {
  link("model", "latest");
  link("real", "model/same");
  EXPECT_EQ(leads_to("latest", "same"), "");
  EXPECT_EQ(leads_to("latest", "real"), "");
}

TEST_F(SourceFolder, MayBeTheCurrentOneWithoutAName) {
  const fs::path before = fs::current_path();
  link("../home/key", "model/key");
  link("real", "model/same");
  fs::current_path(path("model"));
  const auto key = link_out_of("", "key"), same = link_out_of("", "same");
  fs::current_path(before);
  EXPECT_EQ(key, fs::canonical(path("home/key")));
  EXPECT_EQ(same, std::nullopt);
}

TEST_F(SourceFolder, LinksThatLeadNowhereAreTheOpenersToTell) {
  link("gone", "model/dangling");
  link("loop", "model/loop");
  EXPECT_EQ(leads_to("model", "dangling"), "");
  EXPECT_EQ(leads_to("model", "loop"), "");
}

}  // namespace
}  // namespace fp8::io
