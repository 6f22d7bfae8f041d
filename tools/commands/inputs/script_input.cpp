// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/script_input.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/print_handler.h>

#include <cstring>

#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kBatch = 8;
constexpr int kMaxDepth = 16;  // of tuples in tuples

bool sets_attributes(at::ArrayRef<const torch::jit::Block*> blocks) {
  for (const auto* block : blocks)
    for (const torch::jit::Node* node : block->nodes())
      if (node->kind() == torch::jit::prim::SetAttr || sets_attributes(node->blocks())) return true;
  return false;
}

/// Device constants in the code of a function, and of the free functions that it calls, become `device`; tensor
/// constants go there.
void move_constants(torch::jit::Function& function, const c10::Device& device, std::set<torch::jit::Function*>& done);

void move_constants(torch::jit::Block* block, const c10::Device& device, std::set<torch::jit::Function*>& done) {
  for (torch::jit::Node* node : block->nodes()) {
    for (auto* inner : node->blocks()) move_constants(inner, device, done);
    constexpr auto kValue = torch::jit::attr::value;
    const bool constant = node->kind() == torch::jit::prim::Constant && node->hasAttribute(kValue);
    if (constant && node->output()->type()->kind() == c10::TypeKind::DeviceObjType) {
      node->s_(kValue, device.str());
    } else if (constant && node->kindOf(kValue) == torch::jit::AttributeKind::t) {
      node->t_(kValue, node->t(kValue).to(device));
    } else if (node->kind() == torch::jit::prim::CallFunction) {
      if (const auto type = node->input(0)->type()->cast<c10::FunctionType>())
        move_constants(*type->function(), device, done);
    }
  }
}

void move_constants(torch::jit::Function& function, const c10::Device& device, std::set<torch::jit::Function*>& done) {
  auto* code = torch::jit::tryToGraphFunction(function);
  if (code == nullptr || !done.insert(&function).second) return;
  code->ensure_defined();
  move_constants(code->graph()->block(), device, done);
}

/// The last line of a message with its kind, "RuntimeError: ", taken off; TorchScript puts the trace of its code before
/// it.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  constexpr std::string_view kKind = "\nRuntimeError: ";
  if (const auto kind = text.rfind(kKind); kind != std::string::npos) return text.substr(kind + kKind.size());
  return text.substr(text.rfind('\n') + 1);
}

/// forward's arguments without self.
std::vector<c10::Argument> forward_arguments(const torch::jit::Module& model) {
  const auto all = model.get_method("forward").function().getSchema().arguments();
  return {all.begin() + 1, all.end()};
}

bool is_tensor(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::TensorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::TensorType;
}

bool is_number(const c10::Argument& argument) {
  const auto kind = argument.type()->kind();
  return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType || kind == c10::TypeKind::BoolType;
}

/// A tensor of one element as the number that the argument takes.
c10::IValue number_of(const at::Tensor& tensor, const c10::Argument& argument, const std::string& file) {
  if (tensor.numel() != 1)
    io::fail<io::Error>("{}: {}: found {} elements, allowed: 1 (forward takes {})", file, argument.name(),
                        tensor.numel(), argument.type()->str());
  if (argument.type()->kind() == c10::TypeKind::FloatType) return tensor.item().toDouble();
  if (tensor.is_floating_point())
    io::fail<io::Error>("{}: {}: found {}, allowed: an integer (forward takes {})", file, argument.name(),
                        c10::toString(tensor.scalar_type()), argument.type()->str());
  if (argument.type()->kind() == c10::TypeKind::BoolType) return tensor.item().toBool();
  return tensor.item().toLong();
}

