// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/shares/leases.h"

namespace fp8::io {
namespace {

constexpr std::size_t kLongest = 256;

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// Of /proc/PID/stat, whose second field is a name in brackets that may hold anything.
struct Stat {
  char state = '?';
  std::uint64_t began = 0;
};

std::optional<Stat> stat_of(std::int64_t pid) {
  const std::string text = first_line(message("/proc/{}/stat", pid));
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  std::string skipped;
  fields >> stat.state;  // field 3
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.began;  // field 22
  return fields ? std::optional(stat) : std::nullopt;
}

}  // namespace

std::string Holder::text() const { return message("{}, process {}", printable(host), pid); }

Holder this_process() {
  Holder self;
  char name[kLongest] = {};
  if (::gethostname(name, sizeof name - 1) == 0) self.host = printable(name);
  self.boot = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code error;
  self.space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  self.pid = ::getpid();
  if (const auto stat = stat_of(self.pid)) self.began = stat->began;
  return self;
}

bool is_gone(const Holder& holder) {
  const Holder self = this_process();
  if (self.boot.empty() || self.space.empty() || holder.boot != self.boot || holder.space != self.space) return false;
  if (holder.pid == self.pid) return holder.began != self.began;
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) return true;
  const auto stat = stat_of(holder.pid);
  if (!stat) return false;  // hidden from us (hidepid), or it ends just now: the next look tells
  return stat->state == 'Z' || stat->state == 'X' || (holder.began != 0 && stat->began != holder.began);
}

Json to_json(const Holder& holder) {
  return {{"host", holder.host},
          {"boot", holder.boot},
          {"space", holder.space},
          {"pid", static_cast<std::uint64_t>(holder.pid)},
          {"began", holder.began}};
}

std::optional<Holder> holder_from_json(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  Holder holder;
  for (const auto& [key, text] :
       {std::pair{"host", &holder.host}, std::pair{"boot", &holder.boot}, std::pair{"space", &holder.space}}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) return std::nullopt;
    *text = found->get<std::string>();
    if (text->size() > kLongest) return std::nullopt;
  }
  const auto pid = json.find("pid"), began = json.find("began");
  if (pid == json.end() || began == json.end() || !pid->is_number_unsigned() || !began->is_number_unsigned())
    return std::nullopt;
  if (pid->get<std::uint64_t>() < 1 || pid->get<std::uint64_t>() > INT32_MAX) return std::nullopt;
  holder.pid = pid->get<std::int64_t>();
  holder.began = began->get<std::uint64_t>();
  return holder;
}

}  // namespace fp8::io
