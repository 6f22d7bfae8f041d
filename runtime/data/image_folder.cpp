// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/image_folder.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <system_error>

namespace fp8::data {
namespace {

/// Python's round(): halves to even.
std::int64_t rounded(double x) { return static_cast<std::int64_t>(std::nearbyint(x)); }

io::Box random_box(const RandomResizedCrop& t, const io::Image& image, SampleRandom& random) {
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = width * height * random.uniform(t.scale.first, t.scale.second);
    const double aspect = std::exp(random.uniform(std::log(t.ratio.first), std::log(t.ratio.second)));
    const std::int64_t w = rounded(std::sqrt(area * aspect)), h = rounded(std::sqrt(area / aspect));
    if (w < 1 || w > image.width || h < 1 || h > image.height) continue;
    const auto top = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(image.height - h + 1)));
    const auto left = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(image.width - w + 1)));
    return {left, top, w, h};
  }
  std::int64_t w = image.width, h = image.height;
  if (width / height < t.ratio.first) h = rounded(width / t.ratio.first);
  if (width / height > t.ratio.second) w = rounded(height * t.ratio.second);
  w = std::clamp<std::int64_t>(w, 1, image.width);
  h = std::clamp<std::int64_t>(h, 1, image.height);
  return {(image.width - w) / 2, (image.height - h) / 2, w, h};
}

/// Returns the begin of the middle part; below 0 (before the image) where the image is smaller than the part.
std::int64_t middle(std::int64_t size, std::int64_t wanted) {
  return wanted > size ? -((wanted - size) / 2) : rounded(static_cast<double>(size - wanted) / 2.0);
}

struct OfImage {
  io::Image image;
  SampleRandom& random;

  void operator()(const RandomResizedCrop& t) {
    image = io::resized(io::cropped(image, random_box(t, image, random)), t.width, t.height);
  }
  void operator()(const RandomHorizontalFlip& t) {
    if (random.uniform() < t.p) image = io::mirrored(image);
  }
  void operator()(const Resize& t) {
    std::int64_t width = t.width, height = t.height;
    if (width == 0) {
      const auto longer = static_cast<double>(std::max(image.width, image.height)),
                 shorter = static_cast<double>(std::min(image.width, image.height));
      const auto other = static_cast<std::int64_t>(static_cast<double>(t.height) * longer / shorter);
      width = image.width <= image.height ? t.height : other;
      height = image.width <= image.height ? other : t.height;
    }
    image = io::resized(image, width, height);
  }
  void operator()(const CenterCrop& t) {
    image = io::cropped(image, {middle(image.width, t.width), middle(image.height, t.height), t.width, t.height});
  }
  void operator()(const ToTensor&) {}
  void operator()(const Normalize&) {}
};

at::Tensor to_tensor(const io::Image& image) {
  at::Tensor x = at::empty({3, image.height, image.width}, at::kFloat);
  auto* to = x.mutable_data_ptr<float>();
  const std::size_t pixels = static_cast<std::size_t>(image.height * image.width);
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      to[channel * pixels + i] = static_cast<float>(image.pixels[3 * i + channel]) / 255.0f;
  return x;
}

/// Returns what is wrong with a transform; "": nothing.
struct Fault {
  static std::string of_size(std::int64_t height, std::int64_t width, std::int64_t least_width) {
    constexpr std::int64_t kMost = 16384;
    if (height >= 1 && width >= least_width && height <= kMost && width <= kMost) return "";
    return io::message("sizes {} x {}, allowed: 1 to 16384", height, width);
  }
  std::string operator()(const RandomResizedCrop& t) const {
    if (!(t.scale.first > 0 && t.scale.first <= t.scale.second && t.scale.second <= 1))
      return "a scale outside of (0, 1]";
    if (!(t.ratio.first > 0 && t.ratio.first <= t.ratio.second && std::isfinite(t.ratio.second)))
      return "a ratio that is no range above 0";
    return of_size(t.height, t.width, 1);
  }
  std::string operator()(const RandomHorizontalFlip& t) const {
    return t.p >= 0 && t.p <= 1 ? "" : io::message("p {}, allowed: 0 to 1", t.p);
  }
  std::string operator()(const Resize& t) const { return of_size(t.height, t.width, 0); }
  std::string operator()(const CenterCrop& t) const { return of_size(t.height, t.width, 1); }
  std::string operator()(const ToTensor&) const { return ""; }
  std::string operator()(const Normalize& t) const {
    for (const auto* values : {&t.mean, &t.std})
      if (values->size() != 1 && values->size() != 3)
        return std::to_string(values->size()) + " values, allowed: 1 or 3";
    for (const double s : t.std)
      if (!(s > 0) || std::isinf(s)) return io::message("std {}, allowed: a number above 0", s);
    return "";
  }
};

}  // namespace

