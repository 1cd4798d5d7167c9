#include "onnx_io/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "backpass/error.hpp"
#include "support/printable.hpp"
#include "support/utf8.hpp"

namespace backpass::onnx_io {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::array<std::pair<std::string_view, DType>, 15> kTypes = {{
    {"BOOL", DType::boolean},
    {"U8", DType::uint8},
    {"I8", DType::int8},
    {"U16", DType::uint16},
    {"I16", DType::int16},
    {"U32", DType::uint32},
    {"I32", DType::int32},
    {"U64", DType::uint64},
    {"I64", DType::int64},
    {"F16", DType::float16},
    {"BF16", DType::bfloat16},
    {"F32", DType::float32},
    {"F64", DType::float64},
    {"F8_E4M3", DType::float8e4m3fn},
    {"F8_E5M2", DType::float8e5m2},
}};

class Parser {
 public:
  Parser(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  SafeTensorsHeader parse() {
    SafeTensorsHeader header;
    bool has_metadata = false;
    each_member([&](std::string name) {
      if (name == kMetadata) {
        if (std::exchange(has_metadata, true)) refuse("two '__metadata__'");
        each_member([&](std::string key) { header.metadata[std::move(key)] = string(); });
      } else {
        SafeTensorsEntry entry = tensor(name);
        header.entries.emplace(std::move(name), std::move(entry));
      }
    });
    skip_space();
    if (at_ != text_.size()) refuse("something behind the end");
    return header;
  }

 private:
  SafeTensorsEntry tensor(const std::string& name) {
    SafeTensorsEntry entry;
    int members = 0;
    each_member([&](const std::string& key) {
      ++members;
      if (key == "dtype") {
        entry.dtype = dtype(name);
      } else if (key == "shape") {
        each_number([&](std::uint64_t n) { entry.dims.push_back(static_cast<std::int64_t>(n)); });
      } else if (key == "data_offsets") {
        std::vector<std::uint64_t> offsets;
        each_number([&](std::uint64_t n) { offsets.push_back(n); });
        if (offsets.size() != 2) refuse(concat("not two data_offsets of ", printable(name)));
        entry.begin = offsets[0];
        entry.end = offsets[1];
      } else {
        refuse(concat("the unknown key ", printable(key), " of ", printable(name)));
      }
    });
    if (members != 3) refuse(concat("not dtype, shape and data_offsets of ", printable(name)));
    return entry;
  }

  DType dtype(const std::string& name) {
    const std::string code = string();
    const auto* const found =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.first == code; });
    if (found == kTypes.end()) {
      fail<Unsupported>(where_, "tensor ", printable(name), ": element type ", printable(code), " is not supported");
    }
    return found->second;
  }

  /// An object: calls `visit` with each key, the value being next.
  template <class Visit>
  void each_member(const Visit& visit) {
    std::set<std::string> keys;
    expect('{');
    if (accept('}')) return;
    do {
      std::string key = string();
      if (!keys.insert(key).second) refuse(concat("two ", printable(key)));
      expect(':');
      visit(std::move(key));
    } while (accept(','));
    expect('}');
  }

  template <class Visit>
  void each_number(const Visit& visit) {
    expect('[');
    if (accept(']')) return;
    do {
      visit(number());
    } while (accept(','));
    expect(']');
  }

  std::uint64_t number() {
    skip_space();
    std::uint64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    const bool has_zero_first = end - begin > 1 && *begin == '0';
    if (error != std::errc{} || has_zero_first || value >> 63U != 0) refuse("something else than a whole number");
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::string string() {
    expect('"');
    std::string out;
    while (true) {
      const char c = next();
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) refuse("a control character in a string");
      if (c == '\\') {
        escape(out);
      } else {
        out += c;
      }
    }
    check_utf8(out, where_);
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view codes = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char code = next();
    if (code != 'u') {
      const auto which = codes.find(code);
      if (which == std::string_view::npos) refuse("an unknown escape in a string");
      out += meanings[which];
      return;
    }
    char32_t point = hex();
    if (point >= 0xD800 && point < 0xDC00) {
      if (next() != '\\' || next() != 'u') refuse("half of a surrogate pair");
      const char32_t low = hex();
      if (low < 0xDC00 || low >= 0xE000) refuse("half of a surrogate pair");
      point = 0x10000 + ((point - 0xD800) << 10U) + (low - 0xDC00);
    } else if (point >= 0xDC00 && point < 0xE000) {
      refuse("half of a surrogate pair");
    }
    append_code_point(out, point);
  }

  char32_t hex() {
    constexpr std::size_t digits = 4;
    const std::string_view text = text_.substr(at_, digits);
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != digits || error != std::errc{} || end != text.data() + digits) refuse("a bad \\u escape");
    at_ += digits;
    return value;
  }

  char next() {
    if (at_ >= text_.size()) refuse("its end too early");
    return text_[at_++];
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) refuse(concat("no '", c, "'"));
  }

  [[noreturn]] void refuse(std::string_view what) const {
    fail(where_, "header: got ", what, " at byte ", at_, "; not a safetensors file, or damaged");
  }

  std::string_view text_;
  std::string_view where_;
  std::size_t at_ = 0;
};

std::string quoted(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (byte < 0x20) {
      ((out += "\\u00") += digits[byte >> 4U]) += digits[byte & 15U];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

SafeTensorsHeader parse_safetensors_header(std::string_view text, std::string_view where) {
  return Parser(text, where).parse();
}

std::string print_safetensors_header(const SafeTensorsHeader& header) {
  std::string out = "{";
  if (!header.metadata.empty()) {
    out += quoted(kMetadata) + ":{";
    for (const auto& [key, value] : header.metadata) {
      out += (out.back() == '{' ? "" : ",") + quoted(key) + ":" + quoted(value);
    }
    out += "}";
  }
  for (const auto& [name, entry] : header.entries) {
    const auto* const type =
        std::find_if(kTypes.begin(), kTypes.end(), [&e = entry](const auto& t) { return t.second == e.dtype; });
    if (name == kMetadata) fail("tensor ", printable(name), ": safetensors reserves this name; use another");
    if (type == kTypes.end()) {
      fail<Unsupported>("tensor ", printable(name), ": safetensors has no element type for ", name_of(entry.dtype));
    }
    out += concat(out.size() > 1 ? "," : "", quoted(name), ":{\"dtype\":\"", type->first,
                  "\",\"shape\":", to_string(entry.dims), ",\"data_offsets\":[", entry.begin, ",", entry.end, "]}");
  }
  return out + "}";
}

void check_utf8(std::string_view name, std::string_view where) {
  if (!is_utf8(name)) fail(where, "name ", printable(name), ": got bytes that are not UTF-8");
}

}  // namespace backpass::onnx_io
