// SPDX-License-Identifier: Apache-2.0
// Links of a model's folder to files of the user: no command opens what they lead to, whatever the file is called and
// whichever command reads it. Seen by the kernel's own word (inotify), not by what the program says.
#include <sys/inotify.h>
#include <unistd.h>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

namespace fs = std::filesystem;

/// Whether anybody opened a file since the object was made.
class Watch {
 public:
  explicit Watch(const fs::path& file) : fd_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(fd_, file.c_str(), IN_OPEN), 0);
  }
  ~Watch() { ::close(fd_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  bool opened() const {
    char events[256];
    return ::read(fd_, events, sizeof events) > 0;
  }

 private:
  int fd_;
};

/// Each file of `model` in turn lies elsewhere, and a link to it in its place. A command may fail by naming it, name it
/// and go on without it, or not need it; one of them at least has to do with each file.
void expect_no_link_is_followed(const Model& model, const std::vector<Arguments>& commands) {
  const test::TempDir home;
  for (const std::string& name : names_in(model.path())) {
    SCOPED_TRACE(name);
    const fs::path here = model.path() / name, elsewhere = home / name;
    fs::rename(here, elsewhere);
    fs::create_symlink(elsewhere, here);
    bool named = false;
    for (const Arguments& command : commands) {
      SCOPED_TRACE(command[0]);
      const Watch watch(elsewhere);
      const auto run = fp8(command);
      EXPECT_FALSE(watch.opened()) << run.err;
      if (run.err.find(name + ": ") != std::string::npos) named = true;
      if (run.code != 0) expect_refused(run, {(here.string() + ": is a link to " + elsewhere.string()).c_str()});
    }
    EXPECT_TRUE(named);
    fs::remove(here);
    fs::rename(elsewhere, here);
  }
}

TEST(ForeignLinks, OfAModelAreNotFollowed) {
  const Model model;
  const test::TempDir folder;
  for (const char* name : {"generation_config.json", "special_tokens_map.json"}) model.write(name, "{}");
  model.write("chat_template.jinja", "{{ messages[0].content }}");
  for (const char* name : {"README.md", "NOTICE"}) model.write(name, "text");
  write_file(folder / "chat.jsonl", R"({"messages": [{"role": "user", "content": "In the beginning God created"}]})");
  const std::string chat = (folder / "chat.jsonl").string();
  const auto out = [&](const char* name) { return (folder / name).string(); };
  expect_no_link_is_followed(
      model, {{"quantize", "--model", model.name(), "--dynamic", "--overwrite", "--out", out("fp8")},
              {"inspect", model.name()},
              {"evaluate", "--model", model.name(), "--data", chat, "--seq-len", "8"},
              {"generate", "--model", model.name(), "--prompt", "In", "--tokens", "1"},
              {"measure", "--model", model.name(), "--data", chat, "--seq-len", "8", "--out", out("stats")},
              {"train", "--model", model.name(), "--data", chat, "--seq-len", "8", "--batch", "1", "--steps", "1",
               "--overwrite", "--out", out("run")}});
}

TEST(ForeignLinks, OfAnFp8CheckpointAreNotFollowed) {
  const test::TempDir folder;
  quantize(demo_model(), folder / "fp8", {"--dynamic", "--shard-size", "1000000"});
  const Model model(folder / "fp8");
  ASSERT_TRUE(fs::exists(model.path() / "model.safetensors.index.json"));
  const std::string out = (folder / "out").string();
  expect_no_link_is_followed(
      model, {{"convert", "--model", model.name(), "--to", "bf16", "--overwrite", "--out", out},
              {"inspect", model.name()},
              {"evaluate", "--model", model.name(), "--data", heldout_text(), "--seq-len", "8", "--samples", "1"}});
}

}  // namespace
}  // namespace fp8::e2e