const char* name_of(const Transform& transform) {
  constexpr const char* kNames[] = {"RandomResizedCrop", "RandomHorizontalFlip", "Resize", "CenterCrop", "ToTensor",
                                    "Normalize"};
  static_assert(std::variant_size_v<Transform> == std::size(kNames));
  return kNames[transform.index()];
}

void check_transforms(const std::string& option, const std::vector<Transform>& transforms) {
  bool tensor = false;
  for (const auto& transform : transforms) {
    std::string fault = std::visit(Fault{}, transform);
    const bool of_tensor = std::holds_alternative<Normalize>(transform);
    if (fault.empty() && of_tensor != tensor) fault = tensor ? "after ToTensor" : "before ToTensor";
    if (!fault.empty()) io::fail<std::invalid_argument>("[data] {}: {}: found {}", option, name_of(transform), fault);
    tensor = tensor || std::holds_alternative<ToTensor>(transform);
  }
  if (!tensor) io::fail<std::invalid_argument>("[data] {}: found no ToTensor, allowed: one, before Normalize", option);
}

void normalize(const Normalize& transform, at::Tensor& x) {
  const std::size_t channels = static_cast<std::size_t>(x.size(0));
  const std::size_t each = channels == 0 ? 0 : static_cast<std::size_t>(x.numel()) / channels;
  auto* to = x.mutable_data_ptr<float>();
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const auto mean = static_cast<float>(transform.mean[std::min(channel, transform.mean.size() - 1)]);
    const auto std = static_cast<float>(transform.std[std::min(channel, transform.std.size() - 1)]);
    for (std::size_t i = 0; i < each; ++i, ++to) *to = (*to - mean) / std;
  }
}

at::Tensor apply(const std::vector<Transform>& transforms, io::Image image, SampleRandom& random) {
  OfImage work{std::move(image), random};
  at::Tensor x;
  for (const auto& transform : transforms) {
    if (std::holds_alternative<ToTensor>(transform))
      x = to_tensor(work.image);
    else if (const auto* of_tensor = std::get_if<Normalize>(&transform))
      normalize(*of_tensor, x);
    else
      std::visit(work, transform);
  }
  return x;
}

namespace {

namespace fs = std::filesystem;

constexpr int kMostDepth = 32;  // fewer than the 40 links that Linux follows, behind which a circle looks like a file

/// An image to torchvision, and to us none.
bool is_other_image(const fs::path& path) {
  constexpr std::array<const char*, 7> kEndings = {".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"};
  return std::find(kEndings.begin(), kEndings.end(), io::lower(path.extension().string())) != kEndings.end();
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::directory_entry> found;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) found.push_back(*at);
  if (code) io::fail_errno(folder, "list", code.value());
  std::sort(found.begin(), found.end());
  return found;
}

/// The folder and those below it, relative to `root`.
void folders_below(const fs::path& root, const std::string& folder, int depth, std::vector<std::string>& found) {
  if (depth > kMostDepth)
    io::fail(root / folder, "more than {} folders within each other (links in a circle?)", kMostDepth);
  found.push_back(folder);
  for (const auto& entry : entries_of(root / folder)) {
    std::error_code ignored;
    if (entry.is_directory(ignored))
      folders_below(root, folder + "/" + entry.path().filename().string(), depth + 1, found);
  }
}

/// Images of a class: the folders in the order of their whole names, the files of each in that of theirs.
std::vector<std::string> images_of(const fs::path& root, const std::string& name) {
  std::vector<std::string> folders, images;
  folders_below(root, name, 0, folders);
  std::sort(folders.begin(), folders.end());
  for (const auto& folder : folders)
    for (const auto& entry : entries_of(root / folder)) {
      std::error_code ignored;
      if (entry.is_directory(ignored)) continue;
      if (is_other_image(entry.path()))
        io::fail(entry.path(), "an image of this form is not read, allowed: .png, .jpg, .jpeg");
      if (io::has_image_name(entry.path())) images.push_back(folder + "/" + entry.path().filename().string());
    }
  return images;
}

}  // namespace

ImageFolder::ImageFolder(fs::path root, std::vector<Transform> transforms)
    : root_(std::move(root)), transforms_(std::move(transforms)) {
  check_transforms("transforms", transforms_);
  std::error_code ignored;
  if (!fs::is_directory(root_, ignored)) io::fail(root_, "expected a folder with a folder of each class");
  for (const auto& entry : entries_of(root_))
    if (entry.is_directory(ignored)) classes_.push_back(entry.path().filename().string());
  if (classes_.empty()) io::fail(root_, "found no folder of a class");
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    auto images = images_of(root_, classes_[label]);
    if (images.empty()) io::fail(root_ / classes_[label], "found no image of this class (.png, .jpg, .jpeg)");
    for (auto& image : images) samples_.push_back({std::move(image), static_cast<std::int64_t>(label)});
  }
}

