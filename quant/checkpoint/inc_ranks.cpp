// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/inc_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "fp8/quant/forms/carry_through.h"
#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/sidecar.h"
#include "fp8/quant/names/model_names.h"
#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant::inc {
namespace {

namespace fs = std::filesystem;
using io::DType;
using io::Json;

std::string with_rank(const std::string& name, int rank, int world) {
  return world == 1 ? name : name + "_" + std::to_string(rank) + "_" + std::to_string(world);
}

bool is_fp8(DType dtype) { return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2; }

/// "model.layers.0.q_proj.quant_input.scale_inv" -> ("model.layers.0.q_proj", "quant_input.scale_inv").
struct Parts {
  std::string module, field;
};
Parts parts_of(const std::string& tensor) {
  for (const char* end : {".quant_input.scale_inv", ".quant_input.scale", ".quant_input.zero_point",
                          ".dequant_weights.scale", ".dequant_weights.zero_point"}) {
    if (tensor.ends_with(end)) return {tensor.substr(0, tensor.size() - std::strlen(end)), end + 1};
  }
  const auto dot = tensor.rfind('.');
  return dot == std::string::npos ? Parts{"", tensor} : Parts{tensor.substr(0, dot), tensor.substr(dot + 1)};
}

bool is_weight_scale(const std::string& field) { return field == "scale_weight" || field == "dequant_weights.scale"; }
bool is_input_scale(const std::string& field) { return field == "scale_input" || field == "quant_input.scale"; }

/// A tensor in memory.
struct Tensor {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;

  std::int64_t item() const { return io::size_of(dtype); }
};

Tensor read(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  Tensor t{info.dtype, info.shape, std::vector<std::uint8_t>(info.bytes())};
  checkpoint.read(name, t.bytes.data());
  return t;
}

/// Elements [first, first + count) of dimension `dim` of a tensor of one or two dimensions.
Tensor slice(const Tensor& t, std::size_t dim, std::int64_t first, std::int64_t count) {
  Tensor out{t.dtype, t.shape, {}};
  out.shape[dim] = count;
  const std::int64_t inner = dim + 1 < t.shape.size() ? t.shape[dim + 1] * t.item() : t.item(),
                     outer = dim == 0 ? 1 : t.shape[0];
  for (std::int64_t o = 0; o < outer; ++o) {
    const auto* begin = t.bytes.data() + (o * t.shape[dim] + first) * inner;
    out.bytes.insert(out.bytes.end(), begin, begin + count * inner);
  }
  return out;
}

std::string text_of(io::DType dtype, const std::vector<std::int64_t>& shape) {
  return io::name_of(dtype) + std::string(" ") + io::shape_text(shape);
}

/// The parts of two ranks that do not make one tensor.
[[noreturn]] void fail_unlike(const std::string& where, const std::string& first, const std::string& other) {
  io::fail_at(where, "the parts of its ranks do not fit each other: found " + other + " beside " + first);
}

/// Puts parts side by side along `dim`; throws if they differ otherwise.
Tensor concatenate(const std::vector<Tensor>& parts, std::size_t dim, const std::string& where) {
  Tensor out = parts[0];
  out.shape[dim] = 0;
  for (const auto& p : parts) {
    bool fits = p.dtype == out.dtype && p.shape.size() == out.shape.size();
    for (std::size_t d = 0; fits && d < p.shape.size(); ++d) fits = d == dim || p.shape[d] == out.shape[d];
    if (!fits) fail_unlike(where, text_of(parts[0].dtype, parts[0].shape), text_of(p.dtype, p.shape));
    out.shape[dim] += p.shape[dim];
  }
  out.bytes.clear();
  const std::int64_t outer = dim == 0 ? 1 : out.shape[0];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const auto& p : parts) {
      const std::int64_t run = static_cast<std::int64_t>(p.bytes.size()) / std::max<std::int64_t>(outer, 1);
      out.bytes.insert(out.bytes.end(), p.bytes.begin() + o * run, p.bytes.begin() + (o + 1) * run);
    }
  }
  return out;
}

