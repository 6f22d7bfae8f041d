// SPDX-License-Identifier: Apache-2.0
// A training recipe as JSON: one recipe for all modules, and rules for those that need another or none.
//
//   {"recipe": "delayed", "preset": "habana", "fp8_format": "HYBRID", "interval": 16,
//    "modules": [{"match": "lm_head", "keep": "bf16"},
//                {"match": "layers\\.0\\.", "recipe": "current", "power_of_two_scale": true}]}
//
// "recipe" is delayed (the default), current, block, mxfp8 or the name of a recipe of one's own (recipes/recipe.h); the
// other keys are the fields of its struct (recipes/*.h), and "preset" ("habana", the default, "habana-hybrid" or
// "nvidia"; delayed only) says what they are before the file's keys are read; "dialect" ("habana", "nvidia"), as
// DelayedScaling calls it, is another name for it. JSON holds no callables: "amax_compute_algo" is a name,
// "scaling_factor_compute_algo" null or absent. A rule's recipe begins with its own defaults, not with the file's
// recipe. Of the rules whose pattern is found in a module's name (Python's re.search) the first one counts.
#pragma once

#include "fp8/recipes/recipe.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::configs {

struct RecipeRule {
  std::string pattern;                    ///< searched in the names of modules, python_regex.h
  std::optional<recipes::Recipe> recipe;  ///< none: kept in high precision
};

struct RecipeConfig {
  recipes::Recipe recipe;
  std::vector<RecipeRule> rules;
  std::string source = "built-in defaults";  ///< the file, for messages

  /// The recipe of the module with this name (its path, "model.layers.0.mlp.up_proj"); nullptr: high precision. Points
  /// into this object. Throws io::Error for a pattern that does not compile.
  const recipes::Recipe* for_module(const std::string& name) const;
};

/// Reads the parsed JSON; `source` (the file) stands in messages. Throws io::Error, in one line: "FILE: key
/// 'modules[1].margin': found 99, allowed: -64 to 64". An unknown key is an error that names the nearest one.
RecipeConfig parse_recipe(const io::Json& json, const std::string& source);

/// Reads a file. Throws io::Error.
RecipeConfig read_recipe(const std::filesystem::path& path);

/// Every field, such that parse_recipe() gives the same values. Throws io::Error for a recipe with a callable, or one
/// that parse_recipe() would reject.
io::Json to_json(const RecipeConfig& config);

/// "habana" (E5M2), "habana-hybrid" (the same with E4M3 forward), "nvidia", "current", "block", "mxfp8", and
/// those registered: the defaults of each.
std::vector<std::string> recipe_preset_names();
std::optional<RecipeConfig> recipe_preset(const std::string& name);

/// Reads the argument of --recipe: a preset's name, a JSON that begins with '{', or a file (a word with '/' or '.', or
/// one that exists). Throws io::Error naming the presets and the nearest of them.
RecipeConfig recipe_from_argument(const std::string& argument);

}  // namespace fp8::configs
