// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/module_types.h"

#include <atomic>

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
  for (const KindInfo& info : kKinds)
    if (static_cast<std::size_t>(info.kind) != next++) return false;
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
    {"LinearAllreduce", K::linear, true, /*in_inc=*/true, /*adds_ranks=*/true},
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

io::Registry<KindRow>& kind_table() {
  static auto& table = *new io::Registry<KindRow>;
  return table;
}

std::shared_ptr<const KindRow> find_own(ModuleKind kind) {
  return kind_table().find_if([&](const auto& row) { return row.row->kind.info.kind == kind; });
}

const ModuleType* find_type(std::span<const ModuleType> types, std::string_view class_name) {
  const auto type = std::ranges::find(types, class_name, &ModuleType::name);
  return type != types.end() ? &*type : nullptr;
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
  for (const std::string& name : kind.classes)
    if (!io::is_name(io::lower(name), "_"))
      io::fail<std::invalid_argument>("{}found the class {}, allowed: letters, digits and _, without a module path",
                                      where, io::in_quotes(name));
}

io::Registry<KindRow>::Entry entry_of(OwnKind kind) {
  static std::atomic<std::uint32_t> next = std::size(kKinds);  // no number is given twice
  check_own_kind(kind);
  const std::string quoted = io::in_quotes(kind.name), taken = io::message("module kind {}: the name is taken", quoted);
  if (parse_enum<ModuleKind>(kind.name).has_value()) throw std::invalid_argument(taken);
  const auto row = std::make_shared<KindRow>(KindRow{std::move(kind)});
  return {kind_table(), row->kind.name, row, taken, [&](const auto& others) {
            row->kind.info.kind = static_cast<ModuleKind>(next++);
            for (const std::string& name : row->kind.classes) {
              const auto has_it = [&](const auto& other) { return find_type(other.row->types, name) != nullptr; };
              if (find_type(kTypes, name) != nullptr || find_type(row->types, name) != nullptr ||
                  std::ranges::any_of(others, has_it))
                io::fail<std::invalid_argument>("module kind {}: the class {} is taken", quoted, io::in_quotes(name));
              row->types.push_back({name, row->kind.info.kind, row->kind.dynamic, /*in_inc=*/false});
            }
          }};
}

}  // namespace

const char* name_of(ModuleKind kind) {
  if (static_cast<std::size_t>(kind) < std::size(kKinds)) return fp8::name_of<ModuleKind>(kind);
  const auto own = find_own(kind);
  return own != nullptr ? own->kind.name.c_str() : "unknown";
}

std::span<const KindInfo> module_kinds() { return kKinds; }

const KindInfo* find_kind(ModuleKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  if (number < std::size(kKinds)) return &kKinds[number];
  const auto own = find_own(kind);
  return own != nullptr ? &own->kind.info : nullptr;
}

const KindInfo& info_of(ModuleKind kind) {
  if (const KindInfo* info = find_kind(kind)) return *info;
  io::fail<std::invalid_argument>("module kind {}: found none of that number; its registration has ended",
                                  static_cast<std::uint32_t>(kind));
}

std::vector<ModuleType> module_types() {
  std::vector<ModuleType> types(std::begin(kTypes), std::end(kTypes));
  for (const auto& row : kind_table().rows()) types.insert(types.end(), row.row->types.begin(), row.row->types.end());
  return types;
}

const ModuleType* find_module_type(std::string_view class_name) {
  if (const ModuleType* type = find_type(kTypes, class_name)) return type;
  const auto row =
      kind_table().find_if([&](const auto& own) { return find_type(own.row->types, class_name) != nullptr; });
  return row != nullptr ? find_type(row->types, class_name) : nullptr;
}

bool is_of_kind(std::string_view class_name, ModuleKind kind) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && type->kind == kind;
}

bool type_is(std::string_view class_name, bool KindInfo::*what) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && info_of(type->kind).*what;
}

bool adds_ranks(std::string_view class_name) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && type->adds_ranks;
}

bool is_linear(std::string_view class_name) { return type_is(class_name, &KindInfo::linear); }

KindRegistration::KindRegistration(OwnKind kind) : entry_(entry_of(std::move(kind))) {}

}  // namespace fp8::configs
