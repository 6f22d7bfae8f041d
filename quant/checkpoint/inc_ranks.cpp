// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant::inc {
namespace {

namespace fs = std::filesystem;
using io::DType, io::Json;

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

/// A small tensor in memory: scales, biases.
struct Tensor {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};

Tensor read(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  Tensor t{info.dtype, info.shape, std::vector<std::uint8_t>(info.bytes())};
  checkpoint.read(name, t.bytes.data());
  return t;
}

std::string text_of(io::DType dtype, const std::vector<std::int64_t>& shape) {
  return io::name_of(dtype) + std::string(" ") + io::shape_text(shape);
}

/// The parts of two ranks that do not make one tensor.
[[noreturn]] void fail_unlike(const std::string& where, const std::string& first, const std::string& other) {
  io::fail_at(where, "the parts of its ranks do not fit each other: found {} beside {}", other, first);
}

std::vector<float> values_of(const Tensor& t, const std::string& where) {
  if (!is_float(t.dtype)) io::fail_at(where, "expected dtype F32, BF16 or F16, found {}", io::name_of(t.dtype));
  std::vector<float> values(t.bytes.size() / static_cast<std::size_t>(io::size_of(t.dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::load_element(t.bytes.data(), float_type(t.dtype), static_cast<std::int64_t>(i));
    if (!std::isfinite(values[i]) || values[i] <= 0)
      io::fail_at(where, "expected finite scales > 0, found {}", values[i]);
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
      std::memcpy(out.bytes.data() + i * static_cast<std::size_t>(io::size_of(out.dtype)),
                  p.bytes.data() + i * static_cast<std::size_t>(io::size_of(p.dtype)),
                  static_cast<std::size_t>(io::size_of(out.dtype)));
    }
  }
  return out;
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

/// The dimension of a tensor that ranks share out; none: all have the same.
std::optional<std::size_t> dimension_of(const Parts& parts, const std::vector<std::int64_t>& shape, bool fp8,
                                        Split split) {
  if (parts.field == "weight" && shape.size() == 2)
    return (split == Split::output) == fp8 ? 1 : 0;  // codes are stored [K, N], the rest [N, K]
  const bool per_output = (is_weight_scale(parts.field) || parts.field == "bias") && shape.size() == 1;
  return per_output && split == Split::output ? std::optional<std::size_t>(0) : std::nullopt;
}

/// A tensor that ranks share out by rows or columns, as rows of bytes.
struct Matrix {
  Matrix(DType dtype, const std::vector<std::int64_t>& shape)
      : rows(shape[0]), width(io::size_of(dtype) * (shape.size() > 1 ? shape[1] : 1)) {}
  std::int64_t rows, width;

  std::uint64_t bytes(std::int64_t count) const { return static_cast<std::uint64_t>(count * width); }
  /// body(first row, rows) over all of them, a megabyte at a time.
  template <class Body>
  void each(Body body) const {
    const std::int64_t step = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / std::max<std::int64_t>(1, width));
    for (std::int64_t row = 0; row < rows; row += step) body(row, std::min(step, rows - row));
  }
};

/// Columns of bytes between rows of other widths; in and out stand at the first.
void move_columns(const std::uint8_t* in, std::int64_t in_width, std::uint8_t* out, std::int64_t out_width,
                  std::int64_t columns, std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r, in += in_width, out += out_width)
    std::memcpy(out, in, static_cast<std::size_t>(columns));
}

/// Codes [rows, cols] of one scale_inv into those of another. Both: one value, or one per column.
void requantize(std::uint8_t* codes, DType dtype, std::int64_t rows, std::int64_t cols, const std::vector<float>& from,
                const std::vector<float>& to, recipes::Dialect dialect) {
  if (from == to || rows * cols == 0) return;
  std::vector<float> values(static_cast<std::size_t>(rows * cols)), scale(to.size());
  for (std::size_t i = 0; i < to.size(); ++i) scale[i] = 1.0f / to[i];
  const auto format = dtype == DType::F8_E4M3 ? kernels::Format::E4M3 : kernels::Format::E5M2;
  kernels::DecodeArgs decode;
  decode.codes = codes;
  decode.rows = rows;
  decode.cols = cols;
  decode.format = format;
  decode.y = values.data();
  decode.scale_inv = from.data();
  if (from.size() > 1) decode.layout = kernels::ScaleLayout::per_column();
  kernels::decode_from_fp8(decode);
  kernels::CastArgs cast =
      kernels::dense_cast(values.data(), rows, cols, codes, format, kernels::fp8_max(format, dialect));
  cast.scales = scale.data();
  if (scale.size() > 1) cast.layout = kernels::ScaleLayout::per_column();
  kernels::cast_to_fp8(cast);
}

/// A tensor for the target rank that takes ranks [first, first + count) of the source.
class UnifiedTensor {
 public:
  UnifiedTensor(const Source& source, const std::string& base, Split split, int first, int count)
      : source_(source), base_(base), parts_(parts_of(base)), split_(split), first_(first), count_(count) {
    const auto& info = part(0);
    shape_ = info.shape;
    dim_ = dimension_of(parts_, shape_, is_fp8(info.dtype), split);
    for (int r = 1; dim_.has_value() && r < count; ++r) add(info, part(r));
  }

