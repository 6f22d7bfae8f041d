// SPDX-License-Identifier: Apache-2.0
// What all objects that stand for one group of c10d have in common.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace fp8::runtime::distributed {

/// The one T of a group, which is made at the first call for it and goes after the group has gone. Any thread.
template <class T>
std::shared_ptr<T> of_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  struct Known {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    std::shared_ptr<T> of;
  };
  static auto& mutex = *new std::mutex;  // threads may outlive main()
  static auto& all = *new std::vector<Known>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const Known& known) { return known.group.expired(); });
  const auto found = std::ranges::find_if(all, [&](const Known& known) { return known.group.lock() == group; });
  if (found != all.end()) return found->of;
  return all.emplace_back(Known{decltype(Known::group)(group), std::make_shared<T>()}).of;
}

}  // namespace fp8::runtime::distributed
