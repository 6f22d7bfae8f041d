// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/meeting_store.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::runtime::distributed {

std::string MeetingStore::seal(const std::string& key, const std::string& value) {
  if (secret_.empty()) return "";
  return kSeal + io::hmac_sha256(secret_, joinKey(key) + '\0' + value);
}

void MeetingStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  const std::string sealed = seal(key, {value.begin(), value.end()});
  std::vector<std::uint8_t> bytes = value;
  bytes.insert(bytes.end(), sealed.begin(), sealed.end());
  PrefixStore::set(key, bytes);
}

std::optional<std::string> MeetingStore::get_if_sealed(const std::string& key) {
  const std::vector<std::uint8_t> bytes = PrefixStore::get(key);
  const std::string found(bytes.begin(), bytes.end());
  const std::size_t size = found.size() - std::min(found.size(), seal(key, "").size());
  std::string value = found.substr(0, size);
  if (found.substr(size) != seal(key, value)) return std::nullopt;
  return value;
}

std::vector<std::uint8_t> MeetingStore::get(const std::string& key) {
  const auto value = get_if_sealed(key);
  TORCH_CHECK(value.has_value(), io::in_quotes(key), " is not sealed by this rank's FP8_JOB_SECRET");
  return {value->begin(), value->end()};
}

}  // namespace fp8::runtime::distributed
