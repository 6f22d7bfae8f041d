// SPDX-License-Identifier: Apache-2.0
// The report of `fp8 inspect` on a file: one JSON object, and for people a summary and tables.
#pragma once

#include "fp8/quant/damage/checkpoint_damage.h"
#include "fp8/tools/commands/options/input_options.h"

namespace fp8::commands {

/// From here on a scale or an amax is absurd: its square leaves f32.
inline constexpr double kAbsurd = 0x1p64;

struct Inspection {
  io::Json json;     ///< has "kind": "checkpoint", "measurement", "scales" or "shapes"
  std::string text;  ///< summary and problems, ends with a newline
  std::string all;   ///< every tensor or module, where that was asked for
  /// The modules of an fp8 checkpoint that stay in high precision, and why.
  std::vector<quant::SkippedModule> kept = {};
  std::shared_ptr<const io::Checkpoint> checkpoint = nullptr;  ///< reused: a header of megabytes is read once
};

struct InspectDetail {
  bool as_json = false;  ///< json has "tensors" and the texts are empty: a million tensors need not be held twice
  bool values = true;    ///< all values are read, in search of NaN and Inf
  bool all = false;      ///< Inspection::all is made
};

/// A checkpoint folder or one .safetensors or torch.save file. fp8 weights are shown with the granularity and range of
/// their scales. json["problems"]: tensors with NaN or Inf (values and codes), scales that are 0, negative, not finite
/// or absurd; json["warnings"]: what other readers would misread. Throws io::Error.
Inspection inspect_checkpoint(const std::filesystem::path& path, const InspectDetail& detail);

/// A measurement or scale file, .json or .npz (NaN, Infinity and -Infinity in a .json as Python writes them): per
/// module the values of inputs, outputs and parameters; in the text modules that differ in their numbers alone are one
/// line. json["problems"]: amax values or scales that are 0, negative, not finite or absurd. Throws io::Error.
Inspection inspect_measurement(const std::filesystem::path& path, bool all);

// `fp8 inspect` of what `fp8 train` left: the course of one run, and several runs in one picture.

/// True for a folder that holds log.jsonl, and for a .jsonl file.
bool is_training(const std::filesystem::path& path);

/// "kind": "training", "runs": one entry per path with its losses and speed. Each path is a folder of `fp8 train` or
/// its log. Throws io::Error.
Inspection inspect_training(const std::vector<std::filesystem::path>& paths);

/// The curves as one file: an SVG if its name ends in .svg, else a page with the SVG and the table. Written atomically.
void write_training_page(const std::filesystem::path& file, const std::vector<std::filesystem::path>& paths,
                         const Inspection& inspection);

// Loss curves as one SVG picture: per run a faint line of every step, a smoothed one, and a dot per evaluation.

/// Of losses, or of another number of each step.
struct LossCurve {
  std::string name;  ///< any text
  std::vector<std::pair<std::int64_t, double>> steps =
      {};  ///< (step, loss), ascending; points that are not finite are left out
  std::vector<std::pair<std::int64_t, double>> evaluations = {};
};

/// A complete <svg> element, 900 x 420, its colours legible on white and on black. Curves of more than 600 steps are
/// drawn as means of equal stretches. Curves may be empty. what: the number's name and unit, beside its axis.
std::string loss_svg(const std::vector<LossCurve>& curves, const std::string& what = "loss (nats per token)");

/// Round numbers that divide [low, high] into `about` parts or so: steps of 1, 2 or 5 times a power of ten, ascending,
/// within the range.
std::vector<double> axis_ticks(double low, double high, int about);

// `fp8 inspect --html`: one self-contained page (no network, no other files) with a heat map layer x module, histograms
// and a table with search. The page is report_page.html; this fills its data in.

/// report: {"kind", "title", "summary", "about"?, "modules": [..], "skipped"?: [{"name", "reason"}],
/// "skipped_title"?}; what a module has hangs on the kind, each key but its name optional:
///
///   damage       {"name", "type", "scheme", "sqnr_db", "weight": PART, "input": PART}, PART: {"amax", "scale_inv",
///                "sqnr_db", "saturation", "underflow", "largest", "smallest", "octaves": {"first_exponent", "counts"}}
///   measurement  {"name", "input", "output", "weight", "bad"}: amaxes, and what is wrong with them
///   diff         {"name", "type", "before", "after", "ratio", "change"}: a tensor's; change: max(ratio, 1 / ratio)
///   training     {"name", "type", "saturation", "underflow", "amax"}: type: the run
///
/// figures: HTML that stands above all of it. Any text in the report is shown as text.
std::string report_page(const io::Json& report, const std::string& figures = "");

/// JSON for a script element of a page: "</script" and "<!--" in it end and open nothing.
std::string script_json(const io::Json& value);
/// The page with its marks replaced, which stand in it in this order; what a text has of marks stays.
std::string filled_page(std::string_view page, const std::vector<std::pair<std::string_view, std::string>>& texts);

/// Writes the page, atomically. Throws io::Error.
void write_report_page(const std::filesystem::path& path, const io::Json& report, const std::string& figures = "");

/// Returns the page's data from inspect's result for a checkpoint (with "modules") or a measurement. Throws io::Error
/// for a checkpoint without modules.
io::Json report_of(const std::string& title, const io::Json& inspected);

// `fp8 inspect --plot`: one picture of what that page shows, of rectangles, lines, curves and short texts, as SVG. No
// torch here.

struct Rgb {
  std::uint8_t r = 0, g = 0, b = 0;
};

enum class Anchor : std::uint8_t { start, middle, end };

/// Coordinates from the left upper corner, in pixels.
struct Picture {
  struct Rectangle {
    double x = 0, y = 0, width = 0, height = 0;
    Rgb color;
  };
  /// Across or down.
  struct Line {
    double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
    bool dashed = false;
    const char* color = "#000";
    double width = 1;
  };
  /// y: of the line that letters stand on. color: none: the picture's own.
  struct Text {
    double x = 0, y = 0;
    std::string text;
    Anchor anchor = Anchor::start;
    std::optional<Rgb> color = Rgb();
    bool upwards = false;
  };
  struct Curve {
    std::vector<std::pair<double, double>> points;
    const char* color = "#000";
    double width = 1, opacity = 1;
  };
  /// tip: what a browser shows where the mouse points at it.
  struct Dot {
    double x = 0, y = 0;
    const char* color = "#000";
    std::string tip;
  };

