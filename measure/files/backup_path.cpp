// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/files/backup_path.h"

#include <ctime>

namespace fp8::measure {

std::filesystem::path backup_path(const std::filesystem::path& folder, const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  char time[32];
  std::strftime(time, sizeof time, "%d-%m_%H:%M:%S", &local);
  const std::string first = (folder / ("backup_" + name + "_" + time)).string();
  std::filesystem::path path = first;
  for (int n = 2; std::filesystem::exists(path); ++n) path = first + "_" + std::to_string(n);
  return path;
}

}  // namespace fp8::measure
