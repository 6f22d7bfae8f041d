// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/file.h"

#include <unistd.h>

#include "fp8/runtime/io/base/byte_reader.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using FileTest = IoTest;

TEST_F(FileTest, ReadsAWholeFile) {
  const std::string bytes("a\0b\n", 4);
  EXPECT_EQ(read_file(put("x", bytes), 4), bytes);
  EXPECT_EQ(read_file(put("empty", ""), 4), "");
}

TEST_F(FileTest, IsThereWhateverItIs) {
  EXPECT_TRUE(is_there(folder_));
  EXPECT_FALSE(is_there(path("none")));
  std::filesystem::create_symlink("nothing", path("link"));
  EXPECT_TRUE(is_there(path("link")));
  EXPECT_FALSE(is_there(path(std::string(5000, 'n'))));
}

TEST_F(FileTest, RefusesWhatIsTooLarge) {
  const auto file = put("x", "12345");
  EXPECT_IO_ERROR(read_file(file, 4), file.string() + ": 5 bytes, allowed at most 4");
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_IO_ERROR(read_file(folder_, 4), folder_.string() + ": is a folder, expected a file");
  EXPECT_IO_ERROR(read_file(path("none"), 4), path("none").string() + ": can't open: No such file or directory");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);  // without a writer a plain open would wait for ever
  EXPECT_IO_ERROR(read_file(path("pipe"), 4), path("pipe").string() + ": is not a regular file");
  EXPECT_IO_ERROR(read_file("/dev/zero", 4), "/dev/zero: is not a regular file");
}

TEST_F(FileTest, ReadAtNamesTheEndOfAShortFile) {
  const auto name = put("x", "0123456789");
  const Descriptor file = open_regular(name);
  char bytes[4];
  read_at(file.get(), name, 3, bytes, 4);
  EXPECT_EQ(std::string(bytes, 4), "3456");
  EXPECT_IO_ERROR(read_at(file.get(), name, 8, bytes, 4),
                  name.string() + ": ends at byte 10, expected 2 more (cut short while it was read?)");
}

TEST(FailErrno, NamesAFullDisk) {
  EXPECT_IO_ERROR(fail_errno("out", "write", ENOSPC, 12), "out: no space left on device (needed 12 bytes)");
  EXPECT_IO_ERROR(fail_errno("out", "write", EDQUOT), "out: no space left on device");
  EXPECT_IO_ERROR(fail_errno("out", "write", EACCES), "out: can't write: Permission denied");
}

TEST(Descriptor, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    Descriptor a(ends[0]);
    Descriptor b = std::move(a);
    EXPECT_EQ(a.get(), -1);
    EXPECT_EQ(b.get(), ends[0]);
    a = std::move(b);
    EXPECT_EQ(a.get(), ends[0]);
  }
  EXPECT_EQ(::close(ends[0]), -1);
  EXPECT_EQ(::close(ends[1]), 0);
}

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("model.layers.0"), "model.layers.0");
  EXPECT_EQ(printable("gr\xc3\xb6\xc3\x9f"
                      "e"),
            "gr\xc3\xb6\xc3\x9f"
            "e");
  EXPECT_EQ(printable(std::string_view("a\nb\0\x7f\xff", 6)), "a\\x0ab\\x00\\x7f\\xff");
}

TEST(Printable, EscapesWhatIsNotDrawn) {
  EXPECT_EQ(printable("a\xC2\x9B"
                      "b"),
            "a\\u009bb");                                         // CSI of C1
  EXPECT_EQ(printable("lm_head\xE2\x80\x8B"), "lm_head\\u200b");  // no width: it would look like lm_head
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "abc"),
            "\\u202eabc");  // right to left
  EXPECT_EQ(printable("a\xE2\x80\xA8"
                      "b"),
            "a\\u2028b");                                      // another line
  EXPECT_EQ(printable("\xF3\xA0\x80\x81"), "\\udb40\\udc01");  // a tag
}

TEST(Printable, IsBoundedAndEndsBetweenCharacters) {
  EXPECT_EQ(printable(std::string(500, 'x'), 10), "xxxxxxxxxx...");
  EXPECT_EQ(printable("\xc3\xb6\xc3\xb6\xc3\xb6", 3), "\xc3\xb6\xc3\xb6...");
}

TEST(Printable, InQuotes) { EXPECT_EQ(in_quotes("mode"), "'mode'"); }

