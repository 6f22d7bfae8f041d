// SPDX-License-Identifier: Apache-2.0
// The data module of Lightning's Habana package: image folders for training and validation, with its arguments and
// defaults. What its loader could not do is done here; with `strict` it is refused with its messages.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/data/image_folder.h"
#include "fp8/runtime/data/transforms.h"

namespace fp8::data {

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
