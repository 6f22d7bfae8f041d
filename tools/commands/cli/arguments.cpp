// SPDX-License-Identifier: Apache-2.0
// The words of a command line, before CLI11 sees them: arguments first, then options with their values, so that no
// option takes an argument for its value.
//
//   --data a b MODEL       words behind one another are the option's, but for the last ones that are models
//   --wait MODEL           a value that may be left out is no model either
//   train fit, train DIR   a word that a choice takes is the choice's, another is MODEL
//   --to bf16              a former name stands for the name
//
// A model is a folder, or a file with an ending of TorchScript: no data is either.
#include <system_error>

#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

constexpr const char* kModel = "--model";

bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

bool is_model(const std::string& word) {
  constexpr std::array<std::string_view, 5> kScripts = {".pt", ".pth", ".jit", ".ts", ".torchscript"};
  std::error_code ignored;
  return fs::is_directory(word, ignored) || std::ranges::find(kScripts, fs::path(word).extension()) != kScripts.end();
}

/// "--trainer.max_steps 5" as "--trainer.max_steps=5": keys of files, which have dots or underscores as no option has,
/// have no row that says they take a value.
bool is_key(const std::string& word) {
  return word.starts_with("--") && word.find_first_of("._") != std::string::npos && word.find('=') == std::string::npos;
}

}  // namespace

/// One pass over the words.
class Arguments {
 public:
  Arguments(Options& options, const Words& words) : o_(options), words_(words) {
    while (at_ < words_.size() && words_[at_] != "--") {
      const std::string& word = words_[at_++];
      if (!is_option(word))
        plain_.push_back(word);
      else if (is_key(word))
        take_key(word);
      else if (word.starts_with("--"))
        take_long(word);
      else
        take_short(word);
    }
    behind_.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
  }

  /// As CLI11 takes a vector: in reverse.
  Words arranged() {
    const CLI::Option* model = o_.app_.get_option_no_throw(kModel);
    if (model != nullptr && model->get_positional()) place_models();
    Words all = models_;
    for (const Words* part : {&plain_, &options_, &behind_}) all.insert(all.end(), part->begin(), part->end());
    std::ranges::reverse(all);
    return all;
  }

 private:
  void take_key(const std::string& word) {
    const bool has_value = at_ < words_.size() && !words_[at_].starts_with("--");
    options_.push_back(word + (has_value ? "=" + words_[at_] : ""));
    at_ += has_value ? 1 : 0;
  }

  void take_long(const std::string& word) {
    const auto equals = word.find('=');
    const std::string name = current_name(word.substr(0, equals));
    const CLI::Option* option = o_.app_.get_option_no_throw(name);
    options_.push_back(name);
    if (option != nullptr && option->get_expected_max() > 0)
      take_values(name, *option, equals == std::string::npos ? nullptr : &word[equals + 1]);
    else if (equals != std::string::npos)
      options_.back() += word.substr(equals);  // refused by its name
  }

  /// "-o", "-oOUT", "-qo".
  void take_short(const std::string& word) {
    for (std::size_t i = 1; i < word.size(); ++i) {
      const CLI::Option* option = o_.app_.get_option_no_throw(std::string{'-', word[i]});
      if (option == nullptr) {
        options_.push_back(i == 1 ? word : "-" + word.substr(i));
        return;
      }
      const std::string name = option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames()[0];
      options_.push_back(name);
      if (option->get_expected_max() == 0) continue;
      const std::size_t value = i + 1 + (i + 1 < word.size() && word[i + 1] == '=' ? 1 : 0);
      return take_values(name, *option, i + 1 < word.size() ? &word[value] : nullptr);
    }
  }

  /// joined: what stands behind "="; null: nothing does.
  void take_values(const std::string& name, const CLI::Option& option, const char* joined) {
    const bool optional = option.get_expected_min() == 0;
    if (joined != nullptr) {
      if (optional && *joined != '\0')
        options_.back() += "=" + std::string(joined);
      else
        options_.emplace_back(joined);
    } else if (at_ == words_.size() || (optional && (is_option(words_[at_]) || is_model(words_[at_])))) {
      return;  // whether there must be a value is CLI11's to say
    } else {
      options_.push_back(words_[at_++]);
    }
    if (name == kModel) named_model_ = options_.back();
    if (o_.several_.contains(name)) take_more(name);
  }

  void take_more(const std::string& name) {
    Words more;
    for (; at_ < words_.size() && !is_option(words_[at_]); ++at_) more.push_back(words_[at_]);
    std::size_t own = more.size();
    if (name != kModel)
      while (own > 0 && (is_model(more[own - 1]) || is_choice(more[own - 1]))) --own;
    note(name, {more.begin(), more.begin() + static_cast<std::ptrdiff_t>(own)});
    for (std::size_t i = 0; i < more.size(); ++i) {
      if (i >= own)
        plain_.push_back(more[i]);
      else
        options_.insert(options_.end(), {name, more[i]});
    }
  }

  void note(const std::string& name, Words more) {
    more.insert(more.begin(), options_.back());
    std::string& text = o_.taken_words_;
    text = (text.empty() ? " (" : text.substr(0, text.size() - 1) + "; ") + name + " took " + io::joined(more) + ")";
  }

  std::string current_name(const std::string& name) {
    const auto replaced = o_.replaced_.find(name);
    if (replaced != o_.replaced_.end()) hint(name + " is " + replaced->second + " now");
    const auto renamed = o_.renamed_.find(name);
    if (renamed == o_.renamed_.end()) return name;
    hint(name + " is called " + renamed->second + " now");
    return renamed->second;
  }

  void hint(const std::string& text) {
    if (std::ranges::find(o_.hints_, text) == o_.hints_.end()) o_.hints_.push_back(text);
  }

  /// The words of an argument that is a choice; null: there is none.
  const Words* words_of_choice() const {
    for (const CLI::Option* option : o_.app_.get_options()) {
      const auto words = option->get_positional() ? o_.words_.find(option->get_name(true)) : o_.words_.end();
      if (words != o_.words_.end()) return &words->second;
    }
    return nullptr;
  }

  bool is_choice(const std::string& word) const {
    const Words* words = words_of_choice();
    return words != nullptr && std::ranges::find(*words, word) != words->end();
  }

  /// Moves the first word that is no choice's to --model; where several are taken, all of them.
  void place_models() {
    const Words* choice = words_of_choice();
    const bool several = o_.several_.contains(kModel);
    std::error_code ignored;
    Words left;
    for (const std::string& word : plain_) {
      const bool chosen =
          is_choice(word) || (choice != nullptr && !fs::exists(word, ignored) && !meant(word, *choice).empty());
      if (chosen || (!several && !models_.empty()))
        left.push_back(word);
      else if (several || !named_model_.has_value())
        models_.insert(models_.end(), {kModel, word});
      else if (fs::path(*named_model_).lexically_normal() != fs::path(word).lexically_normal())
        io::fail<UsageError>("MODEL: found '{}', and --model '{}', allowed: one of them", word, *named_model_);
    }
    plain_ = left;
  }

  Options& o_;
  const Words& words_;
  std::size_t at_ = 0;
  std::optional<std::string> named_model_;  ///< by --model
  Words models_, plain_, options_, behind_;
};

void Options::parse(const std::vector<std::string>& words) { app_.parse(Arguments(*this, words).arranged()); }

}  // namespace fp8::commands
