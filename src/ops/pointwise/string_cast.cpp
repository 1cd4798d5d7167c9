#include "ops/pointwise/string_cast.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "backpass/error.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kPiece = 512;  // a multiple of 8: packed elements of a piece end with a byte

std::string special_text(double value) {
  if (std::isnan(value)) return "nan";
  return value < 0 ? "-inf" : "inf";
}

template <class T>
std::string float_text(T value) {
  if (!std::isfinite(value)) return special_text(value);
  const double magnitude = std::fabs(static_cast<double>(value));
  const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  std::array<char, 64> buffer;
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
  std::string text(buffer.data(), end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// The fewest digits that read back to the same 16-bit number.
template <class H>
std::string half_text(H value) {
  const float wide = value;
  if (!std::isfinite(wide)) return special_text(wide);
  for (int digits = 1; digits < 9; ++digits) {
    std::array<char, 32> buffer;
    std::snprintf(buffer.data(), buffer.size(), "%.*e", digits - 1, static_cast<double>(wide));
    const float shorter = std::strtof(buffer.data(), nullptr);
    if (H(shorter).bits == value.bits) return float_text(shorter);
  }
  return float_text(wide);
}

template <class T>
std::string text_of(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "True" : "False";
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return half_text(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return float_text(value);
  } else {
    return std::to_string(value);
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// std::from_chars knows no leading plus.
std::string_view without_plus(std::string_view text) {
  return text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+' ? text.substr(1) : text;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return (x >= 'A' && x <= 'Z' ? static_cast<char>(x - 'A' + 'a') : x) == y; });
}

template <class T>
bool parse_all(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, value);
  if constexpr (std::is_floating_point_v<T>) {
    // Too large or too small for T is still a number: strtod gives the infinity or the zero it rounds to.
    if (error == std::errc::result_out_of_range && stop == end) {
      value = static_cast<T>(std::strtod(std::string(text).c_str(), nullptr));
      return true;
    }
  }
  return error == std::errc{} && stop == end && !text.empty();
}

[[noreturn]] void not_a_number(const std::string& label, const std::string& text, DType to) {
  fail(label, " text \"", text.substr(0, 40), "\": expected a number that ", name_of(to), " can hold");
}

template <class T>
T parse(const std::string& label, const std::string& original, DType to) {
  const std::string_view text = without_plus(trimmed(original));
  T value{};
  if (parse_all(text, value)) return value;
  if constexpr (std::is_integral_v<T>) {
    if (to == DType::boolean && equal_ignoring_case(text, "true")) return 1;
    if (to == DType::boolean && equal_ignoring_case(text, "false")) return 0;
    double wide = 0;
    constexpr double end = std::is_signed_v<T> ? 0x1p63 : 0x1p64;
    if (parse_all(text, wide) && wide > (std::is_signed_v<T> ? -end : -1.0) && wide < end) return static_cast<T>(wide);
  }
  not_a_number(label, original, to);
}

// The type in which text for `to` is read; converting it to `to` is then exact or one correct rounding.
DType parsed_as(DType to) {
  if (to == DType::float32 || to == DType::float64 || to == DType::uint64) return to;
  const bool integer = is_integer(to) || to == DType::boolean || (is_small(to) && plain_type(to) != DType::float32);
  return integer ? DType::int64 : DType::float64;
}

std::int64_t byte_offset(DType dtype, std::int64_t elements) { return elements * bit_width(dtype) / 8; }

}  // namespace

void numbers_to_strings(DType from, const void* numbers, std::string* strings, std::int64_t n) {
  const DType plain = is_small(from) ? plain_type(from) : from;
  const Conversion unpack(from, plain);
  alignas(64) std::byte piece[kPiece * 8];
  visit_numeric(plain, [&]<class T>() {
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, n - begin);
      unpack.serial(static_cast<const std::byte*>(numbers) + byte_offset(from, begin), piece, count);
      const T* values = reinterpret_cast<const T*>(piece);
      for (std::int64_t i = 0; i < count; ++i) strings[begin + i] = text_of(values[i]);
    }
  });
}

void strings_to_numbers(const std::string& label, const std::string* strings, DType to, void* numbers, std::int64_t n,
                        ConvertOptions options) {
  const DType read = parsed_as(to);
  const Conversion convert(read, to, options);
  alignas(64) std::byte piece[kPiece * 8];
  visit_numeric(read, [&]<class T>() {
    if constexpr (sizeof(T) >= 4 && std::is_arithmetic_v<T>) {
      T* values = reinterpret_cast<T*>(piece);
      for (std::int64_t begin = 0; begin < n; begin += kPiece) {
        const std::int64_t count = std::min(kPiece, n - begin);
        for (std::int64_t i = 0; i < count; ++i) values[i] = parse<T>(label, strings[begin + i], to);
        convert.serial(piece, static_cast<std::byte*>(numbers) + byte_offset(to, begin), count);
      }
    }
  });
}

}  // namespace backpass
