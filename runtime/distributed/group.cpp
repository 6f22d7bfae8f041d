// SPDX-License-Identifier: Apache-2.0
#define USE_C10D_GLOO  // without it ProcessGroupGloo.hpp is empty
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/distributed/meeting.h"

namespace fp8::runtime::distributed {
namespace {

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options(const GroupOptions& options) {
  const bool loopback = options.file.empty() && is_loopback(options.host);
  auto made = loopback ? c10d::ProcessGroupGloo::Options::create(options.timeout)
                       : c10d::ProcessGroupGloo::Options::create_default(options.timeout);
  if (loopback) made->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  made->threads = 1;
  return made;
}

}  // namespace

bool is_gloo(const c10d::Backend& backend) { return dynamic_cast<const c10d::ProcessGroupGloo*>(&backend) != nullptr; }

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupOptions& options) {
  return make_group(options, options.size == 1 ? c10::make_intrusive<c10d::HashStore>() : nullptr);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupOptions& options, c10::intrusive_ptr<c10d::Store> store) {
  check(options);
  const NoBrokenPipes for_its_threads;
  try {
    if (store == nullptr) store = meet(options);
    const auto gloo =
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo_options(options));
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, options.rank, options.size);
    const auto kind = c10d::ProcessGroup::BackendType::GLOO;
    group->setDefaultBackend(kind);
    for (const auto device : {at::kCPU, at::kHPU}) group->setBackend(device, kind, gloo);
    return group;
  } catch (const std::exception& e) {
    const std::string by = options.said_by.empty() ? "" : " (by " + options.said_by + ")";
    TORCH_CHECK(false, "[make_group] rank ", options.rank, " of ", options.size, " at ", place_of(options), by, ": ",
                first_line(e));
  }
}

}  // namespace fp8::runtime::distributed
