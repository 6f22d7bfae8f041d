// SPDX-License-Identifier: Apache-2.0
// A bf16 checkpoint of 1 GB quantized on disk, beside `cp` of the source: ns is ours with everything on disk (fsync) at
// the end; cp_ns and cp_sync_ns are cp alone and cp followed by an fsync; ratio = ns / cp_ns, ratio_sync = ns /
// cp_sync_ns. Below 1: faster than a copy. write_sync_ns: as many bytes as ours has, written and synced by itself,
// which is what the disk asks for. Files lie in TMPDIR (default /tmp); the page cache is warm.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::checkpoint_cases {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHidden = 2048, kInner = 5632, kLayers = 10, kVocabulary = 16000;

/// The folder with the source, and where outputs go.
class Files {
 public:
  Files() {
    std::string name = (fs::temp_directory_path() / "fp8_bench_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    folder_ = name;
    fs::create_directory(model());
    std::ofstream(model() / "config.json") << "{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\"}\n";
    write_weights();
  }
  ~Files() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  fs::path model() const { return folder_ / "model"; }
  fs::path out() const { return folder_ / "out"; }
  fs::path copy() const { return folder_ / "copy.safetensors"; }
  fs::path written() const { return folder_ / "written"; }

 private:
  void write_weights() const {
    std::vector<io::SafetensorsWriter::Entry> entries = {
        {"model.embed_tokens.weight", io::DType::BF16, {kVocabulary, kHidden}}};
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"})
        entries.push_back({layer + name + ".weight", io::DType::BF16, {kHidden, kHidden}});
      for (const char* name : {"mlp.gate_proj", "mlp.up_proj"})
        entries.push_back({layer + name + ".weight", io::DType::BF16, {kInner, kHidden}});
      entries.push_back({layer + "mlp.down_proj.weight", io::DType::BF16, {kHidden, kInner}});
    }
    std::vector<std::uint16_t> values(static_cast<std::size_t>(kVocabulary * kHidden));
    std::uint32_t state = 1;
    for (auto& v : values) {  // signs and sizes of all kinds, from 2^-8 to 1
      state = state * 1664525u + 1013904223u;
      v = static_cast<std::uint16_t>((state >> 31 << 15) | (0x3B80u + (state >> 16) % 0x400u));
    }
    io::SafetensorsWriter writer(model() / "model.safetensors", entries);
    for (const auto& e : entries) writer.write(e.name, values.data());
    writer.commit();
  }
  fs::path folder_;
};

void sync_and_close(int fd) {
  require(fd >= 0 && ::fsync(fd) == 0, "fsync");
  ::close(fd);
}

void copy(const Files& files, bool sync) {
  std::error_code ignored;
  fs::remove(files.copy(), ignored);
  const std::string command =
      "cp '" + (files.model() / "model.safetensors").string() + "' '" + files.copy().string() + "'";
  require(std::system(command.c_str()) == 0, "cp");
  if (sync) sync_and_close(::open(files.copy().c_str(), O_RDONLY));
}

void write_and_sync(const Files& files, std::uint64_t bytes) {
  static const std::vector<char> chunk(std::size_t{1} << 20, 1);
  std::error_code ignored;
  fs::remove(files.written(), ignored);
  const int fd = ::open(files.written().c_str(), O_WRONLY | O_CREAT, 0666);
  for (std::uint64_t done = 0; done < bytes; done += chunk.size())
    require(::write(fd, chunk.data(), chunk.size()) == static_cast<ssize_t>(chunk.size()), "write");
  sync_and_close(fd);
}

at::Tensor tensor_of(const io::Checkpoint& checkpoint, const std::string& name, at::ScalarType type) {
  at::Tensor tensor = at::empty(checkpoint.info(name).shape, type);
  checkpoint.read(name, tensor.mutable_data_ptr());
  return tensor.to(at::kFloat);
}

/// Codes times their scales are the source, but for E4M3's rounding: 2^-4 of a number at most, 0.026 on average.
void check(const Files& files, const std::string& name) {
  const io::Checkpoint source(files.model()), made(files.out());
  const std::string weight = "model.layers.0.mlp.down_proj.weight", scale = weight + "_scale";
  const at::Tensor expected = tensor_of(source, weight, at::kBFloat16);
  const at::Tensor codes = tensor_of(made, weight, at::kFloat8_e4m3fn);
  at::Tensor scales = tensor_of(made, scale, made.info(scale).dtype == io::DType::F32 ? at::kFloat : at::kBFloat16);
  if (scales.dim() < 2) scales = scales.reshape({-1, 1});
  scales = scales.repeat_interleave(codes.size(0) / scales.size(0), 0);
  scales = scales.repeat_interleave(codes.size(1) / scales.size(1), 1);
  const double error = ((codes * scales - expected).norm() / expected.norm()).item<double>();
  require(error < 0.04, "checkpoint " + name);
}

void run(Runner& runner) {
  const std::vector<std::pair<const char*, recipes::Granularity>> cases = {
      {"quantize channel", recipes::Granularity::channel},
      {"quantize tensor", recipes::Granularity::tensor},
      {"quantize block", recipes::Granularity::block}};
  std::unique_ptr<Files> files;
  for (const auto& [name, granularity] : cases) {
    if (!runner.wants(name)) continue;
    if (!files) files = std::make_unique<Files>();
    quant::CheckpointOptions options;
    options.plan.weights = granularity;
    quant::CheckpointReport report;
    const auto quantize = [&] {
      std::error_code ignored;
      fs::remove_all(files->out(), ignored);
      report = quant::quantize_checkpoint(files->model(), files->out(), options);
    };
    quantize();
    check(*files, name);
    const auto times = runner.medians({quantize, [&] { copy(*files, false); }, [&] { copy(*files, true); },
                                       [&] { write_and_sync(*files, report.weights_bytes); }});
    runner.print({.name = name,
                  .ns = times[0],
                  .bytes = static_cast<double>(report.source_bytes + report.weights_bytes),
                  .extra = {{"cp_ns", times[1]},
                            {"cp_sync_ns", times[2]},
                            {"write_sync_ns", times[3]},
                            {"ratio", times[0] / times[1]},
                            {"ratio_sync", times[0] / times[2]}}});
  }
}

const Registration registration("checkpoint", run);

}  // namespace
}  // namespace fp8::bench::checkpoint_cases