TEST(Message, HoldsEachValueAtItsPlace) {
  const std::string text = "{}";
  EXPECT_EQ(message("{}: found {}, allowed: {}", "a.json", text, std::string_view("1, 2")),
            "a.json: found {}, allowed: 1, 2");
  EXPECT_EQ(message("{}{}{}{}", 'c', std::int8_t{-3}, ~std::uint64_t{0}, 0.5f), "c-3184467440737095516150.500000");
  EXPECT_EQ(message("{.quant = false} of {}", std::filesystem::path("a/b")), "{.quant = false} of a/b");
  EXPECT_EQ(message("as it is"), "as it is");
}

TEST(Message, IsWhatAnErrorCarries) {
  using test::error_of;
  EXPECT_EQ(error_of<Error>([] { fail<Error>("found {}", 3); }), "found 3");
  EXPECT_EQ(error_of<std::invalid_argument>([] { fail<std::invalid_argument>("rank is {}", 3); }), "rank is 3");
  EXPECT_EQ(error_of<Error>([] { fail(std::filesystem::path("a\nb"), "{} bytes", 3); }), "a\\x0ab: 3 bytes");
  EXPECT_EQ(error_of<Error>([] { fail_at("key 'a'", "{} bytes", 3); }), "key 'a': 3 bytes");
}

TEST(Option, HasTheNameOfTheLibraryOrOfTheProgram) {
  const std::string message = option("kv_cache", "'kv_cache'", "off") + " or " + option("keep");
  EXPECT_EQ(spelled(message), "'kv_cache' or 'keep'");
  EXPECT_EQ(spelled(message,
                    [](std::string_view id, std::string_view value) {
                      return id == "kv_cache" ? "--kv-cache " + std::string(value) : std::string();
                    }),
            "--kv-cache off or 'keep'");
  EXPECT_STREQ(Error(message).what(), "'kv_cache' or 'keep'");
}

/// A path and the name of a tensor may hold any character.
TEST(Option, IsNothingThatATextOfAFileBegins) {
  for (const std::string text : {"a\x1e_b", "\x1e", "a\x1e_b\x1f_c", "\x1f\x1f\x1e", "\x1e\x1e\x1e"}) {
    EXPECT_EQ(spelled(text), text);
    EXPECT_EQ(spelled(text + option("keep")), text + "'keep'");
    EXPECT_EQ(spelled(option("keep") + text), "'keep'" + text);
  }
}

TEST(Ensure, IsSilentWhereItHolds) { EXPECT_NO_THROW(ensure(true, "anything")); }

TEST(Ensure, NamesPlaceAndInvariant) {
  const std::string line = std::to_string(__LINE__ + 1);
  const std::string text = error_of<std::logic_error>([] { ensure(1 > 2, "numbers in their order"); });
  EXPECT_THAT(text, ::testing::EndsWith("file_test.cpp:" + line + ": expected numbers in their order"));
}

TEST(FileNames, ShardsAreCountedFromOne) {
  EXPECT_EQ(shard_file(0, 3), "model-00001-of-00003.safetensors");
  EXPECT_EQ(shard_file(2, 3), "model-00003-of-00003.safetensors");
  EXPECT_EQ(shard_file(99999, 123456), "model-100000-of-123456.safetensors");
}

TEST(FileNames, TheOnlyShardIsTheWeights) {
  EXPECT_EQ(shard_file(0, 1), "model.safetensors");
  EXPECT_EQ(kWeightsFile + std::string(".index.json"), kIndexFile);
  EXPECT_EQ(kTorchWeightsFile + std::string(".index.json"), kTorchIndexFile);
}

struct SourceFolder : IoTest {
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
  EXPECT_IO_ERROR(
      source_file(path("model"), "key"),
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

TEST(ByteReader, ReadsNumbersAndNothingOutside) {
  const std::string bytes("\x01\x02\x03\x04\x00\x00\x80\x3f", 8);
  const ByteReader reader(bytes);
  EXPECT_EQ(reader.little<std::uint32_t>(0), 0x04030201u);
  EXPECT_EQ(reader.big<std::uint32_t>(0), 0x01020304u);
  EXPECT_EQ(reader.little<float>(4), 1.0f);
  EXPECT_EQ(reader.bytes(6, 2), "\x80\x3f");
  EXPECT_EQ(reader.bytes(8, 0), "");
  EXPECT_THROW(reader.little<std::uint16_t>(7), std::logic_error);
  EXPECT_THROW(reader.bytes(9, 0), std::logic_error);
  EXPECT_THROW(reader.bytes(1, ~std::uint64_t{0}), std::logic_error);  // which would wrap around
}

}  // namespace
}  // namespace fp8::io
