// SPDX-License-Identifier: Apache-2.0
// A program of LibTorch's brought here: its dataset (torch::data) and its module (convolution, linear, attention) stay
// as they are. It is trained in fp8, saved, loaded, measured and quantized.
//
//   cmake: find_package(fp8 CONFIG REQUIRED)   target_link_libraries(torch_data PRIVATE fp8::fp8)
//   torch_data FOLDER                          prints loss and accuracies; FOLDER gets the model and the checkpoint
#include "fp8/runtime/data/torch_data.h"

#include <torch/torch.h>

#include "fp8/fp8.h"
#include "fp8/runtime/trainer/trainer.h"

namespace {

const torch::Device kHpu("hpu");

/// Stripes of four directions with noise: [1, 12, 12] and the direction.
class Stripes : public torch::data::datasets::Dataset<Stripes> {
 public:
  Stripes(std::size_t size, std::uint64_t seed) : size_(size) {
    torch::manual_seed(seed);
    const auto n = static_cast<std::int64_t>(size);
    const auto i = torch::arange(12, torch::kFloat), y = i.view({12, 1}), x = i.view({1, 12});
    const auto patterns = torch::stack({(x + 0 * y), (y + 0 * x), (x + y), (x - y)}).mul(1.6).sin();
    targets_ = torch::randint(4, {n}, torch::kLong);
    images_ = (patterns.index_select(0, targets_) + 0.5 * torch::randn({n, 12, 12})).unsqueeze(1);
  }
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {images_[i], targets_[i]};
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
  torch::Tensor images_, targets_;
};

/// The rows of what a convolution sees attend to each other.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(1, 16, 3))),
        rows(register_module("rows", torch::nn::Linear(160, 64))),
        attention(register_module("attention", torch::nn::MultiheadAttention(64, 4))),
        head(register_module("head", torch::nn::Linear(64, 4))) {}
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::relu(conv(images)).permute({2, 0, 1, 3}).flatten(2);  // [10, B, 160]
    x = torch::relu(rows(x));
    x = x + std::get<0>(attention->forward(x, x, x, {}, /*need_weights=*/false));
    return head(x.mean(0));
  }
  torch::nn::Conv2d conv;
  torch::nn::Linear rows;
  torch::nn::MultiheadAttention attention;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

class Task : public fp8::trainer::TrainingModule {
 public:
  explicit Task(Net net) : net_(std::move(net)) {}
  torch::nn::Module& network() override { return *net_; }
  at::Tensor training_step(const fp8::trainer::Batch& batch, std::int64_t) override {
    return torch::cross_entropy_loss(net_(batch.tensors[0].to(kHpu)).to(torch::kFloat), batch.tensors[1].to(kHpu));
  }
  fp8::trainer::Optimizers configure_optimizers() override {
    return {{std::make_shared<torch::optim::AdamW>(net_->parameters(), torch::optim::AdamWOptions(3e-3))}};
  }

 private:
  Net net_;
};

double accuracy(Net& net, fp8::trainer::BatchSource& data) {
  const torch::NoGradGuard no_grad;
  net->eval();
  std::int64_t right = 0, all = 0;
  data.seek(0, 0);
  while (const auto batch = data.next()) {
    right += net(batch->tensors[0].to(kHpu)).argmax(1).cpu().eq(batch->tensors[1]).sum().item<std::int64_t>();
    all += batch->samples;
  }
  return static_cast<double>(right) / static_cast<double>(all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "torch_data: expected one argument, a folder to write to\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);

  // A dataset goes into the loader with threads; a loader of LibTorch's is taken as it is.
  fp8::data::DataLoader train(fp8::data::from_torch(Stripes(2000, 1)),
                              {.batch_size = 50, .shuffle = true, .num_workers = 2, .seed = 1});
  fp8::data::TorchBatches test(
      [data = Stripes(500, 2)] {
        return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
            data, torch::data::DataLoaderOptions(100).workers(1));
      },
      /*batches=*/5);

  torch::manual_seed(3);
  Net net;
  net->to(kHpu);
  fp8::te::HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*net, {.replace_layers = true, .recipe = fp8::recipes::DelayedScaling::nvidia()});
  Task task(net);
  fp8::trainer::TrainerOptions options{.max_epochs = 3, .checkpoint_root = folder / "checkpoints"};
  options.forward_context = [&](const fp8::trainer::ForwardInfo&) {
    return std::shared_ptr<void>(new fp8::te::ForwardContext(plugin.forward_context()));
  };
  const auto result = fp8::trainer::Trainer(options).fit(task, train);
  std::printf("trained %lld steps in fp8, loss %.3f\n", static_cast<long long>(result.steps), result.loss_last20);

  plugin.restore(*net);
  torch::save(net, (folder / "net.pt").string());
  Net loaded;
  torch::load(loaded, (folder / "net.pt").string());
  loaded->to(kHpu);
  std::printf("loaded: accuracy %.3f\n", accuracy(loaded, test));

  // The form of the checkpoint below holds linear layers; without a checkpoint the convolution goes along.
  fp8::te::ConvertOptions measuring{
      .inference = true, .quant = false, .fp8_data_path = (folder / "measured").string(), .block = {"conv"}};
  auto quantizing = measuring;
  quantizing.quant = true;
  plugin.convert_modules(*loaded, measuring);
  accuracy(loaded, test);
  fp8::measure::finalize_calibration(*loaded);
  const auto report = plugin.convert_modules(*loaded, quantizing);
  std::printf("quantized %zu modules: accuracy %.3f\n", report.converted.size(), accuracy(loaded, test));
  fp8::quant::save(*loaded, (folder / "model").string(), "compressed-tensors", {.overwrite = true});
  std::printf("saved\n");
  return 0;
}
