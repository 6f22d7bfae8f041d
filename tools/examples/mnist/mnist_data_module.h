// SPDX-License-Identifier: Apache-2.0
// MNIST's files below a folder, as torchvision leaves them or side by side. Where none of them is there, a set that
// can be told apart takes their place: files of the same form, with pictures drawn by rule, always the same. What
// a model reaches on those says nothing of MNIST, so the module says which it has.
#pragma once

#include "fp8/runtime/data/data_loader.h"

namespace mnist {

struct MNISTDataModuleOptions {
  std::filesystem::path data_dir = "mnist";
  std::int64_t batch_size = 32;
  int num_workers = 0;
  std::uint64_t seed = 0;          ///< of the order of training
  double val_share = 1.0 / 12;     ///< of the training images, those at the end: 5000 of MNIST's 60000
  std::int64_t synthetic = 2400;   ///< training images of the set that takes MNIST's place, which has a quarter to test
  c10::Device device = c10::kCPU;  ///< of the batches
};

class MNISTDataModule : public fp8::trainer::DataModule {
 public:
  /// Throws std::invalid_argument naming the option, the value and what is allowed.
  explicit MNISTDataModule(MNISTDataModuleOptions options);

  /// Writes the synthetic files where they are needed and missing, and says on stderr that they are used. Throws
  /// io::Error.
  void prepare_data() override;
  /// Reads the files. Throws io::Error naming the one that is missing or damaged.
  void setup() override;

  // After setup(), else std::logic_error. Batches are {images [N, 1, 28, 28] f32 from 0 to 1, labels [N] int64}.
  std::unique_ptr<fp8::trainer::BatchSource> train_dataloader() override;  ///< in another order each epoch
  std::unique_ptr<fp8::trainer::BatchSource> val_dataloader() override;
  std::unique_ptr<fp8::trainer::BatchSource> test_dataloader() override;
  std::unique_ptr<fp8::trainer::BatchSource> predict_dataloader() override { return test_dataloader(); }

  /// Returns the folder that the files are read from: data_dir, or synthetic-<images> in it.
  std::filesystem::path folder() const;
  /// "MNIST", or "drawn": the set that takes its place.
  const char* name() const { return folder() == options_.data_dir ? "MNIST" : "drawn"; }

 private:
  std::unique_ptr<fp8::trainer::BatchSource> loader(const std::shared_ptr<const fp8::data::Dataset>& images,
                                                    bool shuffle) const;

  MNISTDataModuleOptions options_;
  std::shared_ptr<const fp8::data::Dataset> train_, val_, test_;
};

}  // namespace mnist
