// SPDX-License-Identifier: Apache-2.0
// A file of torch.save (pytorch_model.bin, consolidated.00.pth) as a file of tensors. No torch here, and no Python: the
// pickle in it is read by a machine that knows dicts, numbers, text and tensors, and refuses everything else by name.
//
//   zip, members stored:  archive/data.pkl    pickle of {name: _rebuild_tensor_v2(storage '0', offset, sizes, strides,
//   ..)}
//                         archive/data/0      the bytes of storage '0'
//                         archive/byteorder   "little"
//
// The dict may stand under "state_dict", "model", "model_state_dict" or "module" of another one. What is no tensor in
// it is passed over. Two names of one storage (tied weights) are two tensors. The form before PyTorch 1.6 (no zip) and
// TorchScript archives are refused.
#pragma once

#include "fp8/runtime/io/tensors/tensor_file.h"
#include "fp8/runtime/io/tensors/zip.h"

namespace fp8::io {

/// True if a file begins as torch.save's do, in the old form or the new; false too if it can't be opened.
bool is_torch_file(const std::filesystem::path& path);

class TorchFile : public TensorFile {
 public:
  /// Reads the pickle (at most 64 MiB) and checks each tensor against its storage. Throws io::Error.
  explicit TorchFile(std::filesystem::path path);

  /// Empty for a tensor whose elements do not stand side by side in row-major order.
  std::optional<Place> place(const TensorInfo& tensor) const override;

 private:
  friend class TorchDictReader;
  /// The places of a tensor's elements: element (i, j, ..) at begin + (i * strides[0] + j * strides[1] + ..) * size.
  /// Dimensions of size 1 are left out, neighbours that run on into each other are one.
  struct Layout {
    std::uint64_t begin = 0;  // of the first element, in the file
    std::vector<std::int64_t> sizes, strides;
    bool contiguous() const { return sizes.empty() || (sizes.size() == 1 && strides[0] == 1); }
  };
  void read_bytes(const TensorInfo& tensor, void* destination, std::uint64_t offset, std::uint64_t size) const override;
  const Layout& layout_of(const TensorInfo& tensor) const;

  ZipFile zip_;
  std::vector<Layout> layouts_;  // of tensors_
};

}  // namespace fp8::io
