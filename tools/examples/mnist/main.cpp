// SPDX-License-Identifier: Apache-2.0
// The documents' MNIST script as a program: `mnist FOLDER [EPOCHS]` trains in three precisions and prints
//
//   precision    data  val_loss  val_acc  test_acc  predicted
//   32-true     drawn    0.0113   1.0000    1.0000        600
//
// FOLDER has MNIST's files, or gets drawn pictures that take their place: the column says which.
#include <ATen/Context.h>

#include <cstdlib>

#include "fp8/runtime/trainer/callbacks/early_stopping.h"
#include "fp8/transformer_engine/trainer.h"
#include "lit_classifier.h"
#include "mnist_data_module.h"

namespace {

namespace te = fp8::te;

void run(const std::string& precision, mnist::MNISTDataModule& data, const at::Device& device, int epochs) {
  at::manual_seed(1);  // of the weights

  mnist::LitClassifier model;
  model.network().to(device);

  te::HPUPrecisionPlugin plugin(precision);
  if (precision == "fp8") plugin.convert_modules(model.network(), {.replace_layers = true});
  te::TrainerOptions options;
  options.max_epochs = epochs;
  te::Trainer trainer(te::with_precision(plugin, std::move(options)),
                      {std::make_shared<te::EarlyStopping>(te::EarlyStoppingOptions{.monitor = "val_loss"})});

  trainer.fit(model, *data.train_dataloader(), data.val_dataloader().get());
  const auto val = trainer.validate(model, *data.val_dataloader());
  const auto test = trainer.test(model, *data.test_dataloader());
  const auto predicted = trainer.predict(model, *data.predict_dataloader());
  std::printf("%-10s %6s %9.4f %8.4f %9.4f %10lld\n", precision.c_str(), data.name(), val.loss,
              val.metrics.at("val_acc"), test.metrics.at("test_acc"), static_cast<long long>(predicted.samples));
}

}  // namespace

int main(int argc, char** argv) {
  const int epochs = argc == 3 ? std::atoi(argv[2]) : 3;
  if (argc < 2 || argc > 3 || epochs < 1) {
    std::fprintf(stderr, "mnist: usage: mnist FOLDER [EPOCHS]\n");
    return 2;
  }
  try {
    const auto device = te::HPUAccelerator::get_parallel_devices(1).at(0);
    te::HPUAccelerator::setup_device(device);
    mnist::MNISTDataModule data({.data_dir = argv[1], .num_workers = 2, .seed = 1, .device = device});
    data.prepare_data();
    data.setup();
    std::printf("precision    data  val_loss  val_acc  test_acc  predicted\n");
    for (const char* precision : {"32-true", "bf16-mixed", "fp8"}) run(precision, data, device, epochs);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: error: %s\n", error.what());
    return 1;
  }
}