  /// The unit that writes it as `name`.
  Unit unit(const std::string& name) const {
    Unit unit{name, {{name, part(0).dtype, shape_}}, 0, {}, {}};
    for (int r = 0; r < count_; ++r) unit.source_bytes += part(r).bytes();
    unit.run = [*this, name, bytes = unit.source_bytes](UnitContext& context) {
      if (dim_.has_value()) return join(context, name);
      const Tensor t = common();
      context.write(name, t.bytes.data(), 0, t.bytes.size());
      context.advance(bytes);
    };
    return unit;
  }

 private:
  /// scale_inv of the codes of each part and, where that is to be another, of all of them.
  struct Scales {
    std::vector<std::vector<float>> from;
    std::vector<float> to;
  };

  std::string name_of(const std::string& base, int r) const { return with_rank(base, first_ + r, source_.world); }
  const io::TensorInfo& part(int r) const { return source_.checkpoint.info(name_of(base_, r)); }
  std::string where() const { return source_.checkpoint.folder().string() + ": " + base_; }

  void add(const io::TensorInfo& first, const io::TensorInfo& other) {
    bool fits = other.dtype == first.dtype && other.shape.size() == first.shape.size();
    for (std::size_t d = 0; fits && d < other.shape.size(); ++d) fits = d == *dim_ || other.shape[d] == first.shape[d];
    if (!fits) fail_unlike(where(), text_of(first.dtype, first.shape), text_of(other.dtype, other.shape));
    if (__builtin_add_overflow(shape_[*dim_], other.shape[*dim_], &shape_[*dim_]))
      io::fail_at(where(), "the parts of its ranks are too large");
  }

  std::vector<Tensor> read_all(const std::string& base) const {
    std::vector<Tensor> tensors;
    for (int r = 0; r < count_; ++r) tensors.push_back(read(source_.checkpoint, name_of(base, r)));
    return tensors;
  }

  Scales scales() const {
    if (!is_fp8(part(0).dtype)) return {};
    const std::string plain = parts_.module + ".scale_weight";
    const bool is_plain = source_.checkpoint.contains(name_of(plain, 0));
    const auto found = read_all(is_plain ? plain : parts_.module + ".dequant_weights.scale");
    if (split_ == Split::output && !found[0].shape.empty()) return {};  // each output keeps its own
    Scales scales{{}, values_of(extreme(found, true, where()), where())};
    for (int r = 0; r < count_; ++r) {
      scales.from.push_back(values_of(found[static_cast<std::size_t>(r)], where()));
      const auto& from = scales.from.back();
      if (from.size() != 1 && static_cast<std::int64_t>(from.size()) != part(r).shape.at(1))
        io::fail_at(where(), "found {} scales for other outputs", from.size());
    }
    return scales;
  }

