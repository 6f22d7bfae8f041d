// SPDX-License-Identifier: Apache-2.0
// The store of a meeting: a prefix before every key, and a seal behind every value where the ranks have a secret.
//
//   VALUE " sealed by FP8_JOB_SECRET " HMAC-SHA256(secret, key, a zero, VALUE)
//
// Whoever can connect to c10d's server can list all keys, and read, write and delete them: no prefix hides them. What
// get() returns, though, was set by a rank, under this key. Of the rest of a store, add() and compareSet() among it,
// nothing is sealed; groups need none of it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "fp8/runtime/distributed/door.h"

namespace fp8::runtime::distributed {

constexpr char kSeal[] = " sealed by FP8_JOB_SECRET ";

class MeetingStore final : public c10d::PrefixStore {
 public:
  /// door: by which the others come, where this process serves them; null elsewhere.
  MeetingStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store, std::string secret,
               std::shared_ptr<Door> door = nullptr)
      : PrefixStore(std::move(prefix), std::move(store)), secret_(std::move(secret)), door_(std::move(door)) {}
  ~MeetingStore() override {
    if (door_ != nullptr) door_->forget();  // the server ends with this
  }

  const std::shared_ptr<Door>& door() const { return door_; }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<MeetingStore>(prefix_, store_->clone(), secret_);
  }
  using PrefixStore::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  /// Throws c10::Error "'here/1' is not sealed by this rank's FP8_JOB_SECRET".
  std::vector<std::uint8_t> get(const std::string& key) override;
  /// The same; none where it is not sealed so.
  std::optional<std::string> get_if_sealed(const std::string& key);
  bool hasExtendedApi() const override { return secret_.empty() && PrefixStore::hasExtendedApi(); }

 private:
  std::string seal(const std::string& key, const std::string& value);

  const std::string secret_;
  const std::shared_ptr<Door> door_;
};

}  // namespace fp8::runtime::distributed
