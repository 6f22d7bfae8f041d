// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <caffe2/serialize/file_adapter.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/operator_upgraders/upgraders_entry.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/import_source.h>

#include <algorithm>
#include <new>

#include "fp8/runtime/intercept/module_handler.h"
#include "fp8/runtime/io/base/fail.h"
#include "fp8/tools/commands/inputs/script_input.h"

namespace fp8::commands {
namespace {

using caffe2::serialize::PyTorchStreamReader;
using Object = c10::intrusive_ptr<c10::ivalue::Object>;

constexpr std::size_t kMaxCode = 64 << 20;  // bytes of all code, which is compressed in the file

/// Compiles the code of a file and unpickles its objects; runs none of it.
class ScriptArchive {
 public:
  ScriptArchive(std::shared_ptr<caffe2::serialize::ReadAdapterInterface> bytes, std::string file)
      : file_(std::move(file)),
        size_(bytes->size()),
        reader_(std::move(bytes)),
        importer_(
            code_, &constants_, [this](const std::string& qualifier) { return source(qualifier); }, reader_.version()) {
  }

  torch::jit::Module read() {
    if (reader_.hasRecord("model.json"))
      io::fail<io::Error>("{}: found a TorchScript file of before PyTorch 1.4, allowed: of a later one", file_);
    check_sizes();
    torch::jit::populate_upgraders_graph_map();
    const c10::IValue constants = unpickle("constants");
    constants_ = constants.toTupleRef().elements().vec();
    const c10::IValue data = unpickle("data");
    TORCH_CHECK(data.isObject(), "data.pkl is no module");
    check_code(*code_, file_);
    return torch::jit::Module(data.toObject());
  }

  /// True if a class restores its objects by itself, by __setstate__.
  bool restores() const { return restores_; }

 private:
  /// Pickles and tensors are stored as they are: what would unpack to more than the file is refused unread.
  void check_sizes() {
    std::size_t sum = 0;
    for (const auto& name : reader_.getAllRecords()) {
      if (name.starts_with("constants") || name.starts_with("data")) sum += reader_.getRecordSize(name);
      if (sum > size_)
        throw io::Error(fmt::format("{}: {}: found tensors that unpack to more than the file's {} bytes", file_,
                                    io::printable(name), size_));
    }
  }

  std::shared_ptr<torch::jit::Source> source(const std::string& qualifier) {
    std::string name = "code/" + qualifier + ".py";
    std::replace(name.begin() + 5, name.end() - 3, '.', '/');
    if (!reader_.hasRecord(name)) return nullptr;
    code_size_ += reader_.getRecordSize(name);
    if (code_size_ > kMaxCode)
      throw io::Error(fmt::format("{}: {}: found code of over {} MiB", file_, io::printable(name), kMaxCode >> 20));
    const auto [text, size] = reader_.getRecord(name);
    auto code = std::make_shared<torch::jit::Source>(std::string_view(static_cast<const char*>(text.get()), size), name,
                                                     /*starting_line_no=*/1);
    check_source(code, file_);
    return code;
  }

  c10::IValue unpickle(const std::string& name) {
    return torch::jit::readArchiveAndTensors(
        name, "", "",
        [this](const c10::QualifiedName& type) { return c10::StrongTypePtr(code_, importer_.loadType(type)); },
        [this](const at::StrongTypePtr& type, const c10::IValue& state) { return object(type, state); }, at::kCPU,
        reader_);
  }

  /// As LibTorch makes one, but for __setstate__.
  Object object(const at::StrongTypePtr& type, const c10::IValue& state) {
    const auto object_class = type.type_->expect<c10::ClassType>();
    if (!may_use(object_class->name()->qualifiedName()))
      throw io::Error(fmt::format("{}: found an object of {}, allowed: objects of the file's own classes", file_,
                                  io::printable(object_class->name()->qualifiedName())));
    if (object_class->name() == runtime::script_nodes_type()->containedType(0)->expectRef<c10::ClassType>().name()) {
      auto made = c10::ivalue::Object::create(type, object_class->numAttributes());
      object_class->getMethod("__setstate__")({made, state});  // ours, in C++
      return made;
    }
    if (object_class->findMethod("__getstate__") != nullptr && object_class->findMethod("__setstate__") != nullptr) {
      restores_ = true;
      return unrestored(object_class);
    }
    const auto values = state.toGenericDict();
    auto made = c10::ivalue::Object::create(type, object_class->numAttributes());
    for (std::size_t i = 0; i < object_class->numAttributes(); ++i)
      made->setSlot(i, values.at(object_class->getAttributeName(i)));
    return made;
  }

  /// An object with what its class alone says.
  Object unrestored(const c10::ClassTypePtr& object_class) {
    auto made = c10::ivalue::Object::create({code_, object_class}, object_class->numAttributes());
    if (!object_class->is_module()) return made;
    for (std::size_t i = 0; i < object_class->numAttributes(); ++i) {
      const auto& attribute = object_class->getAttribute(i);
      if (const auto module = attribute->is_module() ? attribute->cast<c10::ClassType>() : nullptr) {
        made->setSlot(i, unrestored(module));
      } else if (attribute->is_module()) {
        throw io::Error(fmt::format("{}: {}: its __setstate__ decides its module {}, allowed: one of a known class",
                                    file_, io::printable(object_class->name()->qualifiedName()),
                                    io::printable(object_class->getAttributeName(i))));
      } else if (attribute->kind() == c10::TypeKind::TensorType) {
        made->setSlot(i, at::empty({0}));
      }
    }
    return made;
  }

  std::string file_;
  std::size_t size_, code_size_ = 0;
  PyTorchStreamReader reader_;
  std::shared_ptr<torch::jit::CompilationUnit> code_ = std::make_shared<torch::jit::CompilationUnit>();
  std::vector<c10::IValue> constants_;
  torch::jit::SourceImporter importer_;
  bool restores_ = false;
};

/// Errors of LibTorch, whose parser and lexer have kinds of their own, in a line that names the file.
template <class Body>
torch::jit::Module read_with(const std::filesystem::path& path, const Body& body) {
  io::open_regular(path);  // a missing file or a folder has a better message here than in LibTorch
  std::string text;
  try {
    return body(std::make_shared<caffe2::serialize::FileAdapter>(path.string()));
  } catch (const io::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  text.erase(0, text.find_first_not_of('\n'));
  io::fail<io::Error>("{}: not a TorchScript file that LibTorch can load: {}", path.string(),
                      io::printable(text.substr(0, text.find('\n'))));
}

}  // namespace

torch::jit::Module read_script_modules(const std::filesystem::path& path) {
  return read_with(path, [&](const auto& bytes) { return ScriptArchive(bytes, path.string()).read(); });
}

torch::jit::Module read_script(const std::filesystem::path& path) {
  return read_with(path, [&](const auto& bytes) {
    ScriptArchive archive(bytes, path.string());
    auto model = archive.read();
    // Code that restores objects has been looked at by now; LibTorch runs it, with the care that files of old need.
    return archive.restores() ? torch::jit::load(bytes, at::Device(at::kCPU), /*load_debug_files=*/false) : model;
  });
}

}  // namespace fp8::commands
