// SPDX-License-Identifier: Apache-2.0
// json.dumps() of a value, with the settings of transformers' tojson: letters stay, nothing is sorted or escaped for
// HTML.
#include <algorithm>
#include <cmath>
#include <optional>

#include "fp8/tools/text/jinja/filters.h"
#include "fp8/tools/text/jinja/machine.h"
#include "fp8/tools/text/jinja/strings.h"

namespace fp8::text::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Machine& m, const Given& given) : m_(m) {
    ascii_ = given.flag(0, false);
    sorted_ = given.flag(3, false);
    if (const auto* const indent = given.find(1); indent && !indent->none()) {
      const auto spaces = indent->text() ? 0 : std::max<std::int64_t>(given.integer(1, 0), 0);
      m.allow(static_cast<std::size_t>(spaces));
      indent_ = indent->text() ? *indent->text() : std::string(static_cast<std::size_t>(spaces), ' ');
      item_ = ",";
    }
    if (const auto* const separators = given.find(2); separators && !separators->none()) {
      const auto* const two = separators->list();
      if (!two || two->form > List::Form::tuple || two->items.size() != 2 || !two->items[0].text() ||
          !two->items[1].text())
        m.fail("tojson: separators: expected two strings, found " + type_of(*separators));
      item_ = *two->items[0].text(), key_ = *two->items[1].text();
    }
  }

  std::string take() { return std::move(out_); }

  void write(const Value& value, int level) {
    m_.spend();
    m_.allow(out_.size());
    if (const auto* const text = value.text()) {
      m_.spend(text->size() / 16);
      out_ += json_quoted(*text, ascii_);
    } else if (value.none()) {
      out_ += "null";
    } else if (const auto* const b = value.get<bool>()) {
      out_ += *b ? "true" : "false";
    } else if (const auto* const real = value.get<double>()) {
      out_ += std::isnan(*real)   ? "NaN"
              : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity")
                                  : float_text(*real);
    } else if (value.get<std::int64_t>()) {
      out_ += text_of(m_, value);
    } else if (const auto* const dict = value.dict()) {
      write_dict(*dict, level);
    } else if (const auto* const list = value.list(); list && list->form <= List::Form::tuple) {
      write_all(list->items, '[', ']', level, [&](const Value& item) { write(item, level + 1); });
    } else {
      m_.fail("tojson: a " + type_of(value) + " can't be written as JSON");
    }
  }

 private:
  template <class Items, class Write>
  void write_all(const Items& items, char open, char close, int level, Write write_one) {
    out_ += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += item_;
      first = false;
      new_line(level + 1);
      write_one(item);
    }
    if (!items.empty()) new_line(level);
    out_ += close;
  }

  void write_dict(const Dict& dict, int level) {
    auto items = dict.items;
    if (sorted_) std::ranges::sort(items, {}, [](const auto& item) { return item.first; });
    write_all(items, '{', '}', level, [&](const auto& item) {
      out_ += json_quoted(item.first, ascii_) + key_;
      write(item.second, level + 1);
    });
  }

  void new_line(int level) {
    if (!indent_) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *indent_;
  }

  Machine& m_;
  bool ascii_ = false, sorted_ = false;
  std::optional<std::string> indent_;
  std::string item_ = ", ", key_ = ": ", out_;
};

}  // namespace

Value to_json(Machine& m, const Value& value, const Arguments& arguments) {
  const Given given(m, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonWriter writer(m, given);
  writer.write(value, 0);
  std::string text = writer.take();
  m.allow(text.size());
  return text;
}

}  // namespace fp8::text::jinja
