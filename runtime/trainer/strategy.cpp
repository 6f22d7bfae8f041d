// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/strategy.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <bit>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/distributed/meeting.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/lazy/lazy_mode.h"

namespace fp8::trainer {
namespace {

using runtime::distributed::ProcessGroup;

constexpr const char* kRankStates = "rank_states";

std::string rank_prefix(int rank) { return "rank." + std::to_string(rank) + "."; }

/// Names, dtypes and sizes: what broadcasts take for granted.
std::string layout_of(const TrainingState& state) {
  io::Fnv hash;
  for (const auto& [name, tensor] : state.tensors) hash.add(c10::str(name, tensor.scalar_type(), tensor.sizes()));
  return hash.text();
}

using runtime::distributed::DataParallel, runtime::distributed::FusedGradients;
using Parameters = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

class HpuParallel final : public Strategy {
 public:
  HpuParallel(Parameters parameters, std::shared_ptr<ProcessGroup> group)
      : parameters_(std::move(parameters)), group_(std::move(group)) {}
  void reduce() override { runtime::distributed::all_reduce_gradients(parameters_, *group_); }

 private:
  Parameters parameters_;
  std::shared_ptr<ProcessGroup> group_;
};

class FastDdp final : public Strategy {
 public:
  FastDdp(const Parameters& parameters, const Names& names, const std::shared_ptr<ProcessGroup>& group,
          at::ScalarType dtype)
      : gradients_(parameters, names, group, dtype) {}
  void reduce() override { gradients_.all_reduce(); }

 private:
  FusedGradients gradients_;
};

class HpuDdp final : public Strategy {
 public:
  HpuDdp(const Parameters& parameters, const Names& names, std::shared_ptr<ProcessGroup> group,
         const runtime::distributed::DataParallelOptions& options)
      : group_(std::move(group)),
        keeps_views_(options.gradient_as_bucket_view),
        ddp_(parameters, names, runtime::distributed::c10d_group(*group_), options) {}

