// SPDX-License-Identifier: Apache-2.0
// The data of a run, all loops of it. The names are those of Lightning's LightningDataModule.
#pragma once
#include <memory>

#include "fp8/runtime/trainer/batch_source.h"

namespace fp8::trainer {

class DataModule {
 public:
  virtual ~DataModule() = default;
  /// Called by one process of a machine, before the others go on: downloads and conversions.
  virtual void prepare_data() {}
  /// Called once before the first of the four below.
  virtual void setup() {}
  /// Null: there is none. A batch's tensors may lie on the CPU: who runs the loop brings them to the network.
  virtual std::unique_ptr<BatchSource> train_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> val_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> test_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> predict_dataloader() { return nullptr; }
};

}  // namespace fp8::trainer