std::vector<float> values_of(const Tensor& t, const std::string& where) {
  if (!is_float(t.dtype))
    io::fail_at(where, std::string("expected dtype F32, BF16 or F16, found ") + io::name_of(t.dtype));
  std::vector<float> values(t.bytes.size() / static_cast<std::size_t>(t.item()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::load_element(t.bytes.data(), float_type(t.dtype), static_cast<std::int64_t>(i));
    if (!std::isfinite(values[i]) || values[i] <= 0)
      io::fail_at(where, "expected finite scales > 0, found " + std::to_string(values[i]));
  }
  return values;
}

/// Elementwise the part with the largest (or smallest) value, in the parts' own dtype: nothing is rounded.
Tensor extreme(const std::vector<Tensor>& parts, bool largest, const std::string& where) {
  Tensor out = parts[0];
  std::vector<float> best = values_of(out, where);
  for (const auto& p : parts) {
    const auto values = values_of(p, where);
    if (values.size() != best.size() || p.dtype != out.dtype)
      fail_unlike(where, text_of(out.dtype, out.shape), text_of(p.dtype, p.shape));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (largest ? values[i] <= best[i] : values[i] >= best[i]) continue;
      best[i] = values[i];
      std::memcpy(out.bytes.data() + i * static_cast<std::size_t>(out.item()),
                  p.bytes.data() + i * static_cast<std::size_t>(p.item()), static_cast<std::size_t>(out.item()));
    }
  }
  return out;
}

/// Codes [K, N] of one scale_inv into those of another. Both: one value, or one per column.
void requantize(Tensor& codes, const std::vector<float>& from, const std::vector<float>& to, recipes::Dialect dialect) {
  if (from == to || codes.bytes.empty()) return;
  std::vector<float> values(codes.bytes.size()), scale(to.size());
  for (std::size_t i = 0; i < to.size(); ++i) scale[i] = 1.0f / to[i];
  const auto format = codes.dtype == DType::F8_E4M3 ? kernels::Format::E4M3 : kernels::Format::E5M2;
  kernels::DecodeArgs decode;
  decode.codes = codes.bytes.data();
  decode.rows = codes.shape[0];
  decode.cols = codes.shape[1];
  decode.format = format;
  decode.y = values.data();
  decode.scale_inv = from.data();
  if (from.size() > 1) decode.layout = kernels::ScaleLayout::per_column();
  kernels::decode_from_fp8(decode);
  kernels::CastArgs cast = kernels::dense_cast(values.data(), codes.shape[0], codes.shape[1], codes.bytes.data(),
                                               format, kernels::fp8_max(format, dialect));
  cast.scales = scale.data();
  cast.layout = decode.layout;
  kernels::cast_to_fp8(cast);
}

/// The source folder: its configs, and how many ranks it is of.
struct Source {
  explicit Source(const fs::path& folder)
      : checkpoint(folder), config(io::read_python_json(io::source_file(folder, io::kConfigFile))) {
    const std::string where = (folder / io::kConfigFile).string();
    if (!config.is_object() || !config.contains("quantization_config") ||
        !inc_form().recognizes(config["quantization_config"])) {
      io::fail_at(where, "key 'quantization_config': expected INC's ('fp8_config', 'scale_method')");
    }
    const Json found = config["quantization_config"].value("world_size", Json(-1));
    if (!found.is_number_integer() || found.get<std::int64_t>() > 65536)
      io::fail_at(where, "key 'world_size': expected an integer up to 65536");
    world = static_cast<int>(std::max<std::int64_t>(found.get<std::int64_t>(), 1));
    const fs::path sidecar_path = folder / kSidecarName;
    if (fs::exists(sidecar_path)) {
      sidecar = io::read_json(io::source_file(folder, kSidecarName));
      dialect = read_sidecar(sidecar, sidecar_path.string()).dialect;
    }
  }
  io::Checkpoint checkpoint;
  Json config, sidecar;
  int world = 1;
  recipes::Dialect dialect = recipes::Dialect::ocp;
};

/// Lays out the tensors first (name, dtype, shape), then takes their bytes.
void write_folder(const Source& source, const fs::path& out, int world, bool overwrite,
                  const std::vector<io::SafetensorsWriter::Entry>& entries,
                  const std::function<void(ShardedWriter&)>& write) {
  io::refuse_same_path(source.checkpoint.folder(), out);
  const Json carried = carried_identity_of(source.checkpoint.folder());
  OutputFolder folder(out, overwrite, source.checkpoint.folder());
  ShardedWriter writer(folder.path(), entries);
  write(writer);
  writer.commit();
  Json edits = {{"quantization_config", source.config["quantization_config"]}};
  edits["quantization_config"]["world_size"] = world == 1 ? -1 : world;
  folder.write_config(source.checkpoint.folder() / io::kConfigFile, edits);
  folder.write_json("quantization_config.json", edits["quantization_config"]);
  if (!source.sidecar.is_null()) folder.write_json(kSidecarName, source.sidecar);
  folder.carry_through(source.checkpoint.folder());
  require_carried_unchanged(source.checkpoint.folder(), carried);
  folder.commit();
}

