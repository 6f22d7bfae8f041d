// SPDX-License-Identifier: Apache-2.0
// Transforms of an image before a model gets it. Names, arguments and formulas are torchvision's, over images as
// Pillow has them: bilinear, smoothed where it gets smaller, rounded to 8 bits.
#pragma once

#include <variant>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/io/images/image.h"

namespace fp8::data {

/// A part of random area (a share in `scale` of the image's) and aspect (width by height, in `ratio`, logarithmically),
/// ten times tried, else the largest in the middle; then height x width.
struct RandomResizedCrop {
  std::int64_t height = 224, width = 224;
  std::pair<double, double> scale = {0.08, 1.0}, ratio = {3.0 / 4.0, 4.0 / 3.0};
};
/// Left and right exchanged with probability p.
struct RandomHorizontalFlip {
  double p = 0.5;
};
/// height x width; width 0: the shorter side becomes `height`, the other keeps the aspect, rounded down.
struct Resize {
  std::int64_t height = 256, width = 0;
};
/// The middle; black around an image that is smaller.
struct CenterCrop {
  std::int64_t height = 224, width = 224;
};
/// [H, W, 3] of 0 to 255 to [3, H, W] f32, x / 255.
struct ToTensor {};
/// (x - mean) / std per channel, in f32. One value: for all channels.
struct Normalize {
  std::vector<double> mean = {0.485, 0.456, 0.406}, std = {0.229, 0.224, 0.225};  ///< ImageNet's
};

using Transform = std::variant<RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, ToTensor, Normalize>;

/// "CenterCrop".
const char* name_of(const Transform& transform);

/// Throws std::invalid_argument naming `option`, what is wrong and what is allowed: images are changed before ToTensor,
/// which comes once, and Normalize after it.
void check_transforms(const std::string& option, const std::vector<Transform>& transforms);

/// Of a list that was checked. [3, H, W] f32.
at::Tensor apply(const std::vector<Transform>& transforms, io::Image image, SampleRandom& random);

/// In place; x: [C, ...] f32, contiguous.
void normalize(const Normalize& transform, at::Tensor& x);

// A folder of each class, as torchvision's ImageFolder has it:
//
//   root/cat/1.png, root/cat/more/2.jpeg, root/dog/3.jpg      classes cat (0), dog (1), by the bytes of their names

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

// Images and labels of IDX files, as MNIST has them.

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

// The data module of Lightning's Habana package: image folders for training and validation, with its arguments and
// defaults. What its loader could not do is done here; with `strict` it is refused with its messages.

struct HPUDataModuleOptions {
  std::filesystem::path train_dir = "/tmp/data", val_dir = "/tmp/data";
  int num_workers = 8;
  bool normalize = false;  ///< ImageNet's mean and deviation after transforms that have no Normalize
  std::uint64_t seed = 42;
  std::int64_t batch_size = 32;
  /// None: RandomResizedCrop(224), RandomHorizontalFlip, ToTensor; and Resize(256), CenterCrop(224), ToTensor.
  std::optional<std::vector<Transform>> train_transforms = {}, val_transforms = {};
  bool pin_memory = true;
  /// Of validation and test; training always has another order in each epoch.
  bool shuffle = false;
  bool drop_last = true;  ///< of all three
  /// Has no effect: the trainer deals a loader's samples to its ranks as DistributedSampler does.
  bool distributed = false;

  /// Refuses what the package refuses: shuffle, unpinned memory, another number of workers than 8, transforms that its
  /// loader does not know, a train_dir whose name has neither "imagenet" nor "ilsvrc2012"; drop_last is always on.
  bool strict = false;
  // Of the loaders.
  int prefetch_factor = 2;
  bool persistent_workers = false, non_blocking = false;
  double timeout = 0;
  c10::Device device = at::kCPU;
};

class HPUDataModule {
 public:
  explicit HPUDataModule(HPUDataModuleOptions options) : options_(std::move(options)) {}

  /// Looks through the folders; more than once: anew. Throws std::invalid_argument for options, io::Error for folders.
  void setup();

  /// After setup(), else std::logic_error. A loader outlives the module.
  std::unique_ptr<DataLoader> train_dataloader() const;
  std::unique_ptr<DataLoader> val_dataloader() const;
  std::unique_ptr<DataLoader> test_dataloader() const { return val_dataloader(); }

  const HPUDataModuleOptions& options() const { return options_; }
  const std::shared_ptr<const ImageFolder>& dataset_train() const { return dataset_train_; }
  const std::shared_ptr<const ImageFolder>& dataset_val() const { return dataset_val_; }

 private:
  std::unique_ptr<DataLoader> loader(const std::shared_ptr<const ImageFolder>& dataset, bool shuffle) const;

  HPUDataModuleOptions options_;
  std::shared_ptr<const ImageFolder> dataset_train_, dataset_val_;
};

}  // namespace fp8::data
