// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_best.h"

#include <algorithm>
#include <string>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

void copy_whole(const fs::path& from, const fs::path& to) {
  std::uint64_t size = 0;
  const auto in = io::open_regular(from, &size);
  io::AtomicFile out(to, size);
  std::string chunk;
  for (std::uint64_t at = 0; at < size; at += chunk.size()) {
    chunk.resize(std::min(size - at, io::kChunkBytes));
    io::read_at(in.get(), from, at, chunk.data(), chunk.size());
    out.append(chunk);
  }
  out.commit();
}

}  // namespace

std::shared_ptr<const trainer::ModelCheckpoint> best_of(
    const std::vector<std::shared_ptr<trainer::TrainerCallback>>& callbacks) {
  for (const auto& callback : callbacks)
    if (auto best = std::dynamic_pointer_cast<trainer::ModelCheckpoint>(callback)) return best;
  return nullptr;
}

void take_weights(const fs::path& checkpoint, const fs::path& out) {
  if (checkpoint.empty()) return;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")))
      copy_whole(io::source_file(checkpoint, name), out / name);
  }
}

}  // namespace fp8::commands