void write_tensor(ShardedWriter& writer, const std::string& name, const Tensor& t) {
  writer.write(name, t.bytes.data(), 0, t.bytes.size());
}

/// The dimension of a tensor that ranks share out; none: all have the same.
std::optional<std::size_t> dimension_of(const Parts& parts, const std::vector<std::int64_t>& shape, bool fp8,
                                        Split split) {
  if (parts.field == "weight" && shape.size() == 2)
    return (split == Split::output) == fp8 ? 1 : 0;  // codes are stored [K, N], the rest [N, K]
  const bool per_output = (is_weight_scale(parts.field) || parts.field == "bias") && shape.size() == 1;
  return per_output && split == Split::output ? std::optional<std::size_t>(0) : std::nullopt;
}

/// All parts of a tensor for the target rank that takes ranks [first, first + count).
class Group {
 public:
  Group(const Source& source, const SplitOf& split, int first, int count)
      : source_(source), split_(split), first_(first), count_(count) {}

  Tensor unify(const std::string& base) const {
    const Parts parts = parts_of(base);
    std::vector<Tensor> tensors = read_all(base);
    const bool fp8 = is_fp8(tensors[0].dtype);
    const std::string where = source_.checkpoint.folder().string() + ": " + base;
    const auto dim = dimension_of(parts, tensors[0].shape, fp8, split_(parts.module));
    if (fp8) {
      const std::string name = scale_name(parts.module);
      const auto scales = read_all(name);
      const auto to = split_(parts.module) == Split::input || scales[0].shape.empty()
                          ? values_of(extreme(scales, true, where), where)
                          : std::vector<float>{};
      for (std::size_t i = 0; i < tensors.size() && !to.empty(); ++i) {
        const auto from = values_of(scales[i], where);
        if (from.size() != 1 && static_cast<std::int64_t>(from.size()) != tensors[i].shape.at(1))
          io::fail_at(where, "found " + std::to_string(from.size()) + " scales for other outputs");
        requantize(tensors[i], from, to, source_.dialect);
      }
    }
    if (dim.has_value()) return concatenate(tensors, *dim, where);
    if (is_weight_scale(parts.field) || is_input_scale(parts.field) || parts.field == "scale")
      return extreme(tensors, true, where);
    if (parts.field == "quant_input.scale_inv") return extreme(tensors, false, where);
    for (const auto& t : tensors) {
      if (t.bytes != tensors[0].bytes) io::fail_at(where, "ranks hold different values, expected copies");
    }
    return tensors[0];
  }

 private:
  std::vector<Tensor> read_all(const std::string& base) const {
    std::vector<Tensor> tensors;
    for (int r = first_; r < first_ + count_; ++r)
      tensors.push_back(read(source_.checkpoint, with_rank(base, r, source_.world)));
    return tensors;
  }
  std::string scale_name(const std::string& module) const {
    const std::string plain = module + ".scale_weight";
    return source_.checkpoint.contains(with_rank(plain, first_, source_.world)) ? plain
                                                                                : module + ".dequant_weights.scale";
  }

  const Source& source_;
  const SplitOf& split_;
  int first_, count_;
};

}  // namespace

Split usual_split(const std::string& module) { return is_row_parallel_name(module) ? Split::input : Split::output; }

