// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/registered_group.h"

#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "fp8/runtime/distributed/backend_group.h"
#include "fp8/runtime/distributed/meeting.h"

namespace fp8::runtime::distributed {
namespace {

c10::intrusive_ptr<c10d::ProcessGroup> resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "[registered_group] found '", name,
                "', allowed: the group_name of a group of torch.distributed in this process");
  }
}

class RegisteredGroup final : public BackendGroup {
 public:
  explicit RegisteredGroup(const std::string& name)
      : group_(resolve(name)), backend_(group_->getBackend(at::kCPU)), name_(name) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

 private:
  c10d::Backend& backend() override { return *backend_; }

  void wait(const Call& call, Start start) override {
    try {
      start()->wait();
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "[registered_group] '", name_, "', rank ", rank(), " of ", size(), ": ", describe(call), ": ",
                  first_line(e));
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string name_;
};

}  // namespace

std::shared_ptr<ProcessGroup> registered_group(const std::string& name) {
  return std::make_shared<RegisteredGroup>(name);
}

}  // namespace fp8::runtime::distributed
