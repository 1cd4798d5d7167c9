// From a DType known at run time to a C++ type: `visit_float(dtype, [&]<class T>() { ... })`.
// Each visitor throws Unsupported for a type outside its set, so kernels need no default branch.
#pragma once

#include <cstdint>

#include "backpass/dtype.hpp"
#include "backpass/error.hpp"
#include "support/half.hpp"

namespace backpass {

[[noreturn]] inline void unsupported_dtype(DType dtype) { fail<Unsupported>("element type ", name_of(dtype)); }

template <class F>
void visit_real(DType dtype, F&& f) {  // float32, float64
  switch (dtype) {
    case DType::float32:
      return f.template operator()<float>();
    case DType::float64:
      return f.template operator()<double>();
    default:
      unsupported_dtype(dtype);
  }
}

template <class F>
void visit_float(DType dtype, F&& f) {  // and the two 16-bit formats
  switch (dtype) {
    case DType::float16:
      return f.template operator()<Half>();
    case DType::bfloat16:
      return f.template operator()<BFloat16>();
    default:
      return visit_real(dtype, f);
  }
}

template <class F>
void visit_integer(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int8:
      return f.template operator()<std::int8_t>();
    case DType::int16:
      return f.template operator()<std::int16_t>();
    case DType::int32:
      return f.template operator()<std::int32_t>();
    case DType::int64:
      return f.template operator()<std::int64_t>();
    case DType::uint8:
      return f.template operator()<std::uint8_t>();
    case DType::uint16:
      return f.template operator()<std::uint16_t>();
    case DType::uint32:
      return f.template operator()<std::uint32_t>();
    case DType::uint64:
      return f.template operator()<std::uint64_t>();
    default:
      unsupported_dtype(dtype);
  }
}

template <class F>
void visit_integer_or_bool(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<bool>();
  visit_integer(dtype, f);
}

template <class F>
void visit_numeric(DType dtype, F&& f) {  // all floats, all integers, bool
  if (is_float(dtype)) return visit_float(dtype, f);
  visit_integer_or_bool(dtype, f);
}

template <class F>
void visit_real_or_integer(DType dtype, F&& f) {  // float32, float64, all integers
  if (is_float(dtype)) return visit_real(dtype, f);
  visit_integer(dtype, f);
}

template <class F>
void visit_index(DType dtype, F&& f) {  // int32, int64
  switch (dtype) {
    case DType::int32:
      return f.template operator()<std::int32_t>();
    case DType::int64:
      return f.template operator()<std::int64_t>();
    default:
      unsupported_dtype(dtype);
  }
}

struct Bytes16 {
  std::uint64_t low, high;
};

/// For operators that only move elements: a type of the right size (strings included, sub-byte types not).
template <class F>
void visit_storage(DType dtype, F&& f) {
  if (dtype == DType::string) return f.template operator()<std::string>();
  switch (bit_width(dtype)) {
    case 8:
      return f.template operator()<std::uint8_t>();
    case 16:
      return f.template operator()<std::uint16_t>();
    case 32:
      return f.template operator()<std::uint32_t>();
    case 64:
      return f.template operator()<std::uint64_t>();
    case 128:
      return f.template operator()<Bytes16>();
    default:
      unsupported_dtype(dtype);
  }
}

}  // namespace backpass
