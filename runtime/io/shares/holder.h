// SPDX-License-Identifier: Apache-2.0
// Which process holds something, in words that another machine understands too, and whether it is known to be gone. No
// torch here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

/// A pid means something in its namespace of its machine's boot alone, and until it is given to another process: hence
/// the time at which the process began.
struct Holder {
  std::string host;   ///< for messages
  std::string boot;   ///< /proc/sys/kernel/random/boot_id; "" where there is none
  std::string space;  ///< "pid:[4026531836]"
  std::int64_t pid = 0;
  std::uint64_t began = 0;  ///< clock ticks after the boot; 0: not known

  /// "n1, process 4711".
  std::string text() const;
  bool operator==(const Holder&) const = default;
};

Holder this_process();

/// True where that is certain: a process of this machine, seen from here, that has ended (a zombie has, too). Of
/// another machine's nothing is known.
bool is_gone(const Holder& holder);

Json to_json(const Holder& holder);
/// None for anything that to_json() would not make.
std::optional<Holder> holder_from_json(const Json& json);

}  // namespace fp8::io
