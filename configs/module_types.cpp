// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/module_types.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {

namespace {

using K = ModuleKind;

constexpr KindInfo kKinds[] = {
    {.kind = K::linear,
     .inputs = 1,
     .outputs = 1,
     .weight = true,
     .linear = true,
     .stacks_experts = true,
     .fake_quant = true},
    {.kind = K::row_parallel_linear,
     .inputs = 1,
     .outputs = 2,
     .weight = true,
     .outputs_always = true,
     .reduces = true,
     .linear = true,
     .fake_quant = true},
    {.kind = K::convolution, .inputs = 1, .outputs = 1, .weight = true, .convolution = true},
    {.kind = K::recurrent, .inputs = 1, .outputs = 1, .weight = true, .several_weights = true},
    {.kind = K::embedding, .inputs = 1, .outputs = 1, .weight = true, .lookup = true},
    {.kind = K::matmul, .inputs = 2, .outputs = 1, .product = true, .attention = true, .fake_quant = true},
    {.kind = K::b2b_matmul, .inputs = 2, .outputs = 1, .outputs_always = true, .product = true, .attention = true},
    {.kind = K::softmax, .inputs = 1, .outputs = 1, .outputs_always = true, .attention = true},
    {.kind = K::fused_sdpa, .inputs = 3, .outputs = 2, .outputs_always = true, .attention = true},
    {.kind = K::kv_cache, .inputs = 1, .outputs = 1, .cache = true},
    {.kind = K::dynamic_moe, .inputs = 1, .outputs = 1, .outputs_always = true, .experts = true},
    {.kind = K::no_quantize, .quantized = false},
};

constexpr bool each_kind_has_its_row() {
  std::size_t next = 0;
  for (const KindInfo& info : kKinds) {
    if (static_cast<std::size_t>(info.kind) != next++) return false;
  }
  return next == static_cast<std::size_t>(ModuleKind::no_quantize) + 1;
}
static_assert(each_kind_has_its_row(), "a row for each ModuleKind, in their order");

/// INC's classes, and ours.
constexpr ModuleType kTypes[] = {
    {"Linear", K::linear, true},
    {"FalconLinear", K::linear, true},
    {"LinearLayer", K::linear, true},
    {"ParallelLMHead", K::linear, true},
    {"RowParallelLinear", K::row_parallel_linear, true},
    {"ColumnParallelLinear", K::linear, true},
    {"MergedColumnParallelLinear", K::linear, true},
    {"QKVParallelLinear", K::linear, true},
    {"ReplicatedLinear", K::linear, true},
    {"LinearAllreduce", K::linear, true},
    {"ScopedLinearAllReduce", K::linear, true},
    {"LmHeadLinearAllreduce", K::linear, true},
    {"LoRACompatibleLinear", K::linear, true},
    {"LoRALinear", K::linear, true, false},
    {"Conv2d", K::convolution, false},
    {"LoRACompatibleConv", K::convolution, false},
    {"Conv1d", K::convolution, false, false},
    {"Conv3d", K::convolution, false, false},
    {"LSTMCell", K::recurrent, false, false},
    {"GRUCell", K::recurrent, false, false},
    {"RNNCell", K::recurrent, false, false},
    {"LSTM", K::recurrent, false, false},
    {"GRU", K::recurrent, false, false},
    {"RNN", K::recurrent, false, false},
    {"Embedding", K::embedding, false, false},
    {"EmbeddingBag", K::embedding, false},
    {"Matmul", K::matmul, true},
    {"B2BMatmul", K::b2b_matmul, true},
    {"Softmax", K::softmax, false},
    {"BlockSoftmaxConstMax", K::softmax, false},
    {"ModuleFusedSDPA", K::fused_sdpa, false},
    {"KVCache", K::kv_cache, false},
    {"VLLMKVCache", K::kv_cache, true},
    {"MoeMatmul", K::linear, true},
    {"MoeFP8Matmul", K::linear, true},
    {"GaudiFP8Linear", K::linear, false},
    {"GaudiMixtralSparseMoeBlock", K::dynamic_moe, false},
    {"GaudiDeepseekV3MoE", K::dynamic_moe, false},
    {"VllmMixtureOfExpertsOp", K::dynamic_moe, true},
    {"VllmMixtureOfExpertsOpFP8", K::dynamic_moe, true},
    {"VllmMixtureOfExpertsOpFP8PerChannel", K::dynamic_moe, true},
    {"FusedMoE", K::no_quantize, true},
    {"SharedFusedMoE", K::no_quantize, true},
};

/// A registered kind, and its classes.
struct OwnRow {
  std::shared_ptr<const OwnKind> kind;
  std::vector<ModuleType> types;
};

/// What KindRegistrations added.
struct RegisteredKinds {
  std::mutex mutex;
  std::vector<OwnRow> rows;
  std::uint32_t next = std::size(kKinds);  ///< no number is given twice
};

RegisteredKinds& registered_kinds() {
  static RegisteredKinds table;
  return table;
}

/// With the table's mutex held.
const OwnKind* find_own(const RegisteredKinds& table, ModuleKind kind) {
  const auto is_it = [&](const OwnRow& row) { return row.kind->info.kind == kind; };
  const auto row = std::find_if(table.rows.begin(), table.rows.end(), is_it);
  return row != table.rows.end() ? row->kind.get() : nullptr;
}

const ModuleType* find_type(const RegisteredKinds& table, std::string_view class_name) {
  for (const ModuleType& type : kTypes) {
    if (type.name == class_name) return &type;
  }
  for (const OwnRow& row : table.rows) {
    for (const ModuleType& type : row.types) {
      if (type.name == class_name) return &type;
    }
  }
  return nullptr;
}

void check_own_kind(const OwnKind& kind) {
  if (!io::is_name(kind.name, "_"))
    io::fail<std::invalid_argument>("module kind: found the name {}, allowed: lower case letters, digits and _",
                                    io::in_quotes(kind.name));
  const std::string where = "module kind " + io::in_quotes(kind.name) + ": ";
  if (kind.info.weight) io::fail<std::invalid_argument>("{}found one with a weight, allowed: without", where);
  if (kind.info.inputs < 1)
    io::fail<std::invalid_argument>("{}expected an input or more, found {}", where, kind.info.inputs);
  if (kind.classes.empty()) io::fail<std::invalid_argument>("{}expected a class or more, found none", where);
  for (const std::string& name : kind.classes) {
    if (!io::is_name(io::lower(name), "_"))
      io::fail<std::invalid_argument>("{}found the class {}, allowed: letters, digits and _, without a module path",
                                      where, io::in_quotes(name));
  }
}

}  // namespace