void split_checkpoint(const fs::path& in, const fs::path& out, int world, bool overwrite, const SplitOf& split) {
  const Source source(in);
  if (source.world != 1)
    io::fail_at(in.string(),
                "expected a checkpoint of one rank, found " + std::to_string(source.world) + "; unify it first");
  if (world < 2) io::fail_at(in.string(), "expected at least 2 ranks to write, found " + std::to_string(world));
  struct Item {
    std::string name;
    bool shared_out;
    std::optional<std::size_t> dim;
  };
  std::vector<Item> items;
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& name : source.checkpoint.names()) {
    const auto& info = source.checkpoint.info(name);
    const Parts parts = parts_of(name);
    const std::string weight = parts.module + ".weight";
    const bool shared_out = source.checkpoint.contains(weight) && is_fp8(source.checkpoint.info(weight).dtype);
    Item item{name, shared_out,
              shared_out ? dimension_of(parts, info.shape, is_fp8(info.dtype), split(parts.module)) : std::nullopt};
    auto shape = info.shape;
    if (item.dim.has_value()) {
      if (shape[*item.dim] % world != 0) {
        io::fail_at(in.string() + ": " + name, "size " + std::to_string(shape[*item.dim]) + " can't be shared out to " +
                                                   std::to_string(world) + " ranks");
      }
      shape[*item.dim] /= world;
    }
    for (int r = 0; r < (shared_out ? world : 1); ++r)
      entries.push_back({shared_out ? with_rank(name, r, world) : name, info.dtype, shape});
    items.push_back(std::move(item));
  }
  write_folder(source, out, world, overwrite, entries, [&](ShardedWriter& writer) {
    for (const auto& item : items) {
      const Tensor whole = read(source.checkpoint, item.name);
      for (int r = 0; r < (item.shared_out ? world : 1); ++r) {
        const std::string name = item.shared_out ? with_rank(item.name, r, world) : item.name;
        if (!item.dim.has_value()) {
          write_tensor(writer, name, whole);
          continue;
        }
        const std::int64_t part = whole.shape[*item.dim] / world;
        write_tensor(writer, name, slice(whole, *item.dim, part * r, part));
      }
    }
  });
}

void unify_checkpoint(const fs::path& in, const fs::path& out, int world, bool overwrite, const SplitOf& split) {
  const Source source(in);
  if (world < 1 || world >= source.world || source.world % world != 0) {
    io::fail_at(in.string(), "found " + std::to_string(source.world) + " ranks to read and " + std::to_string(world) +
                                 " to write, allowed: a smaller divisor");
  }
  const int size = source.world / world;
  std::vector<std::string> whole, shared_out;  // base names
  const std::string first = with_rank("", 0, source.world), last_part = "_" + std::to_string(source.world);
  for (const auto& name : source.checkpoint.names()) {
    if (name.ends_with(first)) {
      shared_out.push_back(name.substr(0, name.size() - first.size()));
      for (int r = 1; r < source.world; ++r) {
        if (!source.checkpoint.contains(with_rank(shared_out.back(), r, source.world))) {
          io::fail_at(in.string(), "rank " + std::to_string(r) + " of " + std::to_string(source.world) +
                                       " is missing: " + with_rank(shared_out.back(), r, source.world));
        }
      }
      continue;
    }
    const std::string middle = name.ends_with(last_part) ? name.substr(0, name.size() - last_part.size()) : "";
    const auto at = middle.find_last_not_of("0123456789");
    const bool of_a_rank = at != std::string::npos && at + 1 < middle.size() && middle[at] == '_';
    if (!of_a_rank) {
      whole.push_back(name);
    } else if (!source.checkpoint.contains(middle.substr(0, at) + first)) {
      io::fail_at(in.string(),
                  "rank 0 of " + std::to_string(source.world) + " is missing: " + middle.substr(0, at) + first);
    }
  }
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& name : whole)
    entries.push_back({name, source.checkpoint.info(name).dtype, source.checkpoint.info(name).shape});
  for (const auto& base : shared_out) {
    const Parts parts = parts_of(base);
    for (int j = 0; j < world; ++j) {
      const auto& info = source.checkpoint.info(with_rank(base, j * size, source.world));
      auto shape = info.shape;
      if (const auto dim = dimension_of(parts, shape, is_fp8(info.dtype), split(parts.module))) {
        for (int r = j * size + 1; r < (j + 1) * size; ++r) {
          const auto& other = source.checkpoint.info(with_rank(base, r, source.world)).shape;
          if (other.size() != shape.size())
            fail_unlike(in.string() + ": " + base, text_of(info.dtype, info.shape), text_of(info.dtype, other));
          if (__builtin_add_overflow(shape[*dim], other[*dim], &shape[*dim]))
            io::fail_at(in.string() + ": " + base, "the parts of its ranks are too large");
        }
      }
      entries.push_back({with_rank(base, j, world), info.dtype, shape});
    }
  }
  write_folder(source, out, world, overwrite, entries, [&](ShardedWriter& writer) {
    for (const auto& name : whole) write_tensor(writer, name, read(source.checkpoint, name));
    for (const auto& base : shared_out) {
      for (int j = 0; j < world; ++j)
        write_tensor(writer, with_rank(base, j, world), Group(source, split, j * size, size).unify(base));
    }
  });
}

}  // namespace fp8::quant::inc
