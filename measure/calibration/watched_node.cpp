// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/watched_node.h"

#include <tuple>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {

using configs::ModuleKind;

namespace {

bool all_seen(const std::vector<WatchedTensor>& tensors) {
  return std::ranges::all_of(tensors, [](const WatchedTensor& t) { return t.seen; });
}

std::vector<Amax> results(const std::vector<WatchedTensor>& tensors) {
  std::vector<Amax> list;
  for (const auto& t : tensors) list.push_back(t.observer->result());
  return list;
}

ModuleKind kind_of(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  if (known == nullptr) io::fail<io::Error>("[measure] type {} can't be measured", io::in_quotes(type));
  return known->kind;
}

}  // namespace

WatchedNode::WatchedNode(std::string module, const std::string& type, std::int64_t weight_dims, bool inputs,
                         bool outputs)
    : module_(std::move(module)),
      kind_(kind_of(type)),
      weight_dims_(weight_dims),
      holder_(type == "MoeMatmul" || type == "MoeFP8Matmul") {
  const auto& info = configs::info_of(kind_);
  watch_inputs_ = inputs && !info.lookup;
  watch_outputs_ = !info.lookup && (outputs || info.outputs_always);
  inputs_.resize(watch_inputs_ ? static_cast<std::size_t>(info.inputs) : 0);
  outputs_.resize(watch_outputs_ ? static_cast<std::size_t>(info.outputs) : 0);
}

bool WatchedNode::observes(TensorRole role) const {
  return role == TensorRole::input ? watch_inputs_ : role == TensorRole::output ? watch_outputs_ : true;
}

ObserverContext WatchedNode::context_for(TensorRole role, std::size_t index, const ObserverContext& base) const {
  const auto& info = configs::info_of(kind_);
  ObserverContext context = base;
  context.module = module_;
  context.kind = kind_;
  context.tensor =
      role == TensorRole::weight ? "weight" : (role == TensorRole::input ? "input" : "output") + std::to_string(index);
  context.channel_dim = -1;
  if (aside_) context.head_dim = -3;
  if (role == TensorRole::weight) {
    context.channel_dim = 0;
    context.per_expert = info.stacks_experts && weight_dims_ == 3;
  } else if (info.convolution) {
    context.channel_dim = 1 - weight_dims_;  // counted from the end: samples without a batch have it too
  } else if (role == TensorRole::input && index == 1 && info.product) {
    context.channel_dim = -2;
  }
  return context;
}

WatchedTensor& WatchedNode::tensor(TensorRole role, std::size_t index, const ObserverSettings& settings) {
  auto& list = role == TensorRole::input ? inputs_ : outputs_;
  if (role != TensorRole::weight && index >= list.size()) list.resize(index + 1);  // a mixture's experts
  WatchedTensor& t = role == TensorRole::weight ? weight_ : list[index];
  if (!t.observer) t.observer = settings.type.make(context_for(role, index, settings.context));
  return t;
}

std::optional<Measurement> WatchedNode::measurement() const {
  if (!all_seen(inputs_)) return std::nullopt;
  const auto& info = configs::info_of(kind_);
  Measurement m{module_, results(inputs_), std::nullopt, std::nullopt};
  if (info.reduces && watch_outputs_ && outputs_[0].seen) {
    // Without a second process what is reduced is what was computed here.
    const auto& reduced = outputs_[1].seen ? outputs_[1] : outputs_[0];
    m.outputs = std::vector<Amax>{outputs_[0].observer->result(), reduced.observer->result()};
  } else if (!outputs_.empty() && all_seen(outputs_)) {
    m.outputs = results(outputs_);
  }
  if (weight_.seen) m.weight = weight_.observer->result();
  const bool weight_alone = info.lookup && m.weight.has_value();
  const bool anything = !m.inputs.empty() || m.outputs.has_value() || weight_alone;
  return anything ? std::optional<Measurement>(std::move(m)) : std::nullopt;
}

