// Values that exist at run time: tensors, sequences of them, absent optionals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backpass/dtype.hpp"
#include "backpass/error.hpp"

namespace backpass {

using Dims = std::vector<std::int64_t>;

/// Number of elements; 1 for a scalar. Throws InvalidInput on a negative extent or when the product overflows 63 bits.
std::int64_t element_count(std::span<const std::int64_t> dims);

/// "[2,3,4]"
std::string to_string(std::span<const std::int64_t> dims);

/// Text that is made only when the message is: `require(fits, "got ", shown(shape))`.
template <class T>
struct Shown {
  const T& value;
};
template <class T>
Shown<T> shown(const T& value) {
  return {value};
}
template <class T>
std::ostream& operator<<(std::ostream& out, const Shown<T>& shown) {
  if constexpr (requires { shown.value.str(); }) {
    return out << shown.value.str();
  } else {
    return out << to_string(shown.value);
  }
}

/// A dense, row-major tensor: a pointer, what it points to, and whoever keeps that memory alive. Copying copies the
/// handle, never the elements. Elements of a string tensor are std::string objects.
class Tensor {
 public:
  Tensor() = default;

  /// Uninitialised, 64-byte aligned memory (strings: constructed empty).
  Tensor(DType dtype, Dims dims);

  /// Memory of someone else. With a null owner the caller keeps it alive.
  Tensor(DType dtype, Dims dims, const void* data, std::shared_ptr<const void> owner);

  template <class T>
  static Tensor from(DType dtype, Dims dims, std::span<const T> values);
  static Tensor ints(std::span<const std::int64_t> values);  ///< 1-D int64
  static Tensor scalar_int(std::int64_t value);              ///< 0-D int64
  static Tensor scalar_float(float value, DType dtype = DType::float32);

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  std::int64_t rank() const { return static_cast<std::int64_t>(dims_.size()); }
  std::int64_t size() const { return count_; }
  std::size_t bytes() const { return byte_size(dtype_, count_); }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  const void* data() const { return data_; }
  void* mutable_data() { return const_cast<void*>(data_); }  // NOLINT: handles share memory on purpose

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }
  template <class T>
  T* as() {
    return static_cast<T*>(mutable_data());
  }
  template <class T>
  std::span<const T> values() const {
    return {as<T>(), static_cast<std::size_t>(count_)};
  }

  /// The same elements under other extents (of equal count).
  Tensor reshaped(Dims dims) const;

  /// Contents of an integer tensor (any integer type, bool), widened. Throws InvalidInput for other types.
  std::vector<std::int64_t> to_ints() const;

  /// Contents of a numeric tensor (floats, integers, bool) as double.
  std::vector<double> to_doubles() const;

 private:
  DType dtype_ = DType::undefined;
  Dims dims_;
  std::int64_t count_ = 0;
  const void* data_ = nullptr;
  std::shared_ptr<const void> owner_;
};

/// What flows along an edge at run time. `none` is an empty optional or an omitted input; a full optional is its
/// content.
struct RuntimeValue {
  enum class Kind : std::uint8_t { none, tensor, sequence };
  Kind kind = Kind::none;
  Tensor tensor;
  std::shared_ptr<const std::vector<RuntimeValue>> items;  ///< sequence

  RuntimeValue() = default;
  RuntimeValue(Tensor t) : kind(Kind::tensor), tensor(std::move(t)) {}  // NOLINT: implicit on purpose
  static RuntimeValue sequence(std::vector<RuntimeValue> items);
  bool is_tensor() const { return kind == Kind::tensor; }
};

template <class T>
Tensor Tensor::from(DType dtype, Dims dims, std::span<const T> values) {
  Tensor t(dtype, std::move(dims));
  ensure(t.size() == static_cast<std::int64_t>(values.size()), "Tensor::from: element count");
  T* out = t.as<T>();
  for (const T& v : values) *out++ = v;
  return t;
}

}  // namespace backpass
