// SPDX-License-Identifier: Apache-2.0
// Folders of images and IDX files as samples; transforms by torchvision's formulas; the data module's checks.

#include "fp8/runtime/data/image_folder.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::data {
namespace {

const fs::path kImages = fs::path(FP8_SOURCE_DIR) / "tests/runtime/io/fixtures/images";

void copy_image(const char* name, const fs::path& to) {
  fs::create_directories(to.parent_path());
  fs::copy_file(kImages / name, to);
}

/// cat: 2, dog: 3 (one below another folder), as it would lie in a data set's folder.
void make_folder(const fs::path& root) {
  copy_image("rgb.png", root / "dog/b.PNG");
  copy_image("gray.jpg", root / "dog/a-more/z.jpeg");
  copy_image("rgb.jpg", root / "dog/a/deep/y.jpg");
  copy_image("rgba.png", root / "cat/2.png");
  copy_image("palette.png", root / "cat/10.png");
  std::ofstream(root / "dog/README.txt") << "no image";
  std::ofstream(root / "labels.csv") << "no class";
}

std::vector<at::Tensor> sample_of(const Dataset& data, std::int64_t index) {
  SampleRandom random(0, 0, index);
  return data.get(index, random);
}

TEST(ImageFolder, IsSortedAsTorchvisionsIs) {
  const test::TempDir root;
  make_folder(root.path());
  const ImageFolder data(root.path());
  EXPECT_THAT(data.classes(), ElementsAre("cat", "dog"));
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < data.size(); ++i) names.push_back(data.name_of(i));
  // sorted(os.walk()) compares whole names of folders: '-' is less than '/'.
  EXPECT_THAT(names, ElementsAre("cat/10.png", "cat/2.png", "dog/b.PNG", "dog/a-more/z.jpeg", "dog/a/deep/y.jpg"));
  EXPECT_EQ(data.class_of(1), 0);
  EXPECT_EQ(data.class_of(2), 1);
  const auto sample = sample_of(data, 2);
  const io::Image image = io::read_image(kImages / "rgb.png");
  const auto bytes = torch::from_blob(const_cast<std::uint8_t*>(image.pixels.data()), {9, 13, 3}, torch::kByte);
  EXPECT_TRUE(test::same_bits(sample[0], bytes.permute({2, 0, 1}).contiguous().to(torch::kFloat).div(255)));
  EXPECT_TRUE(test::same_bits(sample[1], torch::tensor(1, torch::kLong)));
}

TEST(ImageFolder, WhatIsMissingOrDamagedIsNamed) {
  const test::TempDir root;
  EXPECT_REFUSED(ImageFolder(root / "none"), "none: expected a folder");
  EXPECT_REFUSED(ImageFolder(root.path()), "found no folder of a class");
  make_folder(root.path());
  fs::create_directories(root / "eel/empty");
  EXPECT_REFUSED(ImageFolder(root.path()), "eel: found no image of this class");
  std::ofstream(root / "eel/1.bmp") << "BM";
  EXPECT_REFUSED(ImageFolder(root.path()), "eel/1.bmp: an image of this form is not read");
  fs::remove(root / "eel/1.bmp");
  std::ofstream(root / "eel/1.png") << "\x89PNG\r\n\x1a\n";
  const auto data = std::make_shared<ImageFolder>(root.path());
  for (const int workers : {0, 2}) {
    DataLoader loader(data, {.num_workers = workers});
    loader.seek(0, 5);
    EXPECT_REFUSED(loader.next(), "[data] sample 5 (eel/1.png): ") << workers;
    loader.seek(0, 5);
    EXPECT_REFUSED(loader.next(), "/eel/1.png: a damaged PNG (cut short)") << workers;
  }
  fs::create_directory_symlink(root / "dog", root / "dog/again");
  EXPECT_REFUSED(ImageFolder(root.path()), "(links in a circle?)");
}

/// Pixel (x, y) is [x, y, 7].
io::Image grid(std::int64_t width, std::int64_t height) {
  io::Image image{width, height, {}};
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      image.pixels.insert(image.pixels.end(), {static_cast<std::uint8_t>(x), static_cast<std::uint8_t>(y), 7});
  return image;
}

