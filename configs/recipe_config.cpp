// SPDX-License-Identifier: Apache-2.0
// One table of fields per recipe, used to read, to write and to name what is allowed.
#include "fp8/configs/recipe_config.h"

#include <system_error>

#include "fp8/configs/quant_config_keys.h"

namespace fp8::configs {
namespace {

using detail::KeyValue;
using recipes::AmaxChoice, recipes::AmaxComputeAlgo, recipes::BlockScaling, recipes::CurrentScaling,
    recipes::DelayedScaling, recipes::MXFP8, recipes::OwnRecipe, recipes::Recipe, recipes::RecipeDialect,
    recipes::RecipeFields, recipes::RecipeFormat;

using ScaleCallable = decltype(DelayedScaling::scaling_factor_compute_algo);

template <class R>
using Member = std::variant<int R::*, bool R::*, float R::*, RecipeFormat R::*, AmaxChoice R::*, ScaleCallable R::*,
                            std::array<bool, 3> R::*>;

template <class R>
struct Field {
  const char* name;
  Member<R> member;
};

const std::vector<Field<DelayedScaling>>& fields_of(const DelayedScaling&) {
  using R = DelayedScaling;
  static const std::vector<Field<R>> fields = {
      {"fp8_format", &R::fp8_format},
      {"margin", &R::margin},
      {"interval", &R::interval},
      {"amax_history_len", &R::amax_history_len},
      {"amax_compute_algo", &R::amax_compute_algo},
      {"scaling_factor_compute_algo", &R::scaling_factor_compute_algo},
      {"override_linear_precision", &R::override_linear_precision},
      {"reduce_amax", &R::reduce_amax},
      {"power_of_two_scale", &R::power_of_two_scale},
      {"stale_row_compat", &R::stale_row_compat},
  };
  return fields;
}

const std::vector<Field<CurrentScaling>>& fields_of(const CurrentScaling&) {
  using R = CurrentScaling;
  static const std::vector<Field<R>> fields = {
      {"fp8_format", &R::fp8_format},
      {"power_of_two_scale", &R::power_of_two_scale},
      {"amax_epsilon", &R::amax_epsilon},
  };
  return fields;
}

const std::vector<Field<BlockScaling>>& fields_of(const BlockScaling&) {
  using R = BlockScaling;
  static const std::vector<Field<R>> fields = {
      {"fp8_format", &R::fp8_format},
      {"x_block_scaling_dim", &R::x_block_scaling_dim},
      {"w_block_scaling_dim", &R::w_block_scaling_dim},
      {"grad_block_scaling_dim", &R::grad_block_scaling_dim},
      {"power_of_two_scale", &R::power_of_two_scale},
      {"block", &R::block},
      {"amax_epsilon", &R::amax_epsilon},
  };
  return fields;
}

const std::vector<Field<MXFP8>>& fields_of(const MXFP8&) {
  static const std::vector<Field<MXFP8>> fields = {{"fp8_format", &MXFP8::fp8_format}, {"block", &MXFP8::block}};
  return fields;
}

// Index in `words`, whatever the case of ASCII letters. Throws io::Error that lists them and names the nearest.
std::size_t choice(const KeyValue& value, const std::vector<std::string>& words) {
  if (!value.json.is_string()) detail::reject(value, io::joined(words));
  const std::string found = value.json.get<std::string>();
  for (std::size_t i = 0; i < words.size(); ++i)
    if (detail::upper(found) == detail::upper(words[i])) return i;
  detail::reject(value, io::joined(words) + "; did you mean '" + closest(found, words) + "'?");
}

template <NamedEnum E>
std::vector<std::string> words_of() {
  std::vector<std::string> words;
  for (const auto& row : enum_names<E>) words.emplace_back(row.name);
  return words;
}

template <NamedEnum E>
E choice(const KeyValue& value) {
  return enum_names<E>[choice(value, words_of<E>())].value;
}

// ---- reading and writing one value

void read(const KeyValue& value, int& to) {
  constexpr auto kLow = std::numeric_limits<int>::min(), kHigh = std::numeric_limits<int>::max();
  const io::Json& json = value.json;
  if (!json.is_number_integer()) detail::reject(value, "an integer");
  const bool fits = json.is_number_unsigned() ? json.get<std::uint64_t>() <= static_cast<std::uint64_t>(kHigh)
                                              : json.get<std::int64_t>() >= kLow && json.get<std::int64_t>() <= kHigh;
  if (!fits) detail::reject(value, "an integer of 32 bits");
  to = json.get<int>();
}

void read(const KeyValue& value, bool& to) {
  if (!value.json.is_boolean()) detail::reject(value, "true, false");
  to = value.json.get<bool>();
}

void read(const KeyValue& value, float& to) {
  const double number = value.json.is_number() ? value.json.get<double>() : -1.0;
  if (!(number >= 0.0 && number <= static_cast<double>(std::numeric_limits<float>::max())))
    detail::reject(value, "a finite number >= 0");
  to = static_cast<float>(number);
}

void read(const KeyValue& value, RecipeFormat& to) { to = choice<RecipeFormat>(value); }
void read(const KeyValue& value, AmaxChoice& to) { to = choice<AmaxComputeAlgo>(value); }

void read(const KeyValue& value, ScaleCallable&) {
  if (!value.json.is_null()) detail::reject(value, "null (JSON holds no callables)");
}

void read(const KeyValue& value, std::array<bool, 3>& to) {
  const auto is_bool = [](const io::Json& item) { return item.is_boolean(); };
  if (!value.json.is_array() || value.json.size() != 3 || !std::all_of(value.json.begin(), value.json.end(), is_bool))
    detail::reject(value, "three of true, false");
  for (std::size_t i = 0; i < 3; ++i) to[i] = value.json[i].get<bool>();
}

io::Json written(int value) { return value; }
io::Json written(bool value) { return value; }
io::Json written(float value) { return static_cast<double>(value); }
io::Json written(RecipeFormat value) { return name_of(value); }
io::Json written(const AmaxChoice& value) { return name_of(value); }
io::Json written(const ScaleCallable&) { return nullptr; }
io::Json written(const std::array<bool, 3>& value) { return {value[0], value[1], value[2]}; }

// ---- reading a recipe

std::string key_in(const std::string& source, const std::string& path) { return source + ": key '" + path + "'"; }

// "modules[1].margin", with what the file says made printable.
std::string path_of(const std::string& prefix, const std::string& key) { return prefix + io::printable(key); }

// A JSON object that says a recipe, inside of `source` under `prefix` ("", "modules[1]."), besides the keys in
// `others`.
struct Reading {
  const io::Json& json;
  std::string source, prefix;
  std::vector<std::string> others;

