// SPDX-License-Identifier: Apache-2.0
// TorchFile of torch_file.h: from the pickle's graph to tensors. How strided ones are read is in tensor_file.cpp.
#include "fp8/runtime/io/tensors/torch_file.h"

#include <algorithm>
#include <map>

#include "fp8/runtime/io/pickle/pickle_machine.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxRank = 64;
constexpr int kMaxNesting = 4;
constexpr std::string_view kDictNames[] = {"state_dict", "model", "model_state_dict", "module"};

std::string first_bytes(const std::filesystem::path& path) {
  std::uint64_t size = 0;
  const Descriptor file = open_regular(path, &size);
  std::string bytes(std::min<std::uint64_t>(size, 9), '\0');
  read_at(file.get(), path, 0, bytes.data(), bytes.size());
  return bytes;
}

bool is_zip(std::string_view bytes) { return bytes.substr(0, 4) == "PK\3\4"; }
bool is_old_pickle(std::string_view bytes) {
  return bytes.size() > 1 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

std::filesystem::path checked(std::filesystem::path path) {
  const std::string bytes = first_bytes(path);
  if (is_zip(bytes)) return path;
  if (is_old_pickle(bytes))
    fail(path,
         "was saved in the form before PyTorch 1.6 (a bare pickle, no zip), which is not read; load it with "
         "torch.load and torch.save it again, or convert it to safetensors");
  fail(path, "is not a file of torch.save (a zip)");
}

}  // namespace

bool is_torch_file(const std::filesystem::path& path) {
  std::string bytes;
  try {
    bytes = first_bytes(path);
  } catch (const Error&) {
    return false;
  }
  // A safetensors file has a '{' behind its first 8 bytes, the header's length.
  return (bytes.size() < 9 || bytes[8] != '{') && (is_zip(bytes) || is_old_pickle(bytes));
}

/// Fills a TorchFile from its zip.
class TorchDictReader {
 public:
  explicit TorchDictReader(TorchFile& file)
      : file_(file),
        zip_(file.zip_),
        root_(root()),
        pickle_(zip_.read(*zip_.find(root_ + "/data.pkl"), kMaxPickleBytes)),
        name_(file.path_.string() + " (" + root_ + "/data.pkl)"),
        machine_(pickle_, name_, PickleDialect::torch) {
    const ZipMember* order = zip_.find(root_ + "/byteorder");
    if (order != nullptr && zip_.read(*order, 16) != "little")
      fail(file_.path_, "was saved big-endian, expected little-endian");
  }

  void run() {
    const PickleNode* dict = &machine_.node(machine_.run());
    for (int depth = 0; depth < kMaxNesting; ++depth) {
      if (dict->kind != PickleNode::Dict)
        fail(file_.path_, "holds something other than a dict of tensors, expected a state_dict");
      const PickleNode* inner = holds_tensors(*dict) ? nullptr : inner_dict(*dict);
      if (inner == nullptr) break;
      dict = inner;
    }
    if (!dict->children.empty() && !holds_tensors(*dict))
      fail(file_.path_, "holds no tensors under its keys {}, expected a state_dict", keys_of(*dict));
    for (std::size_t i = 0; i < dict->children.size(); i += 2) {
      const PickleNode &key = node(dict->children[i]), &value = node(dict->children[i + 1]);
      if (value.kind != PickleNode::Tensor) continue;
      if (key.kind != PickleNode::Str) fail(file_.path_, "holds a tensor under a key that is not a string");
      add(std::string(key.text), value);
    }
    if (!file_.index_names()) fail(file_.path_, "two tensors have one name");
  }

 private:
  const PickleNode& node(PickleId id) const { return machine_.node(id); }

  // "archive": the one folder that has a data.pkl.
  std::string root() const {
    std::string found;
    for (const ZipMember& member : zip_.members()) {
      const std::size_t slash = member.name.find('/');
      if (slash == std::string::npos || member.name.substr(slash) != "/data.pkl") continue;
      if (!found.empty()) fail(file_.path_, "holds two folders with a data.pkl");
      found = member.name.substr(0, slash);
    }
    if (found.empty()) fail(file_.path_, "holds no data.pkl, so it is no file of torch.save");
    if (zip_.find(found + "/constants.pkl") != nullptr)
      fail(file_.path_, "is a TorchScript archive, expected torch.save of a state_dict");
    return found;
  }

  bool holds_tensors(const PickleNode& dict) const {
    for (std::size_t i = 1; i < dict.children.size(); i += 2)
      if (node(dict.children[i]).kind == PickleNode::Tensor) return true;
    return false;
  }

  const PickleNode* inner_dict(const PickleNode& dict) const {
    for (const std::string_view wanted : kDictNames)
      for (std::size_t i = 0; i < dict.children.size(); i += 2) {
        const PickleNode &key = node(dict.children[i]), &value = node(dict.children[i + 1]);
        if (key.kind == PickleNode::Str && key.text == wanted && value.kind == PickleNode::Dict) return &value;
      }
    return nullptr;
  }

  std::string keys_of(const PickleNode& dict) const {
    std::string keys;
    for (std::size_t i = 0; i < dict.children.size() && keys.size() < 120; i += 2) {
      const PickleNode& key = node(dict.children[i]);
      keys +=
          (keys.empty() ? "" : ", ") + (key.kind == PickleNode::Str ? in_quotes(key.text) : std::string("(no string)"));
    }
    return keys;
  }