  double width = 0, height = 0;
  std::vector<Rectangle> rectangles = {};
  std::vector<Line> lines = {};
  std::vector<Text> texts = {};
  std::vector<Curve> curves = {};
  std::vector<Dot> dots = {};
  bool on_white = true;  ///< false: on the page's own colour, texts in grey or as the page says
};

/// A complete <svg> element; any text is shown as text.
std::string svg_of(const Picture& picture);

/// The layer that a module's name has a number of, and what it is called there: {3, "self_attn.q_proj"}; -1 and the
/// whole name outside of layers. Numbers in the rest are folded: {3, "mlp.experts.*.up_proj"}.
std::pair<std::int64_t, std::string> layer_of(const std::string& module);

/// Layers across, modules down, of a report of kind "damage" (SQNR in dB, or without one saturation) or "measurement"
/// (amax of the inputs, of the weights where there are none); of folded modules the worst. Throws io::Error where no
/// module has that number.
Picture heat_map(const io::Json& report);

/// Of one module of a report of kind "damage": its values per power of two and what fp8 can hold. Throws io::Error for
/// a name that the report has not, or a module without a histogram.
Picture histogram(const io::Json& report, const std::string& module);

/// The text with & < > " ' as references.
std::string xml_text(const std::string& text);

// The damage part of `fp8 inspect`: what casting does to each module of a checkpoint, as JSON.

struct DamageOptions : DataOptions {  ///< data empty: weights only
  DamageOptions() { samples = 16; }
  std::filesystem::path reference;
  std::string measurements;
  std::vector<std::string> include, exclude;
  std::optional<recipes::Granularity> scheme;
  bool weights_only = false;
};

/// Returns the plan that the options ask for, as quantize takes them.
quant::PlanOptions plan_options(const DamageOptions& options, const Context& context);

/// Of a checkpoint folder: in high precision, what quantizing it would do (to inputs too when there is data to run); in
/// fp8, what has been done; with a reference, how far it is from that. Sorted by damage, without SQNR by saturation.
/// Throws io::Error.
quant::CheckpointDamage checkpoint_damage(const std::filesystem::path& model, const DamageOptions& options,
                                          const Context& context);

/// Runs the data through a high precision model with probes on its weights: with LibTorch.
extern Late<quant::CheckpointDamage(const std::filesystem::path& model, const DamageOptions& options,
                                    const Context& context)>
    damage_of_run;

/// [{"name", "type", "scheme", "sqnr_db", "weight": {...}, "input": {...} | null}]; infinite and unknown numbers are
/// null.
io::Json damage_json(const std::vector<quant::ModuleDamage>& modules);

// The damage part of `fp8 inspect` for people: one sentence, the worst modules, and what stays in high precision.

/// Anchors of a module's SQNR in dB: a cast to E4M3 with a scale of amax gives some 31.5, to E5M2 some 25.5. Below
/// kFairDb a module is worth a second look, below kPoorDb it should stay in high precision.
inline constexpr double kPoorDb = 20, kFairDb = 25, kGoodDb = 30;

/// "28 modules, all within 1.5 dB (31.4 to 32.9); nothing to exclude", or how many are below an anchor and which is the
/// worst, and of how many values saturate, with the largest share of a module's. modules: sorted by damage.
std::string damage_sentence(const std::vector<quant::ModuleDamage>& modules);

/// One line a module, of the first `most` of them; columns that say whether they are of weight or input. width: of
/// Table::text().
std::string damage_table(const std::vector<quant::ModuleDamage>& modules, std::size_t most, std::size_t width);

/// One line for all modules that differ in their numbers alone and have one reason; empty for none. others: those in
/// fp8, which say what "*" means.
std::string kept_table(const std::vector<quant::SkippedModule>& kept, const std::vector<quant::ModuleDamage>& others,
                       std::size_t width);

// The plan of a checkpoint's modules, for people: modules that differ in their numbers alone are one line, whose name
// is that of names/folded_names.h.
//
//   module                            modules  becomes                       why
//   model.layers.*.self_attn.q_proj        28  E4M3 channel weights, ...
//   lm_head                                 1  stays in high precision       kept in high precision by default
//                                                                            (--include quantizes it)

/// Modules of one folded name and one fate.
struct PlanLine {
  std::string name;                  ///< stands for exactly these modules
  std::vector<std::string> modules;  ///< in the order of the report
  std::string scheme;                ///< empty: stays in high precision
  std::string reason;                ///< why it does
  std::uint64_t bytes = 0;           ///< of what stays, in the source
};
/// First what becomes fp8, then what does not.
/// folded: one line for the modules of all layers.
std::vector<PlanLine> plan_lines(const quant::CheckpointReport& report, bool folded = true);

/// `fp8 inspect DIR --plan`: prints what `fp8 quantize` would make of a checkpoint. Reads headers alone. Throws what
/// quantize_checkpoint() throws.
void print_plan(const std::filesystem::path& model, const DamageOptions& options, const Context& context);

}  // namespace fp8::commands