  std::string where(const std::string& key) const { return key_in(source, path_of(prefix, key)); }
};

// Of a name that was found in a list of them. A registration may have ended since.
Recipe preset_recipe(const std::string& name) {
  if (auto recipe = recipes::find_recipe(name)) return *std::move(recipe);
  io::fail<io::Error>("recipe: found {}, whose registration has ended", io::in_quotes(name));
}

// Returns the recipe that "recipe" and "preset" (or "dialect", the struct's name for it) select.
Recipe starting_point(const Reading& in) {
  const std::vector<std::string> kinds = recipes::recipe_kinds(), presets = {"habana", "nvidia", "habana-hybrid"},
                                 dialects = words_of<RecipeDialect>();
  const auto kind = in.json.find("recipe"), preset = in.json.find("preset"), dialect = in.json.find("dialect");
  const std::size_t which = kind == in.json.end() ? 0 : choice({*kind, in.where("recipe")}, kinds);
  if (preset == in.json.end() && dialect == in.json.end()) return preset_recipe(kinds[which]);
  const std::string key = preset != in.json.end() ? "preset" : "dialect";
  const KeyValue said{preset != in.json.end() ? *preset : *dialect, in.where(key)};
  if (which != 0) detail::reject(said, "no " + key + " with recipe " + kinds[which]);
  const auto& words = preset != in.json.end() ? presets : dialects;
  Recipe recipe = preset_recipe(words[choice(said, words)]);
  if (dialect != in.json.end()) {
    const KeyValue resolved{*dialect, in.where("dialect")};
    const RecipeDialect chosen = std::get<DelayedScaling>(recipe).dialect;
    if (choice<RecipeDialect>(resolved) != chosen)
      detail::reject(resolved, std::string("the same as preset, ") + name_of(chosen));
  }
  return recipe;
}

// Calls read(index in `fields`, value) for each of those fields that `in` has.
void read_keys(const Reading& in, const std::string& kind, const std::vector<std::string>& fields, auto&& read) {
  std::vector<std::string> known = {"recipe", "preset", "dialect"};
  known.insert(known.end(), in.others.begin(), in.others.end());
  const std::size_t special = known.size();
  known.insert(known.end(), fields.begin(), fields.end());
  for (const auto& [key, value] : in.json.items()) {
    std::size_t at = 0;
    while (at < known.size() && known[at] != key) ++at;
    if (at == known.size())
      io::fail<io::Error>("{}: unknown key {} of recipe {}, did you mean '{}'?", in.source,
                          io::in_quotes(path_of(in.prefix, key)), kind, closest(key, known));
    if (at >= special) read(at - special, KeyValue{value, in.where(key)});
  }
}

template <class R>
void read_fields(const Reading& in, R& recipe, const char* kind) {
  const std::vector<Field<R>>& fields = fields_of(recipe);
  std::vector<std::string> names;
  for (const Field<R>& field : fields) names.emplace_back(field.name);
  read_keys(in, kind, names, [&](std::size_t i, const KeyValue& found) {
    std::visit([&](auto member) { read(found, recipe.*member); }, fields[i].member);
  });
}

void read_fields(const Reading& in, OwnRecipe& recipe, const char* kind) {
  RecipeFields fields = recipe.fields();
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.first);
  read_keys(in, kind, names, [&](std::size_t i, const KeyValue& found) {
    std::visit([&](auto& value) { read(found, value); }, fields.at(names[i]));
  });
  recipe = OwnRecipe(recipe.type(), std::move(fields));
}

Recipe read_one(const Reading& in) {
  Recipe recipe = starting_point(in);
  std::visit([&](auto& r) { read_fields(in, r, recipes::name_of(recipe)); }, recipe);
  if (const auto problem = recipes::find_problem(recipe))
    io::fail<io::Error>("{}: found {}, allowed: {}", in.where(problem->field), problem->found, problem->allowed);
  return recipe;
}

RecipeRule read_rule(const io::Json& json, const std::string& source, const std::string& path) {
  if (!json.is_object()) detail::reject({json, key_in(source, path)}, "an object with match, and keep or recipe");
  const Reading in{json, source, path + ".", {"match", "keep"}};
  const auto match = json.find("match"), keep = json.find("keep");
  if (match == json.end()) io::fail<io::Error>("{}: not found, allowed: a pattern of module names", in.where("match"));
  if (!match->is_string()) detail::reject({*match, in.where("match")}, "a pattern of module names");
  RecipeRule rule{match->get<std::string>(), std::nullopt};
  PythonRegex(rule.pattern, in.where("match"));
  if (keep == json.end() && !json.contains("recipe") && !json.contains("preset") && !json.contains("dialect"))
    io::fail<io::Error>("{}: found neither keep nor recipe, allowed: one of the two", key_in(source, path));
  if (keep == json.end()) {
    rule.recipe = read_one(in);
    return rule;
  }
  choice({*keep, in.where("keep")}, {"bf16"});
  for (const auto& [key, value] : json.items()) {
    if (key == "match" || key == "keep") continue;
    io::fail<io::Error>("{}: found with keep, allowed: match and keep alone, or match and a recipe", in.where(key));
  }
  return rule;
}

// ---- writing

template <class R>
void write_fields(const R& recipe, io::Json& json) {
  for (const Field<R>& field : fields_of(recipe)) {
    io::Json value = std::visit([&](auto member) { return written(recipe.*member); }, field.member);
    if (!value.is_null()) json[field.name] = std::move(value);
  }
}

void write_fields(const OwnRecipe& recipe, io::Json& json) {
  for (const auto& [name, field] : recipe.fields())
    json[name] = std::visit([](const auto& value) { return written(value); }, field);
}

io::Json recipe_json(const Recipe& recipe, const std::string& where) {
  if (const auto* delayed = std::get_if<DelayedScaling>(&recipe)) {
    const std::string found = "': found a callable, which JSON can't hold, allowed: ";
    if (delayed->amax_compute_algo.callable())
      io::fail<io::Error>("{}amax_compute_algo{}most_recent, max", where, found);
    if (delayed->scaling_factor_compute_algo)
      io::fail<io::Error>("{}scaling_factor_compute_algo{}not set", where, found);
  }
  if (const auto problem = recipes::find_problem(recipe))
    io::fail<io::Error>("{}{}': found {}, allowed: {}", where, problem->field, problem->found, problem->allowed);
  io::Json json = {{"recipe", recipes::name_of(recipe)}};
  if (const auto* delayed = std::get_if<DelayedScaling>(&recipe)) json["preset"] = recipes::name_of(delayed->dialect);
  std::visit([&](const auto& r) { write_fields(r, json); }, recipe);
  return json;
}

}  // namespace