  void before_last_forward() override { ddp_.before_forward(); }
  void backward(const at::Tensor& loss, bool last) override {
    if (!last) return Strategy::backward(loss, last);
    ddp_.before_backward({loss});
    const runtime::distributed::Waits waits(*group_, {"backward " + std::to_string(++backwards_), true});
    try {
      loss.backward();
      ddp_.after_backward();
    } catch (const std::exception& e) {  // c10d's own says what a socket said
      if (std::string_view(e.what()).find("[ProcessGroup]") != std::string_view::npos) throw;  // of the amaxes: it does
      if (std::string_view(e.what()).find("[DataParallel]") != std::string_view::npos) throw;
      const std::string gone = group_->who_is_gone();
      if (gone.empty()) throw;
      TORCH_CHECK(false, "[ProcessGroup] rank ", group_->rank(), " of ", group_->size(),
                  ": gradients of backward: ", runtime::distributed::first_line(e), " (", gone, ")");
    }
  }
  bool zero_gradients() override {
    if (keeps_views_) ddp_.zero_gradients();
    return keeps_views_;
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  bool keeps_views_;
  std::int64_t backwards_ = 0;
  DataParallel ddp_;
};

static_assert(kMostDevices == runtime::kMaxDevices);

int checked_count(std::optional<int> count, const std::string& found) {
  if (!count.has_value() || *count < 1 || *count > kMostDevices)
    io::fail<std::invalid_argument>("[HPUAccelerator] devices: found {}, allowed: 1 to {}, \"auto\", or nothing", found,
                                    kMostDevices);
  return *count;
}

Availability with_second_generation(at::ScalarType type, const char* name) {
  if (runtime::takes(type, runtime::DtypeUse::tensors)) return {};
  return {false, runtime::second_generation_required(name)};
}

c10::Device checked_device(c10::Device device) {
  if (!device.is_hpu()) io::fail<std::invalid_argument>("Device should be HPU, got {} instead.", device.str());
  return device.has_index() ? device : c10::Device(c10::kHPU, runtime::current_device());
}

}  // namespace

std::uint64_t values_checksum(const at::Tensor& tensor) {
  auto* in_fp8 = runtime::quantized_parameter(tensor);
  const at::Tensor here = (in_fp8 != nullptr ? in_fp8->values() : tensor.detach()).to(at::kCPU).contiguous();
  return io::checksum({static_cast<const char*>(here.const_data_ptr()), here.nbytes()});
}

bool MicroBatch::finite() const {
  return std::ranges::all_of(parts, [](const Part& part) { return std::isfinite(part.loss); });
}

bool MicroBatch::stop() const { return std::ranges::any_of(parts, &Part::stop); }
bool MicroBatch::end() const { return std::ranges::any_of(parts, &Part::end); }

bool MicroBatch::same_learning() const {
  return std::ranges::all_of(parts, [this](const Part& part) { return part.learning == parts[0].learning; });
}
bool MicroBatch::same_gradients() const {
  return std::ranges::all_of(parts, [this](const Part& part) { return part.gradients == parts[0].gradients; });
}

double MicroBatch::weight() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.weight;
  return sum;
}

std::int64_t MicroBatch::samples() const {
  std::int64_t sum = 0;
  for (const Part& part : parts) sum += part.samples;
  return sum;
}

MicroBatch exchange(const MicroBatch::Part& own, ProcessGroup* group) {
  if (group == nullptr) return {{own}};
  const double row[] = {own.loss,
                        own.weight,
                        static_cast<double>(own.samples),
                        own.stop ? 1.0 : 0.0,
                        own.end ? 1.0 : 0.0,
                        std::bit_cast<double>(own.learning),
                        std::bit_cast<double>(own.gradients)};
  const auto rows = runtime::distributed::all_gather(row, *group);
  MicroBatch all;
  for (std::size_t i = 0; i < rows.size(); i += std::size(row))
    all.parts.push_back({rows[i], rows[i + 1], static_cast<std::int64_t>(rows[i + 2]), rows[i + 3] != 0,
                         rows[i + 4] != 0, std::bit_cast<std::uint64_t>(rows[i + 5]),
                         std::bit_cast<std::uint64_t>(rows[i + 6])});
  return all;
}

void add_other_ranks(const TrainingState& own, TrainingState& state, ProcessGroup& group) {
  using namespace runtime::distributed;
  check_same({{"state", layout_of(own)}}, group, "checkpoint");
  const std::string json = own.json.dump();
  std::vector<double> sums = {std::bit_cast<double>(io::checksum(json))};
  for (const auto& [name, tensor] : own.tensors) sums.push_back(std::bit_cast<double>(values_checksum(tensor)));
  const auto all = all_gather(sums, group);
  const auto differs = [&](int rank, std::size_t i) {
    const std::size_t at = static_cast<std::size_t>(rank) * sums.size() + i;
    return std::bit_cast<std::uint64_t>(all[at]) != std::bit_cast<std::uint64_t>(all[i]);
  };
  const bool first = group.rank() == 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (differs(rank, 0)) {
      const auto text = broadcast_text(json, group, rank);
      if (first) state.json[kRankStates][std::to_string(rank)] = io::parse_json(text, "checkpoint");
    }
    std::size_t i = 0;
    for (const auto& [name, tensor] : own.tensors) {
      if (!differs(rank, ++i)) continue;
      const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
      const at::Tensor sent = group.rank() == rank ? here : at::empty_like(here);
      group.broadcast(sent, rank);
      if (first) state.tensors[rank_prefix(rank) + name] = sent;
    }
  }
}

void take_own_part(TrainingState& state, int rank, int ranks) {
  if (rank == 0 || state.json.value("ranks", 1) != ranks) return;
  const std::string prefix = rank_prefix(rank);
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(prefix)) own[name.substr(prefix.size())] = tensor;
  for (auto& [name, tensor] : own) state.tensors[name] = std::move(tensor);
  const auto states = state.json.value(kRankStates, io::Json::object());
  if (const auto mine = states.find(std::to_string(rank)); mine != states.end()) state.json.update(*mine);
}

TrainingState load_on_all(const std::function<TrainingState()>& load, ProcessGroup& group) {
  TrainingState state;
  const auto head = runtime::distributed::from_first(
      [&] {
        state = load();
        io::Json tensors = io::Json::object();
        for (const auto& [name, tensor] : state.tensors) tensors[name] = runtime::distributed::form_of(tensor);
        return io::Json{{"json", state.json}, {"tensors", std::move(tensors)}}.dump();
      },
      group);
  if (group.rank() != 0) {
    const auto json = io::parse_json(head, "checkpoint");
    state.json = json.at("json");
    for (const auto& [name, form] : json.at("tensors").items())
      state.tensors[name] = runtime::distributed::empty_of_form(form);
  }
  for (const auto& [name, tensor] : state.tensors) group.broadcast(tensor, 0);
  return state;
}