const char* name_of(ModuleKind kind) {
  if (static_cast<std::size_t>(kind) < std::size(kKinds)) return fp8::name_of<ModuleKind>(kind);
  auto& table = registered_kinds();
  const std::lock_guard lock(table.mutex);
  const OwnKind* own = find_own(table, kind);
  return own != nullptr ? own->name.c_str() : "unknown";
}

std::span<const KindInfo> module_kinds() { return kKinds; }

const KindInfo* find_kind(ModuleKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  if (number < std::size(kKinds)) return &kKinds[number];
  auto& table = registered_kinds();
  const std::lock_guard lock(table.mutex);
  const OwnKind* own = find_own(table, kind);
  return own != nullptr ? &own->info : nullptr;
}

const KindInfo& info_of(ModuleKind kind) {
  if (const KindInfo* info = find_kind(kind)) return *info;
  io::fail<std::invalid_argument>("module kind {}: found none of that number; its registration has ended",
                                  static_cast<std::uint32_t>(kind));
}

std::vector<ModuleType> module_types() {
  std::vector<ModuleType> types(std::begin(kTypes), std::end(kTypes));
  auto& table = registered_kinds();
  const std::lock_guard lock(table.mutex);
  for (const OwnRow& row : table.rows) types.insert(types.end(), row.types.begin(), row.types.end());
  return types;
}

const ModuleType* find_module_type(std::string_view class_name) {
  auto& table = registered_kinds();
  const std::lock_guard lock(table.mutex);
  return find_type(table, class_name);
}

bool is_of_kind(std::string_view class_name, ModuleKind kind) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && type->kind == kind;
}

bool type_is(std::string_view class_name, bool KindInfo::*what) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && info_of(type->kind).*what;
}

bool is_linear(std::string_view class_name) { return type_is(class_name, &KindInfo::linear); }

KindRegistration::KindRegistration(OwnKind kind) {
  check_own_kind(kind);
  auto& table = registered_kinds();
  const std::lock_guard lock(table.mutex);
  const auto same_name = [&](const OwnRow& row) { return row.kind->name == kind.name; };
  if (parse_enum<ModuleKind>(kind.name).has_value() || std::any_of(table.rows.begin(), table.rows.end(), same_name))
    io::fail<std::invalid_argument>("module kind {}: the name is taken", io::in_quotes(kind.name));
  kind.info.kind = static_cast<ModuleKind>(table.next);
  const auto own = std::make_shared<const OwnKind>(std::move(kind));
  std::vector<ModuleType> types;
  for (const std::string& name : own->classes) {
    const auto is_it = [&](const ModuleType& type) { return type.name == name; };
    if (find_type(table, name) != nullptr || std::any_of(types.begin(), types.end(), is_it))
      io::fail<std::invalid_argument>("module kind {}: the class {} is taken", io::in_quotes(own->name),
                                      io::in_quotes(name));
    types.push_back({name, own->info.kind, own->dynamic, /*in_inc=*/false});
  }
  table.rows.push_back({own, std::move(types)});
  ++table.next;
  own_ = own;
}

KindRegistration::~KindRegistration() {
  auto& table = registered_kinds();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.rows, [&](const OwnRow& row) { return row.kind == own_; });
}

}  // namespace fp8::configs
