// SPDX-License-Identifier: Apache-2.0
// Targets that read several files together: a checkpoint's folder, a QUANT_CONFIG with its measurements, and what a run
// that was cut short has left.
#include "fuzz/folder_targets.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/checkpoint/reading.h"
#include "fp8/runtime/io/tensors/zip.h"
#include "runtime/io/tensors/safetensors_bytes.h"

namespace fp8::fuzz {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Files files_in(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder)] = read_bytes(entry.path());
  return files;
}

/// A folder in memory that goes with this object. Its files are of one time: it is the same source in each run.
class Folder {
 public:
  Folder() {
    std::string name = "/dev/shm/fp8-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr, "no folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }
  void write(const std::string& name, const std::string& bytes) const {
    constexpr timespec kTimes[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    ::utimensat(AT_FDCWD, (path_ / name).c_str(), kTimes, 0);
  }

 private:
  fs::path path_;
};

/// The members of a zip as files of in/; those with odd names are left out. False: it is no zip.
bool unpack(std::string_view data, const Folder& folder) {
  constexpr std::uint64_t kMost = 1 << 16;
  constexpr std::size_t kFiles = 16;
  folder.write("all.zip", std::string(data));
  try {
    const io::ZipFile zip(folder.path() / "all.zip");
    for (std::size_t i = 0; i < std::min(kFiles, zip.members().size()); ++i) {
      const auto& member = zip.members()[i];
      const bool plain = !member.name.empty() && member.name.size() < 100 && member.name[0] != '.' &&
                         member.name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
      if (plain) folder.write("in/" + member.name, zip.read(member, kMost));
    }
  } catch (const io::Error&) {
    return false;
  }
  return fs::exists(folder.path() / "in");
}

/// Quantizes; what comes of it is a checkpoint whose weights can be read.
void quantize(const Folder& folder, const quant::CheckpointOptions& options) {
  try {
    quant::quantize_checkpoint(folder.path() / "in", folder.path() / "out", options);
  } catch (const std::invalid_argument&) {
    return;
  }
  const io::Checkpoint checkpoint(folder.path() / "out");
  const quant::CheckpointReading reading(checkpoint);
  for (const auto& [module, weight] : reading.weights()) {
    std::vector<float> row(static_cast<std::size_t>(weight.cols));
    if (weight.rows > 0) reading.read(module, weight.rows - 1, 1, row.data());
  }
}

}  // namespace

void checkpoint(std::string_view data) {
  const Folder folder;
  if (!unpack(data, folder)) return;
  quantize(folder, {});
}

void calibrated(std::string_view data) {
  const Folder folder;
  if (!unpack(data, folder)) return;
  quant::CheckpointOptions options;
  const fs::path in = folder.path() / "in";
  io::Json config = io::read_json(in / "quant.json");
  if (config.is_object()) config["dump_stats_path"] = (in / "stats").string();
  options.plan.config = configs::parse_quant_config(config, "quant.json", {{{"maxabs"}, {"histogram"}}});
  options.plan.measurements = measure::read_measurements({(in / "stats").string()});
  quantize(folder, options);
}

namespace {

/// One decoder layer of f32 weights.
Files small_model() {
  constexpr int kSide = 16;
  std::string header, data;
  for (const char* name :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"}) {
    const std::size_t begin = data.size();
    for (int i = 0; i < kSide * kSide; ++i) {
      const float value = static_cast<float>((i * 37 + static_cast<int>(begin)) % 101 - 50) / 64;
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header += (header.empty() ? "{" : ",") + ("\"model.layers.0." + std::string(name)) +
              R"(.weight":{"dtype":"F32","shape":[16,16],"data_offsets":[)" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  return {{"config.json", R"({"model_type": "blocks_alone", "num_hidden_layers": 1, "hidden_size": 16})"},
          {"model.safetensors", io::safetensors_bytes(header + "}", data)}};
}

/// A run that was cut short, and what one that was not gives.
struct CutShort {
  Folder folder;  ///< with in/ and what the run left
  Files left, whole;
  quant::CheckpointOptions options;

  explicit CutShort(bool shares) {
    for (const auto& [name, bytes] : small_model()) folder.write("in/" + name, bytes);
    options.shard_bytes = 400;
    quant::quantize_checkpoint(folder.path() / "in", folder.path() / "out", options);
    whole = files_in(folder.path() / "out");
    fs::remove_all(folder.path() / "out");
    quant::CheckpointOptions cut = options;
    std::atomic<int> asked{0};
    if (shares) {
      cut.shares = options.shares = io::SharesOptions{.count = 3, .lease = {.beats = false}};
    } else {
      cut.resume = options.resume = true;
    }
    cut.stop = [&asked] { return ++asked > 3; };
    try {
      quant::quantize_checkpoint(folder.path() / "in", folder.path() / "out", cut);
    } catch (const io::Error&) {  // interrupted
    }
    options.join = shares;
    for (const auto& [name, bytes] : files_in(folder.path()))
      if (!name.starts_with("in/")) left[name] = bytes;
    require(!left.empty(), "nothing is left of a run that was cut short");
  }

  void put_back() const {
    for (const auto& entry : fs::directory_iterator(folder.path()))
      if (entry.path().filename() != "in") fs::remove_all(entry.path());
    for (const auto& [name, bytes] : left) {
      fs::create_directories((folder.path() / name).parent_path());
      std::ofstream(folder.path() / name, std::ios::binary) << bytes;
    }
  }
};

/// An input is a list of edits: which file, where, how, with what. The files of tensors are left alone.
void edit(const CutShort& cut, std::string_view edits) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : cut.left)
    if (name.find(".safetensors") == std::string::npos) names.push_back(name);
  for (; edits.size() >= 5 && !names.empty(); edits.remove_prefix(5)) {
    const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(edits[i])); };
    const fs::path path = cut.folder.path() / names[byte(0) % names.size()];
    std::string text = read_bytes(path);
    const std::size_t at = (byte(1) << 8 | byte(2)) % (text.size() + 1);
    switch (byte(3) % 5) {
      case 0: text.insert(at, 1, edits[4]); break;
      case 1: text.erase(at, byte(4)); break;
      case 2:
        if (at < text.size()) text[at] = edits[4];
        break;
      case 3: text.insert(at, text.substr(text.size() * byte(4) / 256, 40)); break;
      default: fs::remove(path); continue;
    }
    std::ofstream(path, std::ios::binary) << text;
  }
}

/// Whatever of the journal, the sidecar and the leases is damaged: the bytes of an undisturbed run, or a message.
void go_on(const CutShort& cut, std::string_view edits) {
  cut.put_back();
  edit(cut, edits);
  quant::quantize_checkpoint(cut.folder.path() / "in", cut.folder.path() / "out", cut.options);
  require(files_in(cut.folder.path() / "out") == cut.whole, "other bytes after going on");
}

}  // namespace

void resumed(std::string_view data) {
  static const CutShort cut(/*shares=*/false);
  go_on(cut, data);
}

void joined(std::string_view data) {
  static const CutShort cut(/*shares=*/true);
  go_on(cut, data);
}

}  // namespace fp8::fuzz
