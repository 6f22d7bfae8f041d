// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/checkpoint_io.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <charconv>
#include <set>
#include <sstream>
#include <system_error>
#include <unordered_set>

#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/ops/common/file_dtype.h"
#include "fp8/runtime/optim/fused_optimizer.h"

namespace fp8::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "step-";

io::DType file_dtype(at::ScalarType dtype, const std::string& name) {
  if (const auto stored = runtime::ops::file_dtype(dtype)) return *stored;
  const auto names = runtime::ops::kFileDTypes |
                     std::views::transform([](const auto& row) { return std::string(c10::toString(row.first)); });
  io::fail<io::Error>("[trainer] tensor '{}': found dtype {}, allowed: {}", name, c10::toString(dtype),
                      io::joined(names));
}

at::ScalarType tensor_dtype(const fs::path& file, const io::TensorInfo& info) {
  if (const auto own = runtime::ops::tensor_dtype(info.dtype)) return *own;
  io::fail(file, "tensor '{}': found dtype {}, which LibTorch lacks", info.name, io::name_of(info.dtype));
}

/// The step in the name of a checkpoint's folder.
std::optional<std::int64_t> step_of(const fs::path& folder) {
  const auto name = folder.filename().string();
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto [stop, bad] = std::from_chars(name.data() + kFolderPrefix.size(), name.data() + name.size(), step);
  if (bad != std::errc() || stop != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

void copy_into(const at::Tensor& target, const TrainingState& state, const std::string& name) {
  const auto found = state.tensors.find(name);
  if (found == state.tensors.end()) io::fail<io::Error>("[trainer] checkpoint: tensor '{}' is missing", name);
  const auto& from = found->second;
  if (from.sizes() != target.sizes() || from.scalar_type() != target.scalar_type())
    throw io::Error(c10::str("[trainer] checkpoint: tensor '", name,
                             "' has another shape or dtype than the model's: found ", from.scalar_type(), " of sizes ",
                             from.sizes(), ", expected ", target.scalar_type(), " of sizes ", target.sizes()));
  if (!c10::isFloat8Type(target.scalar_type())) {
    target.copy_(from);
  } else if (runtime::quantized_parameter(target) != nullptr) {  // its scale is in the extra state
    target.view(at::kByte).copy_(from.view(at::kByte));
  } else if (!at::equal(target.view(at::kByte).cpu(), from.view(at::kByte))) {  // a frozen weight is as it was
    target.copy_(from);
  }
}

using io::Json;
using torch::serialize::InputArchive, torch::serialize::OutputArchive;

constexpr char kParameter = '@';  // "@name": the parameter of that name, where the archive has its address
constexpr int kMaxDepth = 32;

std::string address_of(const at::Tensor& tensor) {
  return std::to_string(reinterpret_cast<std::size_t>(tensor.unsafeGetTensorImpl()));
}

/// Archive -> tree.
struct Reader {
  std::map<std::string, std::string> names;  // address -> parameter
  std::string prefix;
  TrainingState& state;
  int count = 0;

  std::string named(const std::string& text) const {
    const auto found = names.find(text);
    return found == names.end() ? text : kParameter + found->second;
  }

  Json value(const c10::IValue& value) {
    if (value.isNone()) return {{"none", nullptr}};
    if (value.isTensor()) {
      const auto name = prefix + "." + std::to_string(count++);
      const auto& tensor = value.toTensor();
      state.tensors[name] = tensor;
      return {{"tensor", name}, {"device", tensor.is_cpu() ? "cpu" : "own"}};
    }
    if (value.isInt()) return {{"int", value.toInt()}};
    if (value.isDouble()) return {{"double", value.toDouble()}};
    if (value.isBool()) return {{"bool", value.toBool()}};
    if (value.isString()) return {{"string", named(value.toStringRef())}};
    const bool tuple = value.isTuple();
    if (!tuple && !value.isList())
      io::fail<io::Error>(
          "[trainer] {}: found a value of kind {}, allowed: None, Tensor, Int, Double, Bool, String, Tuple and lists "
          "of them",
          prefix, value.tagKind());
    Json items = Json::array();
    if (tuple)
      for (const auto& item : value.toTupleRef().elements()) items.push_back(this->value(item));
    else
      for (const auto& item : value.toListRef()) items.push_back(this->value(item));
    return {{tuple                  ? "tuple"
             : value.isDoubleList() ? "doubles"
             : value.isIntList()    ? "ints"
                                    : "list",
             std::move(items)}};
  }

  Json archive(InputArchive& archive) {
    Json entries = Json::object();
    auto keys = archive.keys();
    // By name: sorted by address, tensors would have other names in each process.
    std::ranges::sort(keys, {}, [this](const std::string& key) { return named(key); });
    for (const auto& key : keys) {
      c10::IValue found;
      archive.read(key, found);
      if (found.isObject()) {
        InputArchive inner;
        archive.read(key, inner);
        entries[named(key)] = this->archive(inner);
      } else {
        entries[named(key)] = value(found);
      }
    }
    return {{"archive", std::move(entries)}};
  }
};

/// Tree -> archive.
struct Writer {
  std::map<std::string, std::string> addresses;  // parameter -> address
  std::string where;
  const TrainingState& state;
  c10::Device device;

  [[noreturn]] void fail(const std::string& what) const {
    io::fail<io::Error>("[trainer] checkpoint, '{}': {}", where, what);
  }

  std::string addressed(const std::string& text) const {
    if (text.empty() || text[0] != kParameter) return text;
    const auto found = addresses.find(text.substr(1));
    if (found == addresses.end()) fail("parameter '" + text.substr(1) + "' is not one of the model");
    return found->second;
  }

  at::Tensor tensor(const Json& node) const {
    const auto found = state.tensors.find(node.at("tensor").get<std::string>());
    if (found == state.tensors.end()) fail("tensor '" + node.at("tensor").get<std::string>() + "' is missing");
    return node.value("device", "cpu") == "cpu" ? found->second : found->second.to(device);
  }

  c10::IValue value(const Json& node, int depth) const {
    if (depth > kMaxDepth || !node.is_object() || node.empty()) fail("found a value that is no archive entry");
    const auto& kind = node.begin().key();
    const auto& held = node.begin().value();
    if (kind == "none") return {};
    if (kind == "tensor") return tensor(node);
    if (kind == "int") return held.get<std::int64_t>();
    if (kind == "double") return held.get<double>();
    if (kind == "bool") return held.get<bool>();
    if (kind == "string") return addressed(held.get<std::string>());
    if (kind == "doubles" || kind == "ints") {
      c10::List<double> doubles;
      c10::List<std::int64_t> ints;
      for (const auto& item : held)
        kind == "ints" ? ints.push_back(value(item, depth + 1).toInt())
                       : doubles.push_back(value(item, depth + 1).toDouble());
      return kind == "ints" ? c10::IValue(ints) : c10::IValue(doubles);
    }
    if (kind != "tuple")
      fail("found kind '" + kind +
           "', allowed: archive, tensor, int, double, bool, string, tuple, ints, doubles, none");
    std::vector<c10::IValue> items;
    for (const auto& item : held) items.push_back(value(item, depth + 1));
    return c10::ivalue::Tuple::create(std::move(items));
  }

  void fill(OutputArchive& archive, const Json& node, int depth) const {
    if (depth > kMaxDepth || !node.is_object() || !node.contains("archive")) fail("found no archive");
    for (const auto& [key, entry] : node.at("archive").items()) {
      if (entry.is_object() && entry.contains("archive")) {
        OutputArchive inner(archive.compilation_unit());
        fill(inner, entry, depth + 1);
        archive.write(addressed(key), inner);
      } else if (entry.is_object() && entry.contains("tensor")) {
        archive.write(addressed(key), tensor(entry), /*is_buffer=*/true);
      } else {
        archive.write(addressed(key), value(entry, 0));
      }
    }
  }
};

/// Ours give their tensors without an archive between: {"learning_rates": [per group]}, tensors
/// NAME.GROUP.PARAMETER.KIND.
void save_fused(runtime::optim::FusedOptimizer& optimizer, const std::string& name, TrainingState& state) {
  Json rates = Json::array();
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  state.json[name] = {{"learning_rates", std::move(rates)}};
  for (auto& [key, tensor] : optimizer.tensors()) state.tensors[name + "." + key] = tensor;
}

void load_fused(runtime::optim::FusedOptimizer& optimizer, const std::string& name, const TrainingState& state) {
  auto& groups = optimizer.param_groups();
  const Json own = state.json.value(name, Json());
  const Json saved = own.is_object() ? own.value("learning_rates", Json()) : Json();
  if (saved.size() != groups.size())
    io::fail<io::Error>("[trainer] checkpoint: '{}': found learning_rates of {} groups, expected {}", name,
                        saved.size(), groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(saved[i].get<double>());
  optimizer.load_tensors(tensors_below(state.tensors, name + "."));
}

}  // namespace

void write_tensors(const fs::path& file, const std::map<std::string, at::Tensor>& tensors) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, file_dtype(tensor.scalar_type(), name), tensor.sizes().vec()});
  io::SafetensorsWriter writer(file, entries);
  for (const auto& [name, tensor] : tensors)
    writer.write(name, tensor.detach().to(at::kCPU).contiguous().const_data_ptr());
  writer.commit();
}

