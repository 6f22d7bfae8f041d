// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/stream/as_written.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/shares/leases.h"

namespace fp8::quant::stream {
namespace {

/// Longer than two ticks of any kernel.
constexpr std::int64_t kTick = 25'000'000;

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return io::nanoseconds(time);
}

/// [size, device, inode, ctime]; null where the system does not say.
io::Json stands(int fd) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) return nullptr;
  return {static_cast<std::int64_t>(s.st_size), static_cast<std::uint64_t>(s.st_dev),
          static_cast<std::uint64_t>(s.st_ino), io::nanoseconds(s.st_ctim)};
}

}  // namespace

io::Json as_written(const std::filesystem::path& folder, const std::vector<std::string>& names) {
  io::Json files = io::Json::object();
  std::int64_t newest = 0;
  for (const auto& name : names) {
    const io::Json& file = files[name] = stands(io::open_regular(folder / name).get());
    if (file.is_array()) newest = std::max(newest, file[3].get<std::int64_t>());
  }
  const std::int64_t since = now() - newest;
  if (since >= 0 && since <= kTick) std::this_thread::sleep_for(std::chrono::nanoseconds(kTick + 1 - since));
  return {{"boot", io::this_process().boot}, {"at", now()}, {"files", files}};
}

bool is_as_written(const io::Json& record, const std::string& name, int fd) {
  if (!record.is_object()) return false;
  const io::Json boot = record.value("boot", io::Json()), at = record.value("at", io::Json()),
                 files = record.value("files", io::Json());
  if (!boot.is_string() || boot == "" || boot != io::this_process().boot || !at.is_number_integer() ||
      !files.is_object())
    return false;
  const io::Json then = files.value(name, io::Json());
  if (!then.is_array() || then.size() != 4 || !then[3].is_number_integer() || then != stands(fd)) return false;
  const auto written = then[3].get<std::int64_t>(), seen = at.get<std::int64_t>();
  return seen > written && seen - written > kTick && now() >= seen;
}

}  // namespace fp8::quant::stream