void collect(const c10::IValue& value, const std::string& name, int depth,
             std::vector<std::pair<std::string, at::Tensor>>& out) {
  if (depth > kMaxDepth) io::fail<io::Error>("forward's result: found more than {} levels", kMaxDepth);
  if (value.isNone()) return;
  if (value.isTensor()) {
    out.emplace_back(name, value.toTensor());
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    for (std::size_t i = 0; i < elements.size(); ++i)
      collect(elements[i], name + "." + std::to_string(i), depth + 1, out);
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (std::size_t i = 0; i < list.size(); ++i) collect(list[i], name + "." + std::to_string(i), depth + 1, out);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      if (!item.key().isString())
        io::fail<io::Error>("forward's result: found a dict with keys that are {}, allowed: strings",
                            item.key().tagKind());
      collect(item.value(), name + "." + item.key().toStringRef(), depth + 1, out);
    }
  } else {
    io::fail<io::Error>("forward's result: {} is {}, allowed: tensors, tuples, lists and dicts of them", name,
                        value.tagKind());
  }
}

}  // namespace

torch::jit::Module load_script(const std::filesystem::path& path, const Context& context) {
  // The file's own prints are untrusted text and no part of the result on stdout.
  torch::jit::setPrintHandler([](const std::string& text) { write_stderr(one_line(text) + "\n"); });
  torch::jit::Module model = read_script(path);
  if (!model.find_method("forward").has_value())
    io::fail<io::Error>("{}: the module has no method 'forward'", path.string());
  model.eval();
  const auto device = resolve_device(context);
  model.to(device);
  std::set<torch::jit::Function*> done;
  for (const auto& module : model.modules())
    for (auto* method : module.type()->methods()) move_constants(*method, device, done);
  if (const auto dtype = compute_dtype(context)) model.to(*dtype);
  const auto reset = model.find_method("reset_states");
  if (reset.has_value() && reset->function().getSchema().arguments().size() == 1) (*reset)({});
  return model;
}