std::map<std::string, at::Tensor> read_tensors(const fs::path& path) {
  const io::SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& info : file.tensors()) {
    auto tensor = at::empty(info.shape, tensor_dtype(path, info));
    if (info.bytes() > 0) file.read(info, tensor.mutable_data_ptr());
    tensors.emplace(info.name, std::move(tensor));
  }
  return tensors;
}

void HPUCheckpointIO::save_checkpoint(const TrainingState& state, const fs::path& folder,
                                      const std::function<void(const fs::path&)>& fill,
                                      const std::optional<io::Json>& storage_options) const {
  if (storage_options)
    io::fail<std::invalid_argument>(
        "HPUCheckpointIO.save_checkpoint: storage_options is not supported, found {}, allowed: none",
        storage_options->dump());
  io::OutputDirectory output(folder, /*overwrite=*/true);
  if (fill) fill(output.temporary());
  write_tensors(output.file(kTensors), state.tensors);
  io::write_json(output.file(kJson), state.json);
  output.commit();
}

TrainingState HPUCheckpointIO::load_checkpoint(const fs::path& folder) const {
  TrainingState state;
  state.json = io::read_json(io::source_file(folder, kJson));
  if (!state.json.is_object()) io::fail(folder / kJson, "holds no JSON object");
  state.tensors = read_tensors(io::source_file(folder, kTensors));
  return state;
}

