// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/run_tree.h"

namespace fp8::commands {
namespace {

/// Keys of the top level; the last three are trainer's in Lightning's files, and may stand here as well.
constexpr std::string_view kTop[] = {"seed_everything", "trainer",      "model",   "data",
                                     "optimizer",       "lr_scheduler", "fp8",     "ckpt_path",
                                     "callbacks",       "plugins",      "profiler"};
constexpr std::string_view kOfTrainer[] = {"callbacks", "plugins", "profiler"};
constexpr std::string_view kClasses[] = {"model", "data", "optimizer", "lr_scheduler"};

template <class List>
bool among(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != std::end(list);
}

std::vector<std::string> keys_of(std::string_view dotted) {
  std::vector<std::string> keys;
  for (std::size_t at = 0; at <= dotted.size();) {
    const auto end = std::min(dotted.find('.', at), dotted.size());
    keys.emplace_back(dotted.substr(at, end - at));
    at = end + 1;
  }
  if (among(kOfTrainer, keys[0])) keys.insert(keys.begin(), "trainer");
  if (keys.size() > 1 && among(kClasses, keys[0]) && keys[1] != "class_path" && keys[1] != "init_args")
    keys.insert(keys.begin() + 1, "init_args");
  return keys;
}

std::string pointer_of(std::string_view dotted) {
  std::string pointer;
  for (const auto& key : keys_of(dotted)) pointer = io::json_pointer(pointer, key);
  return pointer;
}

std::string parent_of(const std::string& pointer) { return pointer.substr(0, pointer.rfind('/')); }

bool is_class(const io::Json& value) { return value.is_object() && value.contains("class_path"); }

/// The sources of a file: its places.
std::map<std::string, std::string> places_of(const io::LocatedJson& file, const std::string& below) {
  std::map<std::string, std::string> places;
  for (const auto& [pointer, line] : file.lines)
    if (pointer.starts_with(below)) places[pointer.substr(below.size())] = file.name + ":" + std::to_string(line);
  places.try_emplace("", file.name);
  return places;
}

void check_top(const io::Json& value, const io::LocatedJson& file, const std::string& below) {
  const std::string place = file.place(below);
  if (!value.is_object()) io::fail<io::Error>("{}: found {}, allowed: an object", place, io::printable(value.dump()));
  for (const auto& [key, part] : value.items()) {
    if (among(kTop, key) || (below.empty() && parse_enum<Stage>(key))) continue;
    const std::vector<std::string> names(std::begin(kTop), std::end(kTop));
    io::fail<io::Error>("{}: unknown key {}, allowed: {}; {}", file.place(io::json_pointer(below, key)),
                        io::in_quotes(key), io::joined(names), io::the_nearest(key, names));
  }
}

}  // namespace

void RunTree::forget(const std::string& pointer) {
  for (auto at = sources_.lower_bound(pointer); at != sources_.end() && at->first.starts_with(pointer);)
    at = at->first.size() == pointer.size() || at->first[pointer.size()] == '/' ? sources_.erase(at) : std::next(at);
}

void RunTree::note(const std::string& pointer, const io::Json& value,
                   const std::map<std::string, std::string>& sources) {
  std::string at = pointer;
  while (!sources.contains(at)) at = parent_of(at);
  if (value.is_structured() && !value.empty()) {
    std::size_t index = 0;
    for (const auto& [key, part] : value.items())
      note(io::json_pointer(pointer, value.is_array() ? std::to_string(index++) : key), part, sources);
    if (value.is_object()) return;
  }
  sources_[pointer] = sources.at(at);
}

void RunTree::put(const std::string& pointer, io::Json& target, const io::Json& value,
                  const std::map<std::string, std::string>& sources) {
  const bool other_class = is_class(target) && is_class(value) && target["class_path"] != value["class_path"];
  if (!target.is_object() || !value.is_object() || other_class) {
    forget(pointer);
    target = value;
    return note(pointer, value, sources);
  }
  for (const auto& [key, part] : value.items()) put(io::json_pointer(pointer, key), target[key], part, sources);
}

void RunTree::merge(const io::LocatedJson& file, const std::string& stage) {
  if (file.value.is_null()) return;
  check_top(file.value, file, "");
  const auto merge_level = [&](const io::Json& level, const std::string& below) {
    const auto places = places_of(file, below);
    for (const auto& [key, part] : level.items()) {
      if (parse_enum<Stage>(key)) continue;
      const std::string from = io::json_pointer("", key);
      auto sources = places;
      std::string to = from;
      if (among(kOfTrainer, key)) to = "/trainer" + from;
      // {hidden: 3}: arguments of the class that a file before this one names.
      const bool bare = among(kClasses, key) && part.is_object() && !part.contains("class_path") &&
                        !part.contains("init_args") && !part.empty();
      if (bare) to = from + "/init_args";
      if (to != from)  // "/callbacks/0" stands at "/trainer/callbacks/0" from here on
        for (const auto& [pointer, place] : places)
          if (pointer.starts_with(from)) sources[to + pointer.substr(from.size())] = place;
      if (bare && value_[key].is_string()) value_[key] = io::Json({{"class_path", value_[key]}});
      put(to, to == from ? value_[key] : bare ? value_[key]["init_args"] : value_["trainer"][key], part, sources);
    }
  };
  merge_level(file.value, "");
  const auto own = file.value.find(stage);
  if (own == file.value.end() || own->is_null()) return;
  check_top(*own, file, "/" + stage);
  merge_level(*own, "/" + stage);
}

void RunTree::set(std::string_view key, io::Json value, const std::string& source) {
  io::Json* at = &value_;
  std::string pointer;
  for (const auto& name : keys_of(key)) {
    if (at->is_null()) *at = io::Json::object();
    if (at->is_string() && among(kClasses, std::string_view(pointer).substr(1))) {  // a class_path alone
      const std::string before = this->source(pointer.substr(1));
      forget(pointer);
      *at = io::Json({{"class_path", *at}});
      sources_[io::json_pointer(pointer, "class_path")] = before;
    }
    if (!at->is_object())
      io::fail<io::Error>("{}: {}: found {} at {}, allowed: an object", source, key, io::printable(at->dump()),
                          io::in_quotes(pointer.substr(1)));
    pointer = io::json_pointer(pointer, name);
    at = &(*at)[name];
  }
  put(pointer, *at, value, {{"", source}});
}

const io::Json* RunTree::find(std::string_view key) const {
  const io::Json::json_pointer pointer(pointer_of(key));
  if (!value_.contains(pointer)) return nullptr;
  const io::Json& found = value_.at(pointer);
  return found.is_null() ? nullptr : &found;
}

bool RunTree::contains(std::string_view key) const { return value_.contains(io::Json::json_pointer(pointer_of(key))); }

std::string RunTree::source(std::string_view key) const {
  std::string pointer = pointer_of(key);
  const auto inner = sources_.lower_bound(pointer);  // of an object: its first value's
  if (inner != sources_.end() && (inner->first + "/").starts_with(pointer + "/")) return inner->second;
  for (; !pointer.empty(); pointer = parent_of(pointer)) {
    const auto found = sources_.find(pointer);
    if (found != sources_.end()) return found->second;
  }
  return "default";
}

std::string RunTree::place(std::string_view key) const { return source(key) + ": " + std::string(key); }

trainer::Part RunTree::part(const std::string& key) const {
  const io::Json* value = find(key);
  const auto fail = [&](const std::string& at, const io::Json& found, const char* allowed) {
    io::fail<io::Error>("{}: found {}, allowed: {}", place(at), io::printable(found.dump()), allowed);
  };
  const io::Json none;
  if (value == nullptr || (!value->is_string() && !value->is_object()))
    fail(key, value == nullptr ? none : *value, "{class_path, init_args}, or a class_path");
  trainer::Part part;
  if (value->is_string()) {
    part.class_path = value->get<std::string>();
    part.place = place(key);
    return part;
  }
  for (const auto& [name, inner] : value->items()) {
    if (name == "class_path" && inner.is_string())
      part.class_path = inner.get<std::string>();
    else if (name == "init_args" && (inner.is_object() || inner.is_null()))
      part.init_args = inner.is_null() ? io::Json::object() : inner;
    else if (name == "class_path" || name == "init_args")
      fail(key + "." + name, inner, name == "class_path" ? "a text" : "an object");
    else if (name != "dict_kwargs" || !inner.empty())
      fail(key + "." + name, inner, "class_path, init_args");
  }
  if (part.class_path.empty()) fail(key, *value, "an object with class_path");
  part.place = place(key + ".class_path");
  for (const auto& [name, inner] : part.init_args.items()) part.places[name] = place(key + ".init_args." + name);
  return part;
}

std::string RunTree::text() const { return io::yaml_text(value_, sources_); }

bool is_dotted(std::string_view argument) {
  if (!argument.starts_with("--")) return false;
  const auto key = argument.substr(2, argument.find('=') - 2);
  const auto first = key.substr(0, key.find('.'));
  const bool alone = key == "ckpt_path" || key == "seed_everything";
  return alone || (first.size() < key.size() && among(kTop, first));
}

RunTree read_run(const std::vector<std::filesystem::path>& files, const std::string& stage,
                 const std::vector<std::string>& environment, const std::vector<std::string>& dotted) {
  RunTree tree;
  for (const auto& entry : environment) {
    const auto equals = entry.find('=');
    if (!entry.starts_with("PL_") || equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    std::string key;
    for (std::size_t at = 3; at < name.size(); ++at)
      key += name.compare(at, 2, "__") == 0 ? (++at, '.') : io::lower(name[at]);
    const auto first = key.substr(0, key.find('.'));
    if (parse_enum<Stage>(first)) {
      if (first != stage || first.size() == key.size()) continue;
      key.erase(0, first.size() + 1);
    }
    if (!among(kTop, key.substr(0, key.find('.')))) continue;  // PL_DEEPSPEED_CONFIG_PATH
    tree.set(key, io::parse_yaml(entry.substr(equals + 1), name).value, name);
  }
  for (const auto& file : files) tree.merge(io::read_yaml(file), stage);
  for (const auto& argument : dotted) {
    const auto equals = argument.find('=');
    const std::string key = argument.substr(2, equals - 2);
    if (equals == std::string::npos) io::fail<io::Error>("{}: found no value, allowed: {}=VALUE", argument, argument);
    tree.set(key, io::parse_yaml(argument.substr(equals + 1), "--" + key).value, "command line");
  }
  return tree;
}

}  // namespace fp8::commands