c10::IValue call_forward(torch::jit::Module& model, std::vector<c10::IValue> arguments,
                         const std::filesystem::path& path) {
  try {
    return model.forward(std::move(arguments));
  } catch (const c10::Error& error) {
    io::fail<io::Error>("{}: forward failed: {}", path.string(), last_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    io::fail<io::Error>("{}: forward failed: {}", path.string(), last_line(what_of(error)));
  }
}

bool keeps_state(const torch::jit::Module& model) {
  for (const auto& module : model.modules()) {
    for (const auto& method : module.get_methods()) {
      const torch::jit::Block* block = method.graph()->block();
      if (sets_attributes(block)) return true;
    }
  }
  return false;
}

ScriptInputs::ScriptInputs(const std::filesystem::path& data, const torch::jit::Module& model,
                           const ScriptDataOptions& options) {
  const auto extension = data.extension();
  if (extension == ".wav")
    read_sound(data, model, options.chunk);
  else if (extension == ".safetensors")
    read_tensors(data, model);
  else
    io::fail<io::Error>("{}: a TorchScript model takes its inputs from a .safetensors or .wav file", data.string());
  const std::int64_t all = samples_;
  first_ = std::min(options.skip, all);
  samples_ = std::min(options.samples < 0 ? all : options.samples, all - first_);
  if (samples_ <= 0) io::fail<io::Error>("{}: found {} samples, --skip passes over all of them", data.string(), all);
  batch_ = options.batch > 0 ? options.batch : keeps_state(model) ? 1 : kBatch;
}

void ScriptInputs::read_tensors(const std::filesystem::path& data, const torch::jit::Module& model) {
  const io::Checkpoint file(data);
  const std::string name = data.string();
  samples_ = -1;
  std::size_t needed = 0;  // trailing defaults are left to forward
  for (const auto& argument : forward_arguments(model)) {
    Argument a{argument.name(), {}, {}};
    if (!file.contains(argument.name())) {
      if (!argument.default_value().has_value())
        io::fail<io::Error>("{}: expected a tensor '{}' (forward's argument of type {}), found none", name,
                            argument.name(), argument.type()->str());
      a.value = *argument.default_value();
    } else if (at::Tensor t = models::read_tensor(file, argument.name()); is_tensor(argument)) {
      if (t.dim() < 1 || t.size(0) == 0 || (samples_ >= 0 && t.size(0) != samples_))
        io::fail<io::Error>("{}: {}: expected the same number of samples, at least one, in dimension 0 of every input",
                            name, argument.name());
      samples_ = t.size(0);
      a.tensor = std::move(t);
      needed = arguments_.size() + 1;
    } else if (is_number(argument)) {
      a.value = number_of(t, argument, name);
      needed = arguments_.size() + 1;
    } else {
      io::fail<io::Error>("{}: {}: forward takes {}, allowed: Tensor, int, float, bool", name, argument.name(),
                          argument.type()->str());
    }
    arguments_.push_back(std::move(a));
  }
  if (samples_ < 0) io::fail<io::Error>("{}: expected a tensor for one of forward's arguments, found none", name);
  arguments_.resize(needed);
}

void ScriptInputs::read_sound(const std::filesystem::path& data, const torch::jit::Module& model, std::int64_t chunk) {
  const Wav wav = read_wav(data);
  const std::string name = data.string();
  const auto frames = static_cast<std::int64_t>(wav.samples.size());
  samples_ = frames / chunk;
  if (samples_ == 0)
    io::fail<io::Error>("{}: found {} frames, allowed: at least one chunk of {} (--chunk)", name, frames, chunk);
  bool sound_given = false;
  for (const auto& argument : forward_arguments(model)) {
    Argument a{argument.name(), {}, {}};
    const bool rate = argument.name() == "sr" || argument.name() == "sample_rate" || argument.name() == "sampling_rate";
    if (!sound_given && is_tensor(argument)) {
      a.tensor = at::from_blob(const_cast<float*>(wav.samples.data()), {samples_, chunk}, at::kFloat).clone();
      sound_given = true;
    } else if (rate && argument.type()->kind() == c10::TypeKind::IntType) {
      a.value = wav.sample_rate;
    } else if (argument.default_value().has_value()) {
      a.value = *argument.default_value();
    } else {
      io::fail<io::Error>(
          "{}: forward's argument '{}' of type {} is none that a .wav file gives, allowed: one Tensor, an int sr", name,
          argument.name(), argument.type()->str());
    }
    arguments_.push_back(std::move(a));
  }
  if (!sound_given) io::fail<io::Error>("{}: forward takes no Tensor, expected one for the sound", name);
}

std::vector<c10::IValue> ScriptInputs::arguments(std::int64_t first, std::int64_t count, at::Device device,
                                                 std::optional<at::ScalarType> dtype) const {
  std::vector<c10::IValue> values;
  for (const auto& a : arguments_) {
    if (!a.tensor.defined()) {
      values.push_back(a.value);
      continue;
    }
    const at::Tensor part = a.tensor.narrow(0, first_ + first, count);
    values.emplace_back((dtype.has_value() && part.is_floating_point() ? part.to(*dtype) : part).to(device));
  }
  return values;
}

std::vector<std::pair<std::string, at::Tensor>> output_tensors(const c10::IValue& value) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  collect(value, "output", 0, out);
  return out;
}

namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;
constexpr std::uint32_t kMaxRate = 768000, kMaxChannels = 64;
constexpr std::uint16_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;

struct Format {
  std::uint16_t code = 0, channels = 0, frame_bytes = 0, bits = 0;
  std::uint32_t rate = 0;
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Wav read() {
    if (bytes_.size() < 12 || bytes_.substr(0, 4) != "RIFF" || bytes_.substr(8, 4) != "WAVE")
      io::fail_at(name_, "found no RIFF/WAVE header, allowed: a .wav file of PCM or f32 samples");
    std::optional<Format> format;
    std::size_t at = 12;
    while (at + 8 <= bytes_.size()) {
      const auto id = bytes_.substr(at, 4);
      const std::uint64_t size = number<std::uint32_t>(bytes_, at + 4);
      at += 8;
      if (size > bytes_.size() - at)
        io::fail_at(name_, "chunk {}: found {} bytes, its header says {}", io::in_quotes(id), bytes_.size() - at, size);
      const auto chunk = bytes_.substr(at, size);
      if (id == "fmt ") format = parse_format(chunk);
      if (id == "data") {
        if (!format.has_value()) io::fail_at(name_, "found the chunk 'data' before 'fmt '");
        return decode(*format, chunk);
      }
      at += size + size % 2;
    }
    io::fail_at(name_, "found no chunk 'data'");
  }