void HPUCheckpointIO::remove_checkpoint(const fs::path& folder) const {
  // The state first: a folder without it is no checkpoint any more, wherever removing stops.
  std::error_code error;
  fs::remove(folder / kJson, error);
  if (!error) fs::remove_all(folder, error);
  if (error) io::fail(folder, "can't be removed: {}", error.message());
}

fs::path checkpoint_folder(const fs::path& root, std::int64_t step) {
  const auto digits = std::to_string(step);
  return root / (std::string(kFolderPrefix) + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits);
}

void remove_incomplete_checkpoints(const fs::path& root) {
  std::error_code error;
  std::vector<fs::path> found;
  std::set<fs::path> cut_off;  // ".step-00000120.lock", ".step-00000120.partial-77": a write that was killed
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    if (step_of(it->path()) && !fs::exists(it->path() / HPUCheckpointIO::kJson)) found.push_back(it->path());
    const auto hidden = name[0] == '.' ? root / name.substr(1, name.find('.', 1) - 1) : fs::path();
    if (step_of(hidden)) cut_off.insert(hidden);
  }
  for (const auto& folder : found) fs::remove_all(folder, error);
  for (const auto& folder : cut_off) {
    try {
      const io::OutputDirectory leftovers(folder, /*overwrite=*/true);  // clears them; itself when it ends
    } catch (const io::Error&) {  // another run is writing it, or the disk is full: they stay
    }
  }
}

