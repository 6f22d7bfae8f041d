// SPDX-License-Identifier: Apache-2.0
// json.dumps() of a value, with the settings of transformers' tojson: letters stay, nothing is sorted or escaped for
// HTML.

#include "fp8/tools/text/jinja/filters.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

/// As json.dumps() writes a string.
std::string json_quoted(Machine& m, std::string_view text, bool ascii) {
  m.spend_bytes(text.size());
  constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  std::string out = "\"";
  const auto unit = [&](std::uint32_t value) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "\\u%04x", value);
    out += buffer;
    m.allow(out.size());
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto c = decode_at(text, at);
    const auto place = c.size == 1 ? kPlain.find(text[at]) : std::string_view::npos;
    if (place != std::string_view::npos) {
      out += '\\';
      out += kLetters[place];
    } else if (c.value < 0x20 || (ascii && c.value > 0x7E && c.value < 0x10000)) {
      unit(c.value);
    } else if (ascii && c.value >= 0x10000) {
      unit(0xD800 + ((c.value - 0x10000) >> 10));
      unit(0xDC00 + ((c.value - 0x10000) & 0x3FF));
    } else {
      out += text.substr(at, c.size);
    }
    at += c.size;
  }
  return out + "\"";
}

class JsonWriter {
 public:
  JsonWriter(Machine& m, const Given& given) : m_(m) {
    ascii_ = given.flag(0, false);
    sorted_ = given.flag(3, false);
    if (const auto* const indent = given.find(1); indent && !indent->none()) {
      const auto spaces = indent->text() ? 0 : std::max<std::int64_t>(given.integer(1, 0), 0);
      m.allow(static_cast<std::size_t>(spaces));
      indent_ = indent->text() ? *indent->text() : std::string(static_cast<std::size_t>(spaces), ' ');
      m.spend_bytes(indent_->size());
      item_ = ",";
    }
    if (const auto* const separators = given.find(2); separators && !separators->none()) {
      const auto* const two = separators->list();
      if (!two || two->form > List::Form::tuple || two->items.size() != 2 || !two->items[0].text() ||
          !two->items[1].text())
        m.fail("tojson: separators: expected two strings, found " + type_of(*separators));
      item_ = *two->items[0].text(), key_ = *two->items[1].text();
      m.spend_bytes(item_.size() + key_.size());
    }
  }

  std::string take() { return std::move(out_); }

  void write(const Value& value, int level) {
    m_.spend();
    if (const auto* const text = value.text())
      put(json_quoted(m_, *text, ascii_));
    else if (value.none())
      put("null");
    else if (const auto* const b = value.get<bool>())
      put(*b ? "true" : "false");
    else if (const auto* const real = value.get<double>())
      put(std::isnan(*real) ? "NaN" : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity") : float_text(*real));
    else if (value.get<std::int64_t>())
      put(text_of(m_, value));
    else if (const auto* const dict = value.dict())
      write_dict(*dict, level);
    else if (const auto* const list = value.list(); list && list->form <= List::Form::tuple)
      write_all(list->items, '[', ']', level, [&](const Value& item) { write(item, level + 1); });
    else
      m_.fail("tojson: a " + type_of(value) + " can't be written as JSON");
  }

 private:
  void put(std::string_view text) {
    m_.allow(out_.size() + text.size());
    out_ += text;
  }

  template <class Items, class Write>
  void write_all(const Items& items, char open, char close, int level, Write write_one) {
    put({&open, 1});
    bool first = true;
    for (const auto& item : items) {
      if (!first) put(item_);
      first = false;
      new_line(level + 1);
      write_one(item);
    }
    if (!items.empty()) new_line(level);
    put({&close, 1});
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    const auto before = [&](const auto* a, const auto* b) {
      m_.spend_bytes(std::min(a->first.size(), b->first.size()));
      return a->first < b->first;
    };
    if (sorted_) std::ranges::sort(items, before);
    write_all(items, '{', '}', level, [&](const auto* item) {
      put(json_quoted(m_, item->first, ascii_));
      put(key_);
      write(item->second, level + 1);
    });
  }

  void new_line(int level) {
    if (!indent_) return;
    put("\n");
    for (int i = 0; i < level; ++i) put(*indent_);
  }

  Machine& m_;
  bool ascii_ = false, sorted_ = false;
  std::optional<std::string> indent_;
  std::string item_ = ", ", key_ = ": ", out_;
};

}  // namespace

Value to_json(Machine& m, const Value& value, const Given& given) {
  JsonWriter writer(m, given);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace fp8::text::jinja
