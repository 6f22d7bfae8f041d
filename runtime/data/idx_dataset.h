// SPDX-License-Identifier: Apache-2.0
// Images and labels of IDX files, as MNIST has them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/data/dataset.h"
#include "fp8/runtime/data/transforms.h"
#include "fp8/runtime/io/idx/idx.h"

namespace fp8::data {

class IdxDataset : public Dataset {
 public:
  /// images: [N, H, W] u8; labels: [N] u8. Read whole. Throws io::Error naming the file; std::invalid_argument for a
  /// Normalize of more than one value.
  IdxDataset(const std::filesystem::path& images, const std::filesystem::path& labels,
             std::optional<Normalize> normalize = {});

  std::int64_t size() const override { return images_.shape[0]; }
  /// [image [1, H, W] f32 (x / 255, normalized), label [] int64].
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const override;
  std::string name_of(std::int64_t index) const override;

  std::int64_t label_of(std::int64_t index) const {
    return static_cast<std::uint8_t>(labels_.elements[static_cast<std::size_t>(index)]);
  }

 private:
  std::string file_;
  io::IdxArray images_, labels_;
  std::optional<Normalize> normalize_;
};

/// The images and labels of MNIST (or of what has its form) below `root`: <train|t10k>-<images-idx3|labels-idx1>-ubyte,
/// with .gz or without, in root, root/MNIST/raw (torchvision's) or root/raw. Nothing where they are not.
std::optional<std::pair<std::filesystem::path, std::filesystem::path>> find_mnist(const std::filesystem::path& root,
                                                                                  bool train);

}  // namespace fp8::data
