// Numbers <-> their text, for Cast.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "support/convert.hpp"

namespace backpass {

/// Text as numpy writes it: shortest digits that read back to the same number ("0.1", "3.0", "1e+20", "nan", "-inf"),
/// integers plainly, "True" and "False".
void numbers_to_strings(DType from, const void* numbers, std::string* strings, std::int64_t n);

/// Plain and scientific notation, "inf", "+INF", "nan" in any case; blanks around are ignored. Fractions are cut off
/// for integers. InvalidInput, beginning with `label`, names the text that is no number or does not fit.
void strings_to_numbers(const std::string& label, const std::string* strings, DType to, void* numbers, std::int64_t n,
                        ConvertOptions options);

}  // namespace backpass
