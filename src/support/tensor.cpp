#include "backpass/tensor.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "support/half.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kManyPages = 2 * kHugePage;

std::shared_ptr<void> allocate(DType dtype, std::int64_t count) {
  if (dtype == DType::string) {
    auto* strings = new std::string[static_cast<std::size_t>(count)];
    return {strings, [](void* p) { delete[] static_cast<std::string*>(p); }};
  }
  std::size_t bytes = byte_size(dtype, count);
  const std::size_t alignment = bytes >= kManyPages ? kHugePage : kAlignment;
  const std::size_t rounded = (bytes / alignment + 1) * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) fail("out of memory: a tensor of ", bytes, " bytes was asked for; use smaller inputs");
  if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);  // one fault per 2 MiB instead of per 4 KiB
  return {memory, [](void* p) { std::free(p); }};
}

}  // namespace

std::int64_t element_count(std::span<const std::int64_t> dims) {
  std::int64_t count = 1;
  bool empty = false;
  for (std::int64_t d : dims) {
    if (d < 0) fail("shape ", to_string(dims), " has a negative extent");
    if (d == 0) empty = true;
    if (!empty && __builtin_mul_overflow(count, d, &count)) fail("shape ", to_string(dims), " has too many elements");
  }
  return empty ? 0 : count;
}

std::string to_string(std::span<const std::int64_t> dims) {
  std::string s = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) s += (i ? "," : "") + std::to_string(dims[i]);
  return s + "]";
}

Tensor::Tensor(DType dtype, Dims dims) : dtype_(dtype), dims_(std::move(dims)), count_(element_count(dims_)) {
  std::shared_ptr<void> memory = allocate(dtype_, count_);
  data_ = memory.get();
  owner_ = std::move(memory);
}

Tensor::Tensor(DType dtype, Dims dims, const void* data, std::shared_ptr<const void> owner)
    : dtype_(dtype), dims_(std::move(dims)), count_(element_count(dims_)), data_(data), owner_(std::move(owner)) {}

Tensor Tensor::ints(std::span<const std::int64_t> values) {
  return from<std::int64_t>(DType::int64, {static_cast<std::int64_t>(values.size())}, values);
}

Tensor Tensor::scalar_int(std::int64_t value) {
  return from<std::int64_t>(DType::int64, {}, std::span<const std::int64_t>(&value, 1));
}

Tensor Tensor::scalar_float(float value, DType dtype) {
  Tensor t(dtype, {});
  visit_float(dtype, [&]<class T>() { *t.as<T>() = static_cast<T>(value); });
  return t;
}

Tensor Tensor::reshaped(Dims dims) const {
  Tensor t = *this;
  t.dims_ = std::move(dims);
  ensure(element_count(t.dims_) == count_, "reshape of ", shown(dims_), " to ", shown(t.dims_));
  return t;
}

std::vector<std::int64_t> Tensor::to_ints() const {
  if (!is_integer(dtype_) && dtype_ != DType::boolean) fail("expected an integer tensor, got ", name_of(dtype_));
  std::vector<std::int64_t> out(static_cast<std::size_t>(count_));
  visit_integer_or_bool(dtype_, [&]<class T>() {
    const T* p = as<T>();
    for (auto& v : out) v = static_cast<std::int64_t>(*p++);
  });
  return out;
}

std::vector<double> Tensor::to_doubles() const {
  std::vector<double> out(static_cast<std::size_t>(count_));
  visit_numeric(dtype_, [&]<class T>() {
    const T* p = as<T>();
    for (auto& v : out) v = static_cast<double>(*p++);
  });
  return out;
}

RuntimeValue RuntimeValue::sequence(std::vector<RuntimeValue> items) {
  RuntimeValue v;
  v.kind = Kind::sequence;
  v.items = std::make_shared<const std::vector<RuntimeValue>>(std::move(items));
  return v;
}

}  // namespace backpass