TEST(Transforms, MiddleSizesAndNumbers) {
  SampleRandom random(0, 0, 0);
  // round((9 - 4) / 2) = 2, to even; round((8 - 3) / 2) = 2.
  const auto x = apply({CenterCrop{3, 4}, ToTensor{}}, grid(9, 8), random);
  EXPECT_THAT(x.sizes(), ElementsAre(3, 3, 4));
  EXPECT_EQ(x[0][0][0].item<float>(), 2.0f / 255);
  EXPECT_EQ(x[1][0][0].item<float>(), 2.0f / 255);
  // Smaller than the crop: (5 - 2) / 2 = 1 before, 2 behind.
  const auto padded = apply({CenterCrop{2, 5}, ToTensor{}}, grid(2, 2), random);
  EXPECT_TRUE(test::same_bits(padded[2][0], torch::tensor({0, 7, 7, 0, 0}, torch::kFloat).div(255)));
  EXPECT_THAT(apply({Resize{4}, ToTensor{}}, grid(9, 6), random).sizes(), ElementsAre(3, 4, 6));
  EXPECT_THAT(apply({Resize{4}, ToTensor{}}, grid(6, 11), random).sizes(), ElementsAre(3, 7, 4));  // int(7.33)
  EXPECT_THAT(apply({Resize{4, 5}, ToTensor{}}, grid(6, 11), random).sizes(), ElementsAre(3, 4, 5));
  const auto plain = apply({ToTensor{}}, grid(3, 2), random);
  const auto mean = torch::tensor({0.485, 0.456, 0.406}, torch::kFloat).view({3, 1, 1}),
             std = torch::tensor({0.229, 0.224, 0.225}, torch::kFloat).view({3, 1, 1});
  EXPECT_TRUE(test::same_bits(apply({ToTensor{}, Normalize{}}, grid(3, 2), random), plain.sub(mean).div(std)));
}

TEST(Transforms, RandomPartsStayInTheirRanges) {
  std::map<bool, int> flipped;
  double smallest = 1, largest = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    SampleRandom random(1, 0, i), again(1, 0, i);
    const std::vector<Transform> flip = {RandomHorizontalFlip{}, ToTensor{}};
    const auto x = apply(flip, grid(2, 1), random);
    EXPECT_TRUE(test::same_bits(x, apply(flip, grid(2, 1), again)));
    flipped[x[0][0][0].item<float>() > 0] += 1;
    // Red and green of inner pixels tell where they were: a quarter of the part apart.
    const auto part =
        apply({RandomResizedCrop{.height = 4, .width = 4, .scale = {0.25, 0.5}}, ToTensor{}}, grid(200, 200), random) *
        255;
    const double width = 4 * (part[0][1][2] - part[0][1][1]).item<double>(),
                 height = 4 * (part[1][2][1] - part[1][1][1]).item<double>();
    const double area = width * height / 200 / 200, aspect = width / height;
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    EXPECT_TRUE(area > 0.2 && area < 0.56) << area;
    EXPECT_TRUE(aspect > 0.68 && aspect < 1.47) << aspect;
  }
  EXPECT_NEAR(flipped[true], 250, 45);  // 4 deviations
  EXPECT_LT(smallest, 0.29);
  EXPECT_GT(largest, 0.46);
  SampleRandom random(0, 0, 0);  // too narrow for any part: the largest in the middle
  EXPECT_THAT(apply({RandomResizedCrop{.height = 3, .width = 4}, ToTensor{}}, grid(100, 1), random).sizes(),
              ElementsAre(3, 3, 4));
}

TEST(Transforms, WrongListsAreRefused) {
  const auto said = [](const std::vector<Transform>& transforms) {
    return error_of([&] { check_transforms("train_transforms", transforms); });
  };
  EXPECT_EQ(said({ToTensor{}, Normalize{}}), "");
  EXPECT_THAT(said({}), HasSubstr("[data] train_transforms: found no ToTensor"));
  EXPECT_THAT(said({Normalize{}, ToTensor{}}), HasSubstr("Normalize: found before ToTensor"));
  EXPECT_THAT(said({ToTensor{}, Resize{}}), HasSubstr("Resize: found after ToTensor"));
  EXPECT_THAT(said({ToTensor{}, ToTensor{}}), HasSubstr("ToTensor: found after ToTensor"));
  EXPECT_THAT(said({RandomHorizontalFlip{1.5}, ToTensor{}}), HasSubstr("RandomHorizontalFlip: found p 1.5"));
  EXPECT_THAT(said({Resize{0}, ToTensor{}}), HasSubstr("Resize: found sizes 0 x 0"));
  EXPECT_THAT(said({ToTensor{}, Normalize{{0.5, 0.5}, {1}}}), HasSubstr("Normalize: found 2 values"));
  EXPECT_THAT(said({ToTensor{}, Normalize{{0}, {0}}}), HasSubstr("Normalize: found std 0.0"));
  EXPECT_THAT(said({RandomResizedCrop{.scale = {0, 1}}, ToTensor{}}), HasSubstr("a scale outside"));
}