std::vector<at::Tensor> ImageFolder::get(std::int64_t index, SampleRandom& random) const {
  const Item& item = samples_.at(static_cast<std::size_t>(index));
  at::Tensor image = apply(transforms_, io::read_image(root_ / item.file), random);
  at::Tensor label = at::empty({}, at::kLong);
  *label.mutable_data_ptr<std::int64_t>() = item.label;
  return {std::move(image), std::move(label)};
}

std::string ImageFolder::name_of(std::int64_t index) const {
  return io::printable(samples_.at(static_cast<std::size_t>(index)).file, 4096);
}

namespace {

io::IdxArray read_bytes(const fs::path& path, std::size_t dimensions, const char* what) {
  io::IdxArray array = io::read_idx(path);
  if (array.type != io::IdxType::u8 || array.shape.size() != dimensions)
    io::fail(path, "an array of sizes {}, expected {} of unsigned bytes", io::shape_text(array.shape), what);
  return array;
}

std::optional<fs::path> existing(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  for (const char* ending : {"", ".gz"})
    if (auto path = folder / (name + ending); fs::is_regular_file(path, ignored)) return path;
  return std::nullopt;
}

}  // namespace

IdxDataset::IdxDataset(const fs::path& images, const fs::path& labels, std::optional<Normalize> normalize)
    : file_(images.string()),
      images_(read_bytes(images, 3, "images [N, H, W]")),
      labels_(read_bytes(labels, 1, "labels [N]")),
      normalize_(std::move(normalize)) {
  if (labels_.shape[0] != images_.shape[0])
    io::fail(labels, "{} labels, {} has {} images", labels_.shape[0], images.string(), images_.shape[0]);
  if (!normalize_) return;
  check_transforms("normalize", {ToTensor{}, *normalize_});
  if (normalize_->mean.size() != 1 || normalize_->std.size() != 1)
    throw std::invalid_argument("[data] normalize: found 3 values, allowed: 1, images have one channel");
}

std::vector<at::Tensor> IdxDataset::get(std::int64_t index, SampleRandom&) const {
  at::Tensor image = at::empty({1, images_.shape[1], images_.shape[2]}, at::kFloat);
  const auto count = static_cast<std::size_t>(image.numel());
  const auto* from = images_.elements.data() + static_cast<std::size_t>(index) * count;
  std::transform(from, from + count, image.mutable_data_ptr<float>(),
                 [](char byte) { return static_cast<float>(static_cast<std::uint8_t>(byte)) / 255.0f; });
  if (normalize_) data::normalize(*normalize_, image);
  at::Tensor label = at::empty({}, at::kLong);
  *label.mutable_data_ptr<std::int64_t>() = label_of(index);
  return {std::move(image), std::move(label)};
}

std::string IdxDataset::name_of(std::int64_t) const { return io::printable(file_, 4096); }

std::optional<std::pair<fs::path, fs::path>> find_mnist(const fs::path& root, bool train) {
  const std::string part = train ? "train" : "t10k";
  for (const fs::path& folder : {root, root / "MNIST" / "raw", root / "raw"}) {
    const auto images = existing(folder, part + "-images-idx3-ubyte"),
               labels = existing(folder, part + "-labels-idx1-ubyte");
    if (images && labels) return std::pair(*images, *labels);
  }
  return std::nullopt;
}

namespace {

template <class... Known>
void check_known(const std::optional<std::vector<Transform>>& transforms, const char* stage) {
  if (!transforms) return;
  for (const auto& transform : *transforms)
    if (!(std::holds_alternative<Known>(transform) || ...))
      io::fail<std::invalid_argument>("Unsupported {} transform: {}", stage, name_of(transform));
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
  return std::make_unique<DataLoader>(dataset,
                                      DataLoaderOptions{.batch_size = o.batch_size,
                                                        .shuffle = shuffle,
                                                        .num_workers = o.num_workers,
                                                        .prefetch_factor = o.prefetch_factor,
                                                        .pin_memory = o.pin_memory,
                                                        .non_blocking = o.non_blocking,
                                                        .last_batch = o.drop_last ? LastBatch::drop : LastBatch::keep,
                                                        .seed = o.seed,
                                                        .persistent_workers = o.persistent_workers,
                                                        .timeout = o.timeout,
                                                        .device = o.device});
}

std::unique_ptr<DataLoader> HPUDataModule::train_dataloader() const { return loader(dataset_train_, true); }
std::unique_ptr<DataLoader> HPUDataModule::val_dataloader() const { return loader(dataset_val_, options_.shuffle); }

}  // namespace fp8::data