void Strategy::backward(const at::Tensor& loss, bool /*last*/) { loss.backward(); }

StrategyKind resolve_strategy(StrategyKind kind, int ranks) {
  if (kind == StrategyKind::automatic) return ranks > 1 ? StrategyKind::hpu_parallel : StrategyKind::hpu_single;
  if (kind == StrategyKind::hpu_single && ranks > 1)
    io::fail<std::invalid_argument>(
        "[trainer] strategy: found hpu_single with {} ranks, allowed: auto, hpu_parallel, hpu_ddp, fast_ddp", ranks);
  return ranks > 1 ? kind : StrategyKind::hpu_single;
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, const Parameters& parameters,
                                        const Names& names, const std::shared_ptr<ProcessGroup>& group) {
  const auto kind = resolve_strategy(options.kind, group != nullptr ? group->size() : 1);
  switch (kind) {
    case StrategyKind::hpu_parallel: return std::make_unique<HpuParallel>(parameters, group);
    case StrategyKind::hpu_ddp: return std::make_unique<HpuDdp>(parameters, names, group, options.ddp);
    case StrategyKind::fast_ddp:
      return std::make_unique<FastDdp>(parameters, names, group, options.fusion_buffer_dtype);
    default: return std::make_unique<Strategy>();
  }
}

bool HPUAccelerator::is_available() {
  try {
    return auto_device_count() > 0;
  } catch (const c10::Error&) {
    return false;
  }
}

int HPUAccelerator::auto_device_count() { return runtime::device_count(); }

std::optional<int> HPUAccelerator::parse_devices(const Devices& devices) {
  if (std::holds_alternative<std::vector<int>>(devices))
    throw std::invalid_argument("`devices` for `HPUAccelerator` must be int, string or None.");
  if (const int* count = std::get_if<int>(&devices)) return checked_count(*count, std::to_string(*count));
  const auto* text = std::get_if<std::string>(&devices);
  if (text == nullptr) return std::nullopt;
  if (*text == "auto") return auto_device_count();
  return checked_count(io::parse_integer(*text, 1, kMostDevices), io::in_quotes(*text));
}

std::vector<c10::Device> HPUAccelerator::get_parallel_devices(int devices) {
  checked_count(devices, std::to_string(devices));
  return std::vector<c10::Device>(static_cast<std::size_t>(devices), c10::Device(c10::kHPU));
}

std::string HPUAccelerator::get_device_name() { return name_of(runtime::device_kind()); }

bool HPUAccelerator::is_lazy() { return runtime::is_lazy_mode(); }
Availability HPUAccelerator::is_fp8_available() { return with_second_generation(at::kFloat8_e4m3fn, "FP8"); }
Availability HPUAccelerator::is_fp16_available() { return with_second_generation(at::kHalf, "FP16"); }

std::map<std::string, std::uint64_t> HPUAccelerator::get_device_stats(c10::Device device) {
  std::map<std::string, std::uint64_t> stats;
  for (const auto& [name, value] : runtime::by_name(runtime::memory_stats(checked_device(device).index())))
    stats[name] = static_cast<std::uint64_t>(value);
  return stats;
}

void HPUAccelerator::setup_device(c10::Device device) {
  runtime::init();
  c10::impl::getDeviceGuardImpl(c10::kHPU)->setDevice(checked_device(device));
}

AcceleratorKind resolve_accelerator(AcceleratorKind kind) {
  if (kind == AcceleratorKind::cpu) return kind;
  if (HPUAccelerator::is_available()) return AcceleratorKind::hpu;
  if (kind == AcceleratorKind::hpu)
    throw std::invalid_argument("[trainer] accelerator: found hpu, where there is none, allowed: auto, cpu");
  return AcceleratorKind::cpu;
}

c10::Device device_of(AcceleratorKind kind) {
  return c10::Device(resolve_accelerator(kind) == AcceleratorKind::hpu ? c10::kHPU : c10::kCPU);
}

}  // namespace fp8::trainer
