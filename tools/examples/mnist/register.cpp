// SPDX-License-Identifier: Apache-2.0
// Both under their names, for run files: `fp8 train --load mnist.so --config mnist.yaml`.

#include "fp8/runtime/trainer/parts.h"
#include "lit_classifier.h"
#include "mnist_data_module.h"

namespace mnist {
namespace {

namespace trainer = fp8::trainer;

const trainer::PartRegistration<trainer::TrainingModule> g_classifier("LitClassifier", [](trainer::PartArguments& a) {
  LitClassifierOptions o;
  o.hidden = a.integer("hidden", o.hidden, 1, 1 << 16);
  o.learning_rate = a.number("learning_rate", o.learning_rate);
  o.step_size = a.integer("step_size", o.step_size, 1, 1 << 30);
  o.gamma = a.number("gamma", o.gamma);
  return std::make_shared<LitClassifier>(o);
});

const trainer::PartRegistration<trainer::DataModule> g_data("MNISTDataModule", [](trainer::PartArguments& a) {
  MNISTDataModuleOptions o;
  o.data_dir = a.text("data_dir", o.data_dir.string());
  o.batch_size = a.integer("batch_size", o.batch_size, 1, 1 << 20);
  o.num_workers = static_cast<int>(a.integer("num_workers", o.num_workers, 0, 64));
  o.seed = static_cast<std::uint64_t>(a.integer("seed", static_cast<std::int64_t>(a.context().seed), 0));
  o.val_share = a.number("val_share", o.val_share);
  o.synthetic = a.integer("synthetic", o.synthetic, 40, 1 << 20);
  o.device = a.context().device;
  return std::make_shared<MNISTDataModule>(o);
});

}  // namespace
}  // namespace mnist
