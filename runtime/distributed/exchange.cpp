// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/distributed/meeting.h"
#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::runtime::distributed {

void merge(std::span<double> values, ProcessGroup& group) {
  if (group.size() == 1 || values.empty()) return;
  const at::Tensor bits = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::memcpy(bits.mutable_data_ptr(), values.data(), values.size_bytes());
  group.all_reduce(bits, ReduceOp::sum);
  std::memcpy(values.data(), bits.const_data_ptr(), values.size_bytes());
}

std::vector<double> all_gather(std::span<const double> row, ProcessGroup& group) {
  std::vector<double> rows(row.size() * static_cast<std::size_t>(group.size()));
  std::copy(row.begin(), row.end(), rows.begin() + group.rank() * static_cast<std::ptrdiff_t>(row.size()));
  merge(rows, group);
  return rows;
}

std::string broadcast_text(std::string text, ProcessGroup& group, int root) {
  if (group.size() == 1) return text;
  const at::Tensor length = at::zeros({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  group.broadcast(length, root);
  const at::Tensor bytes = at::empty({length.item<std::int64_t>()}, at::kByte);
  if (group.rank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  group.broadcast(bytes, root);
  text.assign(reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel()));
  return text;
}

std::string from_first(const std::function<std::string()>& f, ProcessGroup& group) {
  std::string said;  // "+what it returned" or "-what it threw"
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      said = "+" + f();
    } catch (const std::exception& e) {
      failure = std::current_exception();
      said = "-" + text_of(e);
    }
  }
  try {
    said = broadcast_text(std::move(said), group);
  } catch (const std::exception&) {
    if (failure == nullptr) throw;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  if (said.starts_with('-')) io::fail<io::Error>("rank 0: {}", said.substr(1));
  return said.substr(1);
}

void on_first(const std::function<void()>& f, ProcessGroup* group) {
  if (group == nullptr || group->size() == 1) return f();
  const auto without_text = [&] {
    f();
    return std::string();
  };
  from_first(without_text, *group);
}

io::Json form_of(const at::Tensor& tensor) {
  return {{"dtype", static_cast<int>(tensor.scalar_type())}, {"sizes", tensor.sizes().vec()}};
}

at::Tensor empty_of_form(const io::Json& form) {
  return at::empty(form.at("sizes").get<std::vector<std::int64_t>>(),
                   static_cast<at::ScalarType>(form.at("dtype").get<int>()));
}

void check_same(const io::Json& values, ProcessGroup& group, const char* where) {
  if (group.size() == 1) return;
  const io::Json of_first = io::parse_json(broadcast_text(values.dump(), group), where);
  const auto own = io::first_difference(values, of_first);
  const std::string difference =
      own.has_value() ? own->path + ": found " + own->was + ", rank 0 has " + own->is : "keys without a value";
  const double differs = values == of_first ? 0 : 1;
  const auto all = all_gather({&differs, 1}, group);
  const auto found = std::find(all.begin(), all.end(), 1.0);
  if (found == all.end()) return;
  const auto rank = static_cast<int>(found - all.begin());
  TORCH_CHECK(false, "[", where, "] rank ", rank, " differs from rank 0: ", broadcast_text(difference, group, rank));
}

at::Tensor reduce(const at::Tensor& tensor, std::string_view op, ProcessGroup& group) {
  const bool mean = op == "mean" || op == "avg", least = op == "min";
  TORCH_CHECK_TYPE(mean || least || op == "sum" || op == "max", "Unsupported ReduceOp ", op,
                   ". Supported ops in HCCL are: sum, min, max");
  const at::NoGradGuard no_grad;
  const bool whole = tensor.scalar_type() == at::kLong;
  // The least is the largest of the negatives; of integers of the complements, which never overflow.
  at::Tensor result = mean && whole ? tensor.to(at::kFloat)
                      : least       ? (whole ? tensor.bitwise_not() : -tensor)
                                    : tensor.detach().clone();
  group.all_reduce(result, least || op == "max" ? ReduceOp::max : ReduceOp::sum);
  if (mean) result.div_(group.size());
  return !least ? result : whole ? result.bitwise_not_() : result.neg_();
}

namespace {

constexpr int kTag = 0;  // one for all: Gloo keeps the order of messages of a tag

[[noreturn]] void fail_transfer(const std::string& call, const std::exception& error, ProcessGroup& group) {
  std::string why = first_line(error);
  if (const std::string gone = group.who_is_gone(); !gone.empty()) why += " (" + gone + ")";
  TORCH_CHECK(false, "[ProcessGroup] rank ", group.rank(), " of ", group.size(), ": ", call, ": ", why);
}

/// "send of 12 elements of BFloat16 to rank 1"
std::string describe_transfer(const char* call, const char* direction, const at::Tensor& t, int other) {
  return io::message("{} of {} elements of {}{}{}", call, t.numel(), c10::toString(t.scalar_type()), direction, other);
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