 private:
  template <class T>
  static T number(std::string_view bytes, std::size_t at) {  // WAV is little-endian, as is every machine we build for
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }

  Format parse_format(std::string_view chunk) const {
    if (chunk.size() < 16) io::fail_at(name_, "chunk 'fmt ': found {} bytes, allowed: 16 or more", chunk.size());
    Format f;
    f.code = number<std::uint16_t>(chunk, 0);
    f.channels = number<std::uint16_t>(chunk, 2);
    f.rate = number<std::uint32_t>(chunk, 4);
    f.frame_bytes = number<std::uint16_t>(chunk, 12);
    f.bits = number<std::uint16_t>(chunk, 14);
    if (f.code == kExtensible) {
      if (chunk.size() < 40)
        io::fail_at(name_, "chunk 'fmt ': an extensible format of {} bytes, allowed: 40", chunk.size());
      f.code = number<std::uint16_t>(chunk, 24);
    }
    const bool known = (f.code == kPcm && (f.bits == 8 || f.bits == 16 || f.bits == 24 || f.bits == 32)) ||
                       (f.code == kFloat && f.bits == 32);
    if (!known)
      io::fail_at(name_, "found format {} of {} bits, allowed: PCM (1) of 8, 16, 24 or 32 bits, float (3) of 32",
                  f.code, f.bits);
    if (f.channels == 0 || f.channels > kMaxChannels)
      io::fail_at(name_, "found {} channels, allowed: 1 to {}", f.channels, kMaxChannels);
    if (f.rate == 0 || f.rate > kMaxRate)
      io::fail_at(name_, "found a sampling rate of {}, allowed: 1 to {}", f.rate, kMaxRate);
    if (f.frame_bytes != f.channels * (f.bits / 8))
      io::fail_at(name_, "found {} bytes per frame, allowed: {} (channels * bits / 8)", f.frame_bytes,
                  f.channels * (f.bits / 8));
    return f;
  }

  static double sample(const Format& f, std::string_view data, std::size_t at) {
    switch (f.bits) {
      case 8: return (static_cast<double>(static_cast<std::uint8_t>(data[at])) - 128.0) / 128.0;
      case 16: return number<std::int16_t>(data, at) / 32768.0;
      case 24: {
        const std::uint32_t u = static_cast<std::uint8_t>(data[at]) |
                                static_cast<std::uint32_t>(static_cast<std::uint8_t>(data[at + 1])) << 8 |
                                static_cast<std::uint32_t>(static_cast<std::uint8_t>(data[at + 2])) << 16;
        return (static_cast<std::int32_t>(u << 8) >> 8) / 8388608.0;
      }
      default:
        return f.code == kFloat ? static_cast<double>(number<float>(data, at))
                                : number<std::int32_t>(data, at) / 2147483648.0;
    }
  }

  Wav decode(const Format& f, std::string_view data) const {
    if (data.empty()) io::fail_at(name_, "found no samples");
    if (data.size() % f.frame_bytes != 0)
      io::fail_at(name_, "chunk 'data': found {} bytes, allowed: a multiple of the frame's {}", data.size(),
                  f.frame_bytes);
    Wav wav{f.rate, f.channels, std::vector<float>(data.size() / f.frame_bytes)};
    const std::size_t width = f.bits / 8;
    for (std::size_t i = 0; i < wav.samples.size(); ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < f.channels; ++c) sum += sample(f, data, i * f.frame_bytes + c * width);
      wav.samples[i] = static_cast<float>(sum / f.channels);
      if (!std::isfinite(wav.samples[i]))
        io::fail_at(name_, "frame {}: found NaN or infinity, allowed: finite samples", i);
    }
    return wav;
  }

  std::string_view bytes_;
  const std::string& name_;
};

}  // namespace

Wav parse_wav(std::string_view bytes, const std::string& name) { return Reader(bytes, name).read(); }

Wav read_wav(const std::filesystem::path& path) { return parse_wav(io::read_file(path, kMaxFile), path.string()); }

}  // namespace fp8::commands
