// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/data_module.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/text.h"

namespace fp8::data {
namespace {

template <class... Known>
void check_known(const std::optional<std::vector<Transform>>& transforms, const char* stage) {
  if (!transforms) return;
  for (const auto& transform : *transforms)
    if (!(std::holds_alternative<Known>(transform) || ...))
      throw std::invalid_argument(std::string("Unsupported ") + stage + " transform: " + name_of(transform));
}

/// The messages are the package's.
void check_strictly(HPUDataModuleOptions& o) {
  if (o.shuffle) throw std::invalid_argument("HabanaDataLoader does not support shuffle=True");
  if (!o.pin_memory) throw std::invalid_argument("HabanaDataLoader only supports pin_memory=True");
  if (o.num_workers != 8) throw std::invalid_argument("HabanaDataLoader only supports num_workers as 8");
  check_known<RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize>(o.train_transforms, "train");
  check_known<Resize, CenterCrop, ToTensor, Normalize>(o.val_transforms, "val");
  const std::string folder = io::lower(o.train_dir.string());
  if (folder.find("imagenet") == std::string::npos && folder.find("ilsvrc2012") == std::string::npos)
    throw std::invalid_argument("Habana dataloader only supports Imagenet dataset");
  if (o.drop_last) return;
  TORCH_WARN("HabanaDataLoader only supports drop_last as True with Imagenet dataset. Setting to True");
  o.drop_last = true;
}

std::vector<Transform> complete(std::vector<Transform> transforms, bool normalize) {
  const auto is_normalize = [](const Transform& t) { return std::holds_alternative<Normalize>(t); };
  if (normalize && std::none_of(transforms.begin(), transforms.end(), is_normalize)) transforms.push_back(Normalize{});
  return transforms;
}

}  // namespace

void HPUDataModule::setup() {
  auto& o = options_;
  if (o.strict) check_strictly(o);
  const std::vector<Transform> train = {RandomResizedCrop{}, RandomHorizontalFlip{}, ToTensor{}},
                               val = {Resize{}, CenterCrop{}, ToTensor{}};
  const auto train_transforms = complete(o.train_transforms.value_or(train), o.normalize),
             val_transforms = complete(o.val_transforms.value_or(val), o.normalize);
  check_transforms("train_transforms", train_transforms);
  check_transforms("val_transforms", val_transforms);
  dataset_train_ = std::make_shared<const ImageFolder>(o.train_dir, train_transforms);
  dataset_val_ = std::make_shared<const ImageFolder>(o.val_dir, val_transforms);
}

std::unique_ptr<DataLoader> HPUDataModule::loader(const std::shared_ptr<const ImageFolder>& dataset,
                                                  bool shuffle) const {
  const auto& o = options_;
  if (dataset == nullptr) throw std::logic_error("[data] HPUDataModule: a loader before setup()");
  return std::make_unique<DataLoader>(dataset, DataLoaderOptions{.batch_size = o.batch_size,
                                                                 .shuffle = shuffle,
                                                                 .num_workers = o.num_workers,
                                                                 .prefetch_factor = o.prefetch_factor,
                                                                 .pin_memory = o.pin_memory,
                                                                 .non_blocking = o.non_blocking,
                                                                 .drop_last = o.drop_last,
                                                                 .seed = o.seed,
                                                                 .persistent_workers = o.persistent_workers,
                                                                 .timeout = o.timeout,
                                                                 .device = o.device});
}

std::unique_ptr<DataLoader> HPUDataModule::train_dataloader() const { return loader(dataset_train_, true); }
std::unique_ptr<DataLoader> HPUDataModule::val_dataloader() const { return loader(dataset_val_, options_.shuffle); }

}  // namespace fp8::data
