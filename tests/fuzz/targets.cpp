// SPDX-License-Identifier: Apache-2.0
#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "fp8/configs/quant_config.h"
#include "fp8/configs/recipe_config.h"
#include "fp8/measure/measurement_file.h"
#include "fp8/quant/formats/scale_file.h"
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

void quant_config(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] {
    const auto config = configs::parse_quant_config(io::parse_json(view(data, size), "fuzz"), "fuzz");
    for (const auto& key : configs::describe(config))
      require(!key.key.empty() && !key.origin.empty(), "a key without its name or origin");
    auto filter = configs::module_filter(config);
    for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) filter.selects("Linear", name);
    filter.unused_entries();
  });
}

void recipe(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] {
    const auto config = configs::parse_recipe(io::parse_json(view(data, size), "fuzz"), "fuzz");
    const io::Json written = configs::to_json(config);
    require(configs::to_json(configs::parse_recipe(written, "fuzz")) == written, "a recipe does not survive write and read");
    for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) config.for_module(name);
  });
}

namespace {

/// The tree of either form.
io::Json tree_of(std::string_view bytes) {
  return bytes.substr(0, 2) == "PK" ? measure::stats_json(io::parse_npz(bytes, "fuzz")) : io::parse_json(bytes, "fuzz");
}

}  // namespace

void measurement(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] {
    const auto file = measure::measurement_from_json(tree_of(view(data, size)), "fuzz");
    for (const auto& [path, bytes] : measure::measurement_bytes({"fuzz"}, file)) {
      if (path.string().find("_mod_list") != std::string::npos) continue;
      require(measure::measurement_from_json(tree_of(bytes), "fuzz").fingerprint() == file.fingerprint(),
              "a measurement does not survive write and read");
    }
  });
}

void scales(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] {
    const auto file = quant::scales_from_json(tree_of(view(data, size)), "fuzz");
    for (const auto& [path, bytes] : quant::scale_bytes({"fuzz", "maxabs", "UNIT_SCALE"}, file)) {
      require(quant::scales_from_json(tree_of(bytes), "fuzz").modules == file.modules,
              "scales do not survive write and read");
    }
  });
}

void pickle(const std::uint8_t* data, std::size_t size) {
  tolerating_errors([&] { require_same_pickle(io::read_pickle(view(data, size), "fuzz")); });
}

}  // namespace fp8::fuzz
