// SPDX-License-Identifier: Apache-2.0
// Objects that operators hand out by number: Python and TorchScript hold an int, the one owner holds the object. An
// object lives until it is taken out; those left over live until the program ends (its end does not run their
// destructors).
#pragma once
#include <c10/util/Exception.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <ranges>
#include <string>
#include <utility>

#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime::ops {

/// Any thread may call; get() keeps the object alive while another thread takes it out.
template <class T>
class Handles {
 public:
  /// argument: what the operators call the number, in messages.
  explicit Handles(std::string argument) : argument_(std::move(argument)) {}

  /// Numbers begin at 1 and are never used again.
  std::int64_t add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(++last_, std::move(object));
    return last_;
  }
  /// Throws c10::Error "[fp8::measure_end] session: found 7, open are 1, 3".
  std::shared_ptr<T> get(const char* op, std::int64_t number) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(number);
    if (found != objects_.end()) return found->second;
    TORCH_CHECK(false, "[fp8::", op, "] ", argument_, ": found ", number, ", open are ",
                objects_.empty() ? "none" : io::joined(objects_ | std::views::keys));
  }
  /// False if another thread was first.
  bool take_out(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return objects_.erase(number) != 0;
  }

 private:
  const std::string argument_;
  mutable std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<T>> objects_;
};

}  // namespace fp8::runtime::ops
