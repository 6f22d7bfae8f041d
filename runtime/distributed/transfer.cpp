// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/transfer.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/distributed/meeting.h"

namespace fp8::runtime::distributed {
namespace {

constexpr int kTag = 0;  // one for all: Gloo keeps the order of messages of a tag

[[noreturn]] void fail_transfer(const std::string& call, const std::exception& error, ProcessGroup& group) {
  std::string why = first_line(error);
  if (const std::string gone = group.who_is_gone(); !gone.empty()) why += " (" + gone + ")";
  TORCH_CHECK(false, "[ProcessGroup] rank ", group.rank(), " of ", group.size(), ": ", call, ": ", why);
}

/// "send of 12 elements of BFloat16 to rank 1"
std::string describe_transfer(const char* call, const char* direction, const at::Tensor& t, int other) {
  return std::string(call) + " of " + std::to_string(t.numel()) + " elements of " + c10::toString(t.scalar_type()) +
         direction + std::to_string(other);
}

void check_transfer(const char* call, const at::Tensor& t, int other, const ProcessGroup& group) {
  TORCH_CHECK(t.defined() && (t.is_hpu() || t.is_cpu()) && t.is_contiguous(), "[ProcessGroup] ", call,
              ": expected a contiguous tensor on hpu or cpu, got ",
              t.defined() ? t.toString() : std::string("an undefined one"));
  if (const auto tag = tag_of_memory(t)) tag->check_access(call, t);  // codes would go without their scales
  TORCH_CHECK(other >= 0 && other < group.size() && other != group.rank(), "[ProcessGroup] ", call, ": found rank ",
              other, ", allowed: another of the ", group.size(), " than ", group.rank());
}

}  // namespace

struct Transfer::State {
  c10::intrusive_ptr<c10d::Work> work;  ///< null: there is nothing to send
  at::Tensor tensor;                    ///< its memory is what travels
  std::string call;
  ProcessGroup& group;

  /// start(bytes of the tensor)
  template <class F>
  void begin(const F& start) {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> bytes = {cpu_alias(tensor.detach()).view({-1}).view(at::kByte)};
    try {
      work = start(*c10d_group(group)->getBackend(at::kCPU), bytes);
    } catch (const std::exception& error) {
      fail_transfer(call, error, group);
    }
  }
};

Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void Transfer::wait() {
  const auto state = std::exchange(state_, nullptr);
  if (state == nullptr || state->work == nullptr) return;
  try {
    state->work->wait();
  } catch (const std::exception& error) {
    fail_transfer(state->call, error, state->group);
  }
}

Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group) {
  check_transfer("send", tensor, to, group);
  auto state = std::make_unique<Transfer::State>(
      Transfer::State{nullptr, tensor, describe_transfer("send", " to rank ", tensor, to), group});
  state->begin([&](c10d::Backend& backend, std::vector<at::Tensor>& bytes) { return backend.send(bytes, to, kTag); });
  return Transfer(std::move(state));
}

Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group) {
  check_transfer("receive", tensor, from, group);
  tensor.unsafeGetTensorImpl()->bump_version();
  auto state = std::make_unique<Transfer::State>(
      Transfer::State{nullptr, tensor, describe_transfer("receive", " from rank ", tensor, from), group});
  state->begin([&](c10d::Backend& backend, std::vector<at::Tensor>& bytes) { return backend.recv(bytes, from, kTag); });
  return Transfer(std::move(state));
}

void send_text(const std::string& text, int to, ProcessGroup& group) {
  const at::Tensor length = at::empty({1}, at::kLong),
                   bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  send(length, to, group).wait();
  send(bytes, to, group).wait();
}

std::string receive_text(int from, ProcessGroup& group) {
  const at::Tensor length = at::empty({1}, at::kLong);
  receive(length, from, group).wait();
  const at::Tensor bytes = at::empty({*length.const_data_ptr<std::int64_t>()}, at::kByte);
  receive(bytes, from, group).wait();
  return {reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

}  // namespace fp8::runtime::distributed