  /// Rows of a part into context.in, in codes of the common scale.
  void read_rows(UnitContext& context, const Scales& scales, int r, std::int64_t row, std::int64_t rows) const {
    const auto& info = part(r);
    const Matrix m(info.dtype, info.shape);
    context.in.resize(m.bytes(rows));
    source_.checkpoint.read(info.name, context.in.data(), m.bytes(row), context.in.size());
    context.advance(context.in.size());
    if (!scales.to.empty())
      requantize(context.in.data(), info.dtype, rows, m.width, scales.from[static_cast<std::size_t>(r)], scales.to,
                 source_.dialect);
  }

  /// Puts the parts below or beside each other.
  void join(UnitContext& context, const std::string& name) const {
    const Scales made = scales();
    const Matrix whole(part(0).dtype, shape_);
    if (*dim_ == 1) {
      whole.each([&](std::int64_t row, std::int64_t rows) {
        context.out.resize(whole.bytes(rows));
        std::int64_t column = 0;
        for (int r = 0; r < count_; ++r) {
          const std::int64_t width = Matrix(part(r).dtype, part(r).shape).width;
          read_rows(context, made, r, row, rows);
          move_columns(context.in.data(), width, context.out.data() + column, whole.width, width, rows);
          column += width;
        }
        context.write(name, context.out.data(), whole.bytes(row), context.out.size());
      });
      return;
    }
    std::int64_t first = 0;
    for (int r = 0; r < count_; ++r) {
      const Matrix m(part(r).dtype, part(r).shape);
      m.each([&](std::int64_t row, std::int64_t rows) {
        read_rows(context, made, r, row, rows);
        context.write(name, context.in.data(), whole.bytes(first + row), context.in.size());
      });
      first += m.rows;
    }
  }

  /// Of a tensor that all ranks have alike, or a scale.
  Tensor common() const {
    const auto tensors = read_all(base_);
    if (is_weight_scale(parts_.field) || is_input_scale(parts_.field) || parts_.field == "scale")
      return extreme(tensors, true, where());
    if (parts_.field == "quant_input.scale_inv") return extreme(tensors, false, where());
    for (const auto& t : tensors)
      if (t.bytes != tensors[0].bytes) io::fail_at(where(), "ranks hold different values, expected copies");
    return tensors[0];
  }

  const Source& source_;
  std::string base_;
  Parts parts_;
  Split split_;
  int first_, count_;
  std::vector<std::int64_t> shape_;
  std::optional<std::size_t> dim_;
};

/// One of the source's tensors for `world` ranks: a part of dimension `dim` each, or (none) all of it.
Unit split_unit(const Source& source, const std::string& name, int world, std::optional<std::size_t> dim) {
  const auto& info = source.checkpoint.info(name);
  Unit unit{name, {}, info.bytes(), {}, {}};
  auto shape = info.shape;
  if (dim.has_value()) {
    if (shape[*dim] % world != 0)
      io::fail_at(source.checkpoint.folder().string() + ": " + name, "size {} can't be shared out to {} ranks",
                  shape[*dim], world);
    shape[*dim] /= world;
  }
  for (int r = 0; r < world; ++r) unit.entries.push_back({with_rank(name, r, world), info.dtype, shape});
  if (!dim.has_value()) {
    unit.run = [&source, name, world](UnitContext& context) {
      for (int r = 0; r < world; ++r) context.copy(source.checkpoint, name, with_rank(name, r, world));
    };
    return unit;
  }
  unit.run = [&source, name, world, dim, whole = Matrix(info.dtype, info.shape),
              part = Matrix(info.dtype, shape)](UnitContext& context) {
    whole.each([&](std::int64_t row, std::int64_t rows) {
      context.in.resize(whole.bytes(rows));
      source.checkpoint.read(name, context.in.data(), whole.bytes(row), context.in.size());
      context.advance(context.in.size());
      context.out.resize(part.bytes(rows));
      for (int r = 0; r < world; ++r) {
        if (*dim == 1) {
          move_columns(context.in.data() + r * part.width, whole.width, context.out.data(), part.width, part.width,
                       rows);
          context.write(with_rank(name, r, world), context.out.data(), part.bytes(row), context.out.size());
          continue;
        }
        const std::int64_t first = std::max(row, r * part.rows), last = std::min(row + rows, (r + 1) * part.rows);
        if (first < last)
          context.write(with_rank(name, r, world), context.in.data() + whole.bytes(first - row),
                        part.bytes(first - r * part.rows), part.bytes(last - first));
      }
    });
  };
  return unit;
}

/// Writes the job's units; all else is as in the source, but for the number of ranks.
void write_ranks(const Source& source, const fs::path& out, int world, Job job) {
  job.identify({{"command", "ranks"}});
  for (const auto& name : source.checkpoint.names()) job.stream.nonfinite.insert(name);  // values are not judged here
  job.form = &inc_form();
  job.quantization = source.config["quantization_config"];
  job.quantization["world_size"] = world == 1 ? -1 : world;
  job.texts.sidecar = source.sidecar;
  job.write(out);
}

/// Names of tensors without the suffix of a rank.
struct Names {
  std::vector<std::string> whole, shared_out;
};

/// Throws for a tensor of which a rank's part is missing.
Names names_of(const Source& source) {
  const fs::path& in = source.checkpoint.folder();
  const auto missing = [&](int rank, const std::string& name) {
    io::fail_at(in.string(), "rank {} of {} is missing: {}", rank, source.world, name);
  };
  Names names;
  const std::string first = with_rank("", 0, source.world), last_part = "_" + std::to_string(source.world);
  for (const auto& name : source.checkpoint.names()) {
    if (name.ends_with(first)) {
      names.shared_out.push_back(name.substr(0, name.size() - first.size()));
      for (int r = 1; r < source.world; ++r) {
        const std::string part = with_rank(names.shared_out.back(), r, source.world);
        if (!source.checkpoint.contains(part)) missing(r, part);
      }
      continue;
    }
    const std::string middle = name.ends_with(last_part) ? name.substr(0, name.size() - last_part.size()) : "";
    const auto at = middle.find_last_not_of("0123456789");
    const bool of_a_rank = at != std::string::npos && at + 1 < middle.size() && middle[at] == '_';
    if (!of_a_rank) {
      names.whole.push_back(name);
    } else if (!source.checkpoint.contains(middle.substr(0, at) + first)) {
      missing(0, middle.substr(0, at) + first);
    }
  }
  return names;
}

}  // namespace

