// SPDX-License-Identifier: Apache-2.0
#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/npz.h"
#include "fp8/runtime/io/pickle.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::fuzz {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

template <class Work>
void tolerating_errors(Work&& work) {
  try {
    work();
  } catch (const io::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos, "a message of several lines");
  }
}

// Values as bytes, since NaN (which a pickle may hold) equals nothing.
void require_same_pickle(const io::PyValue& value) {
  const std::string written = io::write_pickle(value, "fuzz");
  require(io::write_pickle(io::read_pickle(written, "fuzz"), "fuzz") == written,
          "a value does not survive write and read");
}

}  // namespace

void json(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] {
    const io::Json value = io::parse_json(view(data, size), "fuzz");
    const io::Json theirs = io::Json::parse(view(data, size), nullptr, false);
    require(!theirs.is_discarded(), "accepted what nlohmann refuses");
    require(value == theirs, "another value than nlohmann's");
  });
}

void safetensors(const std::uint8_t* data, std::size_t size) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  require(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), "no memory file");
  tolerating_errors([&] {
    const io::SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    std::uint64_t sum = 0;
    for (const auto& tensor : file.tensors()) {
      std::string bytes(tensor.bytes(), '\0');
      file.read(tensor, bytes.data());
      sum += bytes.size();
      require(tensor.bytes() ==
                  static_cast<std::uint64_t>(tensor.numel()) * static_cast<std::uint64_t>(size_of(tensor.dtype)),
              "size");
    }
    require(sum <= size, "more data than the file has");
  });
  ::close(fd);
}

void npz(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] { require_same_pickle(io::parse_npz(view(data, size), "fuzz")); });
}

void pickle(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] { require_same_pickle(io::read_pickle(view(data, size), "fuzz")); });
}

}  // namespace fp8::fuzz
