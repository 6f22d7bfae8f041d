// SPDX-License-Identifier: Apache-2.0
// A folder of each class, as torchvision's ImageFolder has it:
//
//   root/cat/1.png, root/cat/more/2.jpeg, root/dog/3.jpg      classes cat (0), dog (1), by the bytes of their names
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/data/dataset.h"
#include "fp8/runtime/data/transforms.h"

namespace fp8::data {

class ImageFolder : public Dataset {
 public:
  /// Looks through the folders, links too; reads no image. Throws io::Error: no folder, no class, a class without an
  /// image, an image of a form that is not read here (.bmp, .gif, .pgm, .ppm, .tif, .tiff, .webp); other files are
  /// passed over. std::invalid_argument: transforms that are none (check_transforms).
  explicit ImageFolder(std::filesystem::path root, std::vector<Transform> transforms = {ToTensor{}});

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  /// [image [3, H, W] f32, class [] int64]. Throws io::Error naming the file.
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const override;
  /// Relative to the root.
  std::string name_of(std::int64_t index) const override;

  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t class_of(std::int64_t index) const { return samples_.at(static_cast<std::size_t>(index)).label; }

 private:
  struct Item {
    std::string file;  ///< relative to the root
    std::int64_t label;
  };

  std::filesystem::path root_;
  std::vector<Transform> transforms_;
  std::vector<std::string> classes_;
  std::vector<Item> samples_;
};

}  // namespace fp8::data