Split usual_split(const std::string& module) { return is_row_parallel_name(module) ? Split::input : Split::output; }

int ranks_of(const fs::path& in) { return Source(in).world; }

void split_checkpoint(const fs::path& in, const fs::path& out, int world, StreamOptions stream, const SplitOf& split) {
  io::refuse_same_path(in, out);
  Job job(in, stream);
  const Source source(in);
  if (source.world != 1)
    io::fail_at(in.string(), "expected a checkpoint of one rank, found {}; unify it first", source.world);
  if (world < 2) io::fail_at(in.string(), "expected at least 2 ranks to write, found {}", world);
  for (const auto& name : source.checkpoint.names()) {
    const auto& info = source.checkpoint.info(name);
    const Parts parts = parts_of(name);
    const std::string weight = parts.module + ".weight";
    const bool shared_out = source.checkpoint.contains(weight) && is_fp8(source.checkpoint.info(weight).dtype);
    job.units.push_back(
        shared_out
            ? split_unit(source, name, world, dimension_of(parts, info.shape, is_fp8(info.dtype), split(parts.module)))
            : copy_unit(source.checkpoint, name, name));
  }
  write_ranks(source, out, world, std::move(job));
}

void unify_checkpoint(const fs::path& in, const fs::path& out, int world, StreamOptions stream, const SplitOf& split) {
  io::refuse_same_path(in, out);
  Job job(in, stream);
  const Source source(in);
  if (world < 1 || world >= source.world || source.world % world != 0)
    io::fail_at(in.string(), "found {} ranks to read and {} to write, allowed: a smaller divisor", source.world, world);
  const int size = source.world / world;
  const Names names = names_of(source);
  for (const auto& name : names.whole) job.units.push_back(copy_unit(source.checkpoint, name, name));
  for (const auto& base : names.shared_out)
    for (int j = 0; j < world; ++j)
      job.units.push_back(
          UnifiedTensor(source, base, split(parts_of(base).module), j * size, size).unit(with_rank(base, j, world)));
  write_ranks(source, out, world, std::move(job));
}

}  // namespace fp8::quant::inc