io::Json WatchedNode::states() const {
  const auto list = [](const std::vector<WatchedTensor>& tensors) {
    io::Json states = io::Json::array();
    for (const auto& t : tensors) states.push_back(t.observer ? t.observer->state() : io::Json());
    return states;
  };
  io::Json json = {{"inputs", list(inputs_)}};
  if (!outputs_.empty() && all_seen(outputs_)) json["outputs"] = list(outputs_);
  if (weight_.seen) json["weight"] = weight_.observer->state();
  return json;
}

io::Json WatchedNode::snapshot() const {
  bool kept = true;
  const auto state_of = [&](const WatchedTensor& t) {
    io::Json state = t.seen ? t.observer->state() : io::Json();
    kept = kept && (!t.seen || !state.is_null());
    return state;
  };
  io::Json json = {{"inputs", io::Json::array()}, {"outputs", io::Json::array()}, {"weight", state_of(weight_)}};
  for (const auto& t : inputs_) json["inputs"].push_back(state_of(t));
  for (const auto& t : outputs_) json["outputs"].push_back(state_of(t));
  return kept ? json : io::Json();
}

void WatchedNode::restore(const io::Json& snapshot, const ObserverSettings& settings, const std::string& where) {
  const auto put_back = [&](TensorRole role, std::size_t index, const io::Json& state, const std::string& name) {
    if (state.is_null()) return;
    WatchedTensor& t = tensor(role, index, settings);
    t.observer->restore(state, where + "." + name);
    t.seen = true;
  };
  for (const auto& [role, key, known] : {std::tuple{TensorRole::input, "inputs", inputs_.size()},
                                         std::tuple{TensorRole::output, "outputs", outputs_.size()}}) {
    const io::Json list = snapshot.is_object() ? snapshot.value(key, io::Json()) : io::Json();
    constexpr std::size_t kMost = 1 << 16;  // outputs: one for each expert of a mixture
    if (!list.is_array() || list.size() > kMost || (known == 0 && !list.empty()))
      bad_state(where + "." + key, "a list of states", list);
    for (std::size_t i = 0; i < list.size(); ++i)
      put_back(role, i, list[i], std::string(key) + "[" + std::to_string(i) + "]");
  }
  put_back(TensorRole::weight, 0, snapshot.value("weight", io::Json()), "weight");
}

void WatchedNode::forget_outputs() {
  for (auto& t : outputs_) t = WatchedTensor();
}

float amax_of(const at::Tensor& t) {
  at::Tensor host = runtime::cpu_alias(t.detach());
  if (!runtime::ops::is_high_precision(host.scalar_type())) host = host.to(at::kFloat);
  // A permuted tensor is read as it lies in memory.
  if (!host.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) host = host.contiguous();
  return kernels::amax(host.const_data_ptr(), runtime::ops::float_type_of(host.scalar_type()), host.numel());
}

TensorMemory::Entry& TensorMemory::find(const at::Tensor& t, bool read) {
  const auto look = [&] { return Entry{read ? amax_of(t) : 0.0f, {}}; };
  // Inference tensors have no version to tell whether they were written to since; a weak pointer to a watched weight
  // would keep its tag, and with it the calibration, for ever.
  if (t.is_inference() || runtime::find_tag(t) != nullptr) return uncached_ = look();
  const auto version = static_cast<std::uint32_t>(t._version());
  for (Slot& slot : slots_) {
    if (slot.tensor._unsafe_get_target() == t.unsafeGetTensorImpl() && slot.version == version) return slot.entry;
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  slot.entry = look();
  slot.tensor = WeakTensor(t.getIntrusivePtr());
  slot.version = version;
  return slot.entry;
}

void TensorMemory::clear() {
  for (Slot& slot : slots_) slot = Slot();
  uncached_ = Entry();
}

}  // namespace fp8::measure
