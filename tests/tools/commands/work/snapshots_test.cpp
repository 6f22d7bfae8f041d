// SPDX-License-Identifier: Apache-2.0
// Snapshots as another process finds them.
#include "fp8/tools/commands/work/snapshots.h"

#include <fstream>
#include <thread>

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

const io::Json kIdentity = {{"mode", "whole"}, {"files", {{"a", {1, 2}}}}};

class SnapshotsTest : public ::testing::Test {
 protected:
  fs::path place() const { return folder / ".x.resume"; }
  void leave(const io::Json& progress) const {
    Snapshots snapshots(place(), 0);
    snapshots.identify(kIdentity);
    EXPECT_TRUE(snapshots.begin(false).is_null());
    EXPECT_TRUE(snapshots.save([&] { return progress; }));
  }
  test::TempDir folder;
};

TEST_F(SnapshotsTest, TheLastOneIsFound) {
  leave({{"n", 1}});
  leave({{"n", 2}});  // begin(false) removed the first
  std::ofstream(place() / "hidden-7") << "stray";
  std::ofstream(place() / ".state.partial-99999999-0") << "half";
  Snapshots snapshots(place(), 0);
  EXPECT_EQ(snapshots.stored_identity(), kIdentity);
  snapshots.identify(kIdentity);
  EXPECT_EQ(snapshots.begin(true), (io::Json{{"n", 2}}));
  EXPECT_FALSE(fs::exists(place() / "hidden-7"));
  EXPECT_TRUE(snapshots.saved());
  snapshots.remove();
  EXPECT_FALSE(fs::exists(place()));
}

TEST_F(SnapshotsTest, NothingIsMadeBeforeTheFirst) {
  {
    Snapshots snapshots(place(), 0);
    snapshots.identify(kIdentity);
    EXPECT_TRUE(snapshots.begin(true).is_null());
    EXPECT_FALSE(fs::exists(place()));
    EXPECT_FALSE(snapshots.save([] { return io::Json(); }));
    EXPECT_FALSE(fs::exists(place()));
    snapshots.folder();  // for files of the run
    EXPECT_TRUE(fs::exists(place()));
  }
  EXPECT_FALSE(fs::exists(place()));  // an error before the first snapshot leaves nothing
}

TEST_F(SnapshotsTest, AnotherRunIsNamedByWhatDiffers) {
  leave({{"n", 1}});
  const auto resumed = [&](io::Json identity) {
    return error_of<io::Error>([&] {
      Snapshots snapshots(place(), 0);
      snapshots.identify(std::move(identity));
      snapshots.begin(true);
    });
  };
  EXPECT_THAT(resumed({{"mode", "block-wise"}, {"files", {{"a", {1, 2}}}}}),
              AllOf(HasSubstr("mode was \"whole\""), HasSubstr("found \"block-wise\"")));
  EXPECT_THAT(resumed({{"mode", "whole"}, {"files", {{"a", {1, 3}}}}}), HasSubstr("files a was [1,2], found [1,3]"));
  EXPECT_THAT(resumed({{"mode", "whole"}, {"files", io::Json::object()}}), HasSubstr("files a was [1,2], found null"));
  EXPECT_EQ(resumed(kIdentity), "");
}

TEST_F(SnapshotsTest, DamageIsFound) {
  leave({{"n", 1}});
  std::string text;
  {
    std::ifstream in(place() / "state", std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto resumed = [&](const std::string& bytes) {
    std::ofstream(place() / "state", std::ios::binary | std::ios::trunc) << bytes;
    return error_of<io::Error>([&] {
      Snapshots snapshots(place(), 0);
      snapshots.identify(kIdentity);
      snapshots.begin(true);
    });
  };
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    EXPECT_THAT(resumed(damaged), HasSubstr("state: is damaged")) << i;
  }
  EXPECT_THAT(resumed(text.substr(0, text.size() - 1)), HasSubstr("is damaged"));
  EXPECT_THAT(resumed(""), HasSubstr("is damaged"));
  EXPECT_EQ(resumed(text), "");
}

TEST_F(SnapshotsTest, OneRunAtATime) {
  Snapshots first(place(), 0);
  first.identify(kIdentity);
  first.begin(false);
  first.folder();
  Snapshots second(place(), 0);
  second.identify(kIdentity);
  EXPECT_THAT(error_of<io::Error>([&] { second.begin(false); }), HasSubstr("another run"));
  EXPECT_TRUE(fs::exists(place()));
}

TEST_F(SnapshotsTest, TheyAreAsRareAsTheyAreExpensive) {
  Snapshots snapshots(place(), 0.02);
  snapshots.identify(kIdentity);
  EXPECT_FALSE(snapshots.due());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(snapshots.due());
  snapshots.save([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return io::Json{{"n", 1}};
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  EXPECT_FALSE(snapshots.due());  // 20 ms: not again for a second
}

}  // namespace
}  // namespace fp8::commands