const Recipe* RecipeConfig::for_module(const std::string& name) const {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const PythonRegex regex(rules[i].pattern, key_in(source, io::message("modules[{}].match", i)));
    if (regex.search(name)) return rules[i].recipe ? &*rules[i].recipe : nullptr;
  }
  return &recipe;
}

RecipeConfig parse_recipe(const io::Json& json, const std::string& source) {
  RecipeConfig config;
  config.source = io::printable(source, 4096);
  if (!json.is_object()) detail::reject({json, config.source}, "a JSON object with a recipe's keys");
  config.recipe = read_one({json, config.source, "", {"modules"}});
  const auto modules = json.find("modules");
  if (modules == json.end()) return config;
  if (!modules->is_array()) detail::reject({*modules, key_in(config.source, "modules")}, "an array of rules");
  for (std::size_t i = 0; i < modules->size(); ++i)
    config.rules.push_back(read_rule((*modules)[i], config.source, io::message("modules[{}]", i)));
  return config;
}

RecipeConfig read_recipe(const std::filesystem::path& path) { return parse_recipe(io::read_json(path), path.string()); }

io::Json to_json(const RecipeConfig& config) {
  io::Json json = recipe_json(config.recipe, config.source + ": key '");
  if (config.rules.empty()) return json;
  io::Json& modules = json["modules"] = io::Json::array();
  for (std::size_t i = 0; i < config.rules.size(); ++i) {
    const RecipeRule& rule = config.rules[i];
    const std::string path = io::message("modules[{}].", i);
    PythonRegex(rule.pattern, key_in(config.source, path + "match"));
    io::Json item = {{"match", rule.pattern}};
    if (rule.recipe) {
      item.update(recipe_json(*rule.recipe, config.source + ": key '" + path));
    } else {
      item["keep"] = "bf16";
    }
    modules.push_back(std::move(item));
  }
  return json;
}

std::vector<std::string> recipe_preset_names() { return recipes::recipe_presets(); }

std::optional<RecipeConfig> recipe_preset(const std::string& name) {
  for (const std::string& known : recipe_preset_names())
    if (known == name) return RecipeConfig{preset_recipe(name), {}, "preset " + name};
  return std::nullopt;
}

RecipeConfig recipe_from_argument(const std::string& argument) {
  if (auto preset = recipe_preset(argument)) return *std::move(preset);
  if (argument.starts_with('{')) return parse_recipe(io::parse_json(argument, "recipe"), "recipe");
  std::error_code ignored;
  if (argument.find_first_of("/.") != std::string::npos || std::filesystem::exists(argument, ignored))
    return read_recipe(argument);
  io::fail<io::Error>("recipe: found {}, allowed: {}, or a JSON file; did you mean '{}'?", io::in_quotes(argument),
                      io::joined(recipe_preset_names()), closest(argument, recipe_preset_names()));
}

}  // namespace fp8::configs