  struct StoragePlace {
    std::uint64_t begin, size;
  };

  StoragePlace storage_of(const std::string& key) {
    const auto known = storages_.find(key);
    if (known != storages_.end()) return known->second;
    const ZipMember* member = zip_.find(root_ + "/data/" + key);
    if (member == nullptr) fail(file_.path_, "lacks the member {}", in_quotes(root_ + "/data/" + key));
    return storages_.emplace(key, StoragePlace{zip_.stored_at(*member), member->size}).first->second;
  }

  std::vector<std::int64_t> integers(const PickleNode& tuple, const std::string& tensor, const char* what) const {
    if (tuple.children.size() > kMaxRank)
      bad(tensor, message("has {} dimensions, allowed at most 64", tuple.children.size()));
    std::vector<std::int64_t> values;
    for (const PickleId id : tuple.children) {
      if (node(id).kind != PickleNode::Int || node(id).integer < 0)
        bad(tensor, message("has a {} that is no size", what));
      values.push_back(node(id).integer);
    }
    return values;
  }

  [[noreturn]] void bad(const std::string& tensor, const std::string& what) const {
    fail(file_.path_, "tensor {}: {}", in_quotes(tensor), what);
  }

  void add(std::string name, const PickleNode& tensor) {
    const PickleNode& storage = node(tensor.children[0]);
    TensorInfo info;
    info.name = std::move(name);
    const std::string class_dtype(node(storage.children[0]).text);
    info.dtype = dtype_from_name(tensor.children.size() > 4 ? std::string(node(tensor.children[4]).text) : class_dtype);
    const auto item = static_cast<std::uint64_t>(size_of(info.dtype));
    info.shape = integers(node(tensor.children[2]), info.name, "size");
    const auto strides = integers(node(tensor.children[3]), info.name, "stride");
    const std::int64_t offset = node(tensor.children[1]).integer, elements = node(storage.children[2]).integer;
    const StoragePlace place = storage_of(std::string(node(storage.children[1]).text));
    const auto class_item = static_cast<std::uint64_t>(size_of(dtype_from_name(class_dtype)));
    std::uint64_t bytes = 0;
    if (elements < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(elements), class_item, &bytes) ||
        bytes != place.size)
      bad(info.name, message("its storage of {} elements of {} has {} bytes", elements, class_dtype, place.size));
    if (strides.size() != info.shape.size()) bad(info.name, "has as many strides as it has not sizes");
    // Elements up to the last one used, and how many there are.
    std::uint64_t last = static_cast<std::uint64_t>(offset), count = 1;
    bool overflow = offset < 0;
    const bool empty = std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end();
    std::int64_t product = 1;  // of an empty tensor's other sizes: numel() and strides need it
    for (const std::int64_t size : info.shape)
      if (size != 0 && __builtin_mul_overflow(product, size, &product))
        bad(info.name, "has a shape that overflows 64 bits");
    for (std::size_t d = 0; d < info.shape.size() && !empty; ++d) {
      const auto size = static_cast<std::uint64_t>(info.shape[d]);
      std::uint64_t reach = 0;
      overflow = overflow || __builtin_mul_overflow(size - 1, static_cast<std::uint64_t>(strides[d]), &reach) ||
                 __builtin_add_overflow(last, reach, &last) || __builtin_mul_overflow(count, size, &count);
    }
    if (!empty && (overflow || last >= place.size / item))
      bad(info.name, message("reaches past its storage of {} bytes", place.size));
    if (!empty && count > place.size / item)
      bad(info.name, "is an expanded view, larger than its storage; save it with .contiguous()");
    info.end = empty ? 0 : count * item;
    file_.layouts_.push_back({empty ? place.begin : place.begin + static_cast<std::uint64_t>(offset) * item, {}, {}});
    if (!empty) simplify(info.shape, strides, file_.layouts_.back().sizes, file_.layouts_.back().strides);
    file_.tensors_.push_back(std::move(info));
  }

  TorchFile& file_;
  const ZipFile& zip_;
  std::string root_, pickle_, name_;
  PickleMachine machine_;
  std::map<std::string, StoragePlace> storages_;
};

TorchFile::TorchFile(std::filesystem::path path) : TensorFile(checked(std::move(path))), zip_(path_) {
  TorchDictReader(*this).run();
}

const TorchFile::Layout& TorchFile::layout_of(const TensorInfo& tensor) const {
  return layouts_[static_cast<std::size_t>(&tensor - tensors_.data())];
}

std::optional<Place> TorchFile::place(const TensorInfo& tensor) const {
  const Layout& layout = layout_of(tensor);
  if (!layout.contiguous()) return std::nullopt;
  return Place{zip_.fd(), layout.begin};
}

void TorchFile::read_bytes(const TensorInfo& tensor, void* destination, std::uint64_t offset,
                           std::uint64_t size) const {
  const Layout& layout = layout_of(tensor);
  if (layout.contiguous()) return read_at(zip_.fd(), path_, layout.begin + offset, destination, size);
  StridedRead{zip_.fd(),    path_,        static_cast<std::uint64_t>(size_of(tensor.dtype)),
              layout.begin, layout.sizes, layout.strides}
      .bytes(offset, size, static_cast<char*>(destination));
}

}  // namespace fp8::io