void write(const fs::path& path, const io::IdxArray& array) {
  fs::create_directories(path.parent_path());
  const std::string bytes = io::idx_bytes(array);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(IdxDataset, ImagesAndLabels) {
  const test::TempDir root;
  EXPECT_EQ(find_mnist(root.path(), true), std::nullopt);
  const fs::path raw = root / "MNIST/raw";
  write(raw / "train-images-idx3-ubyte", {io::IdxType::u8, {2, 1, 3}, std::string("\x00\x01\xff\x80\x40\x20", 6)});
  write(raw / "train-labels-idx1-ubyte", {io::IdxType::u8, {2}, "\x07\xff"});
  const auto files = find_mnist(root.path(), true);
  ASSERT_TRUE(files.has_value());
  const IdxDataset data(files->first, files->second),
      normalized(files->first, files->second, Normalize{{0.1307}, {0.3081}});
  EXPECT_EQ(data.size(), 2);
  const auto expected = torch::tensor({128, 64, 32}, torch::kByte).view({1, 1, 3}).to(torch::kFloat).div(255);
  EXPECT_TRUE(test::same_bits(sample_of(data, 1)[0], expected));
  EXPECT_TRUE(test::same_bits(sample_of(data, 1)[1], torch::tensor(255, torch::kLong)));
  EXPECT_TRUE(test::same_bits(sample_of(normalized, 1)[0], expected.sub(0.1307f).div(0.3081f)));
  EXPECT_THAT(data.name_of(0), HasSubstr("train-images-idx3-ubyte"));
  write(raw / "train-labels-idx1-ubyte", {io::IdxType::u8, {3}, "abc"});
  EXPECT_REFUSED(IdxDataset(files->first, files->second), "train-labels-idx1-ubyte: 3 labels, ");
  EXPECT_REFUSED(IdxDataset(files->second, files->second), "an array of sizes [3], expected images [N, H, W]");
  write(raw / "train-labels-idx1-ubyte", {io::IdxType::u8, {2}, "ab"});
  EXPECT_REFUSED(IdxDataset(files->first, files->second, Normalize{}), "normalize: found 3 values");
}

TEST(HPUDataModule, StrictlyItRefusesWhatThePackageRefuses) {
  const test::TempDir root;
  make_folder(root / "imagenet/train");
  make_folder(root / "imagenet/val");
  HPUDataModuleOptions good{
      .train_dir = root / "imagenet/train", .val_dir = root / "imagenet/val", .batch_size = 2, .strict = true};
  const auto said = [](HPUDataModuleOptions options) { return error_of([&] { HPUDataModule(options).setup(); }); };
  EXPECT_EQ(said(good), "");
  const auto with = [&](const std::function<void(HPUDataModuleOptions&)>& change) {
    HPUDataModuleOptions options = good;
    change(options);
    const std::string strict = said(options);
    options.strict = false;
    EXPECT_EQ(said(options), "");
    return strict;
  };
  EXPECT_EQ(with([](auto& o) { o.shuffle = true; }), "HabanaDataLoader does not support shuffle=True");
  EXPECT_EQ(with([](auto& o) { o.pin_memory = false; }), "HabanaDataLoader only supports pin_memory=True");
  EXPECT_EQ(with([](auto& o) { o.num_workers = 2; }), "HabanaDataLoader only supports num_workers as 8");
  EXPECT_EQ(with([](auto& o) { o.train_transforms = {CenterCrop{}, ToTensor{}}; }),
            "Unsupported train transform: CenterCrop");
  EXPECT_EQ(with([](auto& o) { o.val_transforms = {RandomHorizontalFlip{}, ToTensor{}}; }),
            "Unsupported val transform: RandomHorizontalFlip");
  fs::rename(root / "imagenet", root / "pets");
  good.train_dir = root / "pets/train";
  good.val_dir = root / "pets/val";
  EXPECT_EQ(with([](auto&) {}), "Habana dataloader only supports Imagenet dataset");
}

TEST(HPUDataModule, LoadersOfTrainingAndValidation) {
  const test::TempDir root;
  make_folder(root / "ILSVRC2012");
  HPUDataModule module({.train_dir = root / "ILSVRC2012",
                        .val_dir = root / "ILSVRC2012",
                        .normalize = true,
                        .batch_size = 2,
                        .drop_last = false,
                        .strict = true});
  EXPECT_REFUSED(module.train_dataloader(), "before setup()");
  module.setup();
  EXPECT_TRUE(module.options().drop_last);  // with a warning
  const auto train = module.train_dataloader(), val = module.val_dataloader();
  EXPECT_EQ(train->batches(), 2);
  const auto batch = val->next();
  EXPECT_THAT(batch->tensors.at(0).sizes(), ElementsAre(2, 3, 224, 224));
  EXPECT_TRUE(batch->tensors.at(0).is_pinned());
  EXPECT_LT(batch->tensors.at(0).min().item<float>(), -0.1f);  // normalized
  EXPECT_TRUE(at::equal(batch->tensors.at(1), torch::tensor({0, 0})));
  EXPECT_THAT(train->next()->tensors.at(0).sizes(), ElementsAre(2, 3, 224, 224));
  HPUDataModule plain({.train_dir = root / "ILSVRC2012",
                       .val_dir = root / "ILSVRC2012",
                       .num_workers = 0,
                       .batch_size = 2,
                       .drop_last = false});
  plain.setup();
  EXPECT_EQ(plain.val_dataloader()->batches(), 3);
  EXPECT_EQ(plain.test_dataloader()->next()->tensors.at(0).min().item<float>() >= 0, true);
}

}  // namespace
}  // namespace fp8::data
