// SPDX-License-Identifier: Apache-2.0
#include "mnist_data_module.h"

#include "fp8/runtime/data/image_folder.h"
#include "fp8/runtime/io/atomic/atomic_file.h"

namespace mnist {

namespace data = fp8::data;
namespace io = fp8::io;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kSide = 28, kCell = 4, kDigits = 10;

/// Samples first to first + size - 1 of another set.
class Slice : public data::Dataset {
 public:
  Slice(std::shared_ptr<const data::Dataset> whole, std::int64_t first, std::int64_t size)
      : whole_(std::move(whole)), first_(first), size_(size) {}
  std::int64_t size() const override { return size_; }
  std::vector<at::Tensor> get(std::int64_t index, data::SampleRandom& random) const override {
    return whole_->get(first_ + index, random);
  }
  std::string name_of(std::int64_t index) const override { return whole_->name_of(first_ + index); }

 private:
  std::shared_ptr<const data::Dataset> whole_;
  std::int64_t first_, size_;
};

/// Image `number` of a set: cells of 4 x 4 pixels, bright or dark by the class, and noise that no bright one drowns in.
void draw(std::uint64_t set, std::int64_t number, std::string& pixels) {
  const std::uint64_t cells = fp8::kernels::splitmix64(1, static_cast<std::uint64_t>(number % kDigits));
  for (std::int64_t p = 0; p < kSide * kSide; ++p) {
    const std::int64_t cell = p / kSide / kCell * (kSide / kCell) + p % kSide / kCell;
    const auto noise = fp8::kernels::splitmix64(set, static_cast<std::uint64_t>(number * kSide * kSide + p)) % 96;
    pixels.push_back(static_cast<char>((cells >> cell & 1) * 128 + noise));
  }
}

void write(const fs::path& file, const io::IdxArray& array) {
  io::AtomicFile out(file);
  out.append(io::idx_bytes(array));
  out.commit();
}

/// `count` images and their labels, number i of class i mod 10. The images come last: where they are, both are.
void write_synthetic(const fs::path& folder, bool train, std::int64_t count) {
  if (data::find_mnist(folder, train)) return;
  io::IdxArray images{io::IdxType::u8, {count, kSide, kSide}, {}}, labels{io::IdxType::u8, {count}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    draw(train ? 2 : 3, i, images.elements);
    labels.elements.push_back(static_cast<char>(i % kDigits));
  }
  fs::create_directories(folder);
  const std::string part = train ? "train" : "t10k";
  write(folder / (part + "-labels-idx1-ubyte"), labels);
  write(folder / (part + "-images-idx3-ubyte"), images);
}

std::shared_ptr<const data::Dataset> read(const fs::path& folder, bool train) {
  const auto files = data::find_mnist(folder, train);
  if (!files)
    io::fail<io::Error>("{}: found no {}-images-idx3-ubyte with its labels, expected all four files of MNIST or none",
                        folder.string(), train ? "train" : "t10k");
  return std::make_shared<data::IdxDataset>(files->first, files->second);
}

}  // namespace

MNISTDataModule::MNISTDataModule(MNISTDataModuleOptions options) : options_(std::move(options)) {
  if (!(options_.val_share >= 0 && options_.val_share < 1))
    io::fail<std::invalid_argument>("[MNISTDataModule] val_share: found {}, allowed: 0 <= val_share < 1",
                                    options_.val_share);
  if (options_.synthetic < 4 * kDigits)
    io::fail<std::invalid_argument>("[MNISTDataModule] synthetic: found {}, allowed: at least 40", options_.synthetic);
}

fs::path MNISTDataModule::folder() const {
  const bool real = data::find_mnist(options_.data_dir, true) || data::find_mnist(options_.data_dir, false);
  return real ? options_.data_dir : options_.data_dir / ("synthetic-" + std::to_string(options_.synthetic));
}

void MNISTDataModule::prepare_data() {
  if (folder() == options_.data_dir) return;
  std::fprintf(stderr, "mnist: no MNIST in %s: pictures drawn by rule take its place, their accuracy is not MNIST's\n",
               options_.data_dir.c_str());
  write_synthetic(folder(), true, options_.synthetic);
  write_synthetic(folder(), false, options_.synthetic / 4);
}

void MNISTDataModule::setup() {
  const auto all = read(folder(), true);
  const auto val = std::llround(options_.val_share * static_cast<double>(all->size()));
  train_ = std::make_shared<Slice>(all, 0, all->size() - val);
  val_ = val > 0 ? std::make_shared<Slice>(all, all->size() - val, val) : nullptr;
  test_ = read(folder(), false);
}

std::unique_ptr<fp8::trainer::BatchSource> MNISTDataModule::loader(const std::shared_ptr<const data::Dataset>& images,
                                                                   bool shuffle) const {
  if (train_ == nullptr) throw std::logic_error("[MNISTDataModule] setup() comes first");
  if (images == nullptr) return nullptr;
  return std::make_unique<data::DataLoader>(images, data::DataLoaderOptions{.batch_size = options_.batch_size,
                                                                            .shuffle = shuffle,
                                                                            .num_workers = options_.num_workers,
                                                                            .seed = options_.seed,
                                                                            .device = options_.device});
}

std::unique_ptr<fp8::trainer::BatchSource> MNISTDataModule::train_dataloader() { return loader(train_, true); }
std::unique_ptr<fp8::trainer::BatchSource> MNISTDataModule::val_dataloader() { return loader(val_, false); }
std::unique_ptr<fp8::trainer::BatchSource> MNISTDataModule::test_dataloader() { return loader(test_, false); }

}  // namespace mnist
