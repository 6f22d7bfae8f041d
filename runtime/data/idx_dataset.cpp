// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/idx_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::data {
namespace {

namespace fs = std::filesystem;

io::IdxArray read_bytes(const fs::path& path, std::size_t dimensions, const char* what) {
  io::IdxArray array = io::read_idx(path);
  if (array.type != io::IdxType::u8 || array.shape.size() != dimensions)
    io::fail(path, "an array of sizes {}, expected {} of unsigned bytes", io::shape_text(array.shape), what);
  return array;
}

std::optional<fs::path> existing(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  for (const char* ending : {"", ".gz"})
    if (auto path = folder / (name + ending); fs::is_regular_file(path, ignored)) return path;
  return std::nullopt;
}

}  // namespace

IdxDataset::IdxDataset(const fs::path& images, const fs::path& labels, std::optional<Normalize> normalize)
    : file_(images.string()),
      images_(read_bytes(images, 3, "images [N, H, W]")),
      labels_(read_bytes(labels, 1, "labels [N]")),
      normalize_(std::move(normalize)) {
  if (labels_.shape[0] != images_.shape[0])
    io::fail(labels, "{} labels, {} has {} images", labels_.shape[0], images.string(), images_.shape[0]);
  if (!normalize_) return;
  check_transforms("normalize", {ToTensor{}, *normalize_});
  if (normalize_->mean.size() != 1 || normalize_->std.size() != 1)
    throw std::invalid_argument("[data] normalize: found 3 values, allowed: 1, images have one channel");
}

std::vector<at::Tensor> IdxDataset::get(std::int64_t index, SampleRandom&) const {
  at::Tensor image = at::empty({1, images_.shape[1], images_.shape[2]}, at::kFloat);
  const auto count = static_cast<std::size_t>(image.numel());
  const auto* from = images_.elements.data() + static_cast<std::size_t>(index) * count;
  std::transform(from, from + count, image.mutable_data_ptr<float>(),
                 [](char byte) { return static_cast<float>(static_cast<std::uint8_t>(byte)) / 255.0f; });
  if (normalize_) data::normalize(*normalize_, image);
  at::Tensor label = at::empty({}, at::kLong);
  *label.mutable_data_ptr<std::int64_t>() = label_of(index);
  return {std::move(image), std::move(label)};
}

std::string IdxDataset::name_of(std::int64_t) const { return io::printable(file_, 4096); }

std::optional<std::pair<fs::path, fs::path>> find_mnist(const fs::path& root, bool train) {
  const std::string part = train ? "train" : "t10k";
  for (const fs::path& folder : {root, root / "MNIST" / "raw", root / "raw"}) {
    const auto images = existing(folder, part + "-images-idx3-ubyte"),
               labels = existing(folder, part + "-labels-idx1-ubyte");
    if (images && labels) return std::pair(*images, *labels);
  }
  return std::nullopt;
}

}  // namespace fp8::data