std::vector<std::int64_t> checkpoint_steps(const fs::path& root) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path());
    if (step && fs::exists(it->path() / HPUCheckpointIO::kJson)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::map<std::string, at::Tensor> tensors_below(const std::map<std::string, at::Tensor>& tensors,
                                                const std::string& prefix) {
  std::map<std::string, at::Tensor> found;
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it)
    found[it->first.substr(prefix.size())] = it->second;
  return found;
}

TrainingState extra_of(const TrainingState& state) {
  return {state.json.at("extra"), tensors_below(state.tensors, "extra.")};
}

void for_each_tensor(const torch::nn::Module& network,
                     const std::function<void(const std::string& name, const at::Tensor& tensor)>& call) {
  std::unordered_set<const void*> done;  // a tied weight comes up twice
  for (const auto& item : network.named_parameters())
    if (done.insert(item.value().unsafeGetTensorImpl()).second) call("parameter." + item.key(), item.value());
  for (const auto& item : network.named_buffers())
    if (item.value().defined() && done.insert(item.value().unsafeGetTensorImpl()).second)
      call("buffer." + item.key(), item.value());
}

void load_network(const torch::nn::Module& network, const TrainingState& state) {
  const at::NoGradGuard no_grad;
  std::unordered_set<std::string> known;
  for_each_tensor(network, [&](const std::string& name, const at::Tensor& tensor) {
    copy_into(tensor, state, name);
    known.insert(name);
  });
  // A part of a larger model would look like the whole of this one.
  for (const auto& [name, tensor] : state.tensors)
    if ((name.starts_with("parameter.") || name.starts_with("buffer.")) && !known.contains(name))
      io::fail<io::Error>("[trainer] checkpoint: tensor '{}' is not one of the model's", name);
}

void save_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    TrainingState& state) {
  if (auto* fused = dynamic_cast<runtime::optim::FusedOptimizer*>(&optimizer)) return save_fused(*fused, name, state);
  OutputArchive archive;
  optimizer.save(archive);
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive saved;
  saved.load_from(stream);
  Reader reader{{}, name, state};
  for (const auto& item : network.named_parameters()) reader.names.emplace(address_of(item.value()), item.key());
  state.json[name] = reader.archive(saved);
}

void load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    const TrainingState& state, c10::Device device) {
  if (auto* fused = dynamic_cast<runtime::optim::FusedOptimizer*>(&optimizer)) return load_fused(*fused, name, state);
  const auto found = state.json.find(name);
  if (found == state.json.end()) io::fail<io::Error>("[trainer] checkpoint: '{}' is missing", name);
  Writer writer{{}, name, state, device};
  for (const auto& item : network.named_parameters()) writer.addresses.emplace(item.key(), address_of(item.value()));
  OutputArchive archive;
  try {
    writer.fill(archive, *found, 0);
  } catch (const Json::exception& error) {
    writer.fail(error.what());
  }
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive saved;
  saved.load_from(stream);
  try {
    optimizer.load(saved);
  } catch (const c10::Error& error) {  // LibTorch asserts that it is the state of this kind of optimizer
    std::string what = error.what_without_backtrace();
    writer.fail("is not the state of this optimizer and these parameters: " + what.substr(0, what.find('\n')));
  }
}

}  // namespace fp8::trainer
