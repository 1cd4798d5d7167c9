#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backpass/tensor.hpp"
#include "bindings.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

// numpy and DLPack have no name for these: they travel as unsigned integers of the same width.
nb::dlpack::dtype carrier_of(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  auto make = [](Code code, int bits) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  if (dtype == DType::boolean) return make(Code::Bool, 8);
  if (dtype == DType::float16 || dtype == DType::float32 || dtype == DType::float64) {
    return make(Code::Float, bit_width(dtype));
  }
  if (dtype == DType::bfloat16) return make(Code::Bfloat, 16);
  if (dtype == DType::complex64 || dtype == DType::complex128) return make(Code::Complex, bit_width(dtype));
  return make(is_signed_integer(dtype) ? Code::Int : Code::UInt, std::max(8, bit_width(dtype)));
}

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

Tensor from_array(AnyArray array, int dtype_code, std::vector<std::int64_t> dims) {
  if (!is_known_dtype(dtype_code)) fail("element type code: got ", dtype_code, ", expected one of ONNX's");
  auto dtype = static_cast<DType>(dtype_code);
  if (dtype == DType::string) fail("element type code: got ", dtype_code, " (string); use from_strings");
  if (array.nbytes() < byte_size(dtype, element_count(dims))) fail("array is smaller than its shape says");
  auto owner = std::make_shared<AnyArray>(array);
  // The array may be released by an engine thread that does not hold the interpreter lock.
  std::shared_ptr<const void> guard(owner.get(), [owner](const void*) mutable {
    nb::gil_scoped_acquire gil;
    owner.reset();
  });
  owner.reset();
  return {dtype, std::move(dims), array.data(), std::move(guard)};
}

// Strings of a tensor are bytes. Text goes in and out as UTF-8; what is none travels in Python's escape characters.
constexpr const char* kEscaped = "surrogateescape";

std::string to_string(nb::handle item) {
  if (nb::isinstance<nb::bytes>(item)) return std::string(view_of(nb::borrow<nb::bytes>(item)));
  if (!nb::isinstance<nb::str>(item)) {
    fail("string tensor: got an element of type ", nb::type_name(item.type()).c_str(), ", expected str or bytes");
  }
  nb::object bytes = nb::steal(PyUnicode_AsEncodedString(item.ptr(), "utf-8", kEscaped));
  if (!bytes.is_valid()) nb::raise_python_error();
  return std::string(view_of(nb::borrow<nb::bytes>(bytes)));
}

Tensor from_strings(const nb::list& items, std::vector<std::int64_t> dims) {
  const std::int64_t count = element_count(dims);
  if (count != static_cast<std::int64_t>(items.size())) {
    fail("string tensor: got ", items.size(), " elements, expected ", count, " for shape ", shown(dims));
  }
  Tensor t(DType::string, std::move(dims));
  std::string* out = t.as<std::string>();
  for (nb::handle item : items) *out++ = to_string(item);
  return t;
}

nb::list strings_of(const Tensor& t) {
  if (t.dtype() != DType::string) fail("strings: got a tensor of ", name_of(t.dtype()), ", expected one of strings");
  nb::list result;
  for (const std::string& item : t.values<std::string>()) {
    const auto size = static_cast<Py_ssize_t>(item.size());
    nb::object text = nb::steal(PyUnicode_DecodeUTF8(item.data(), size, kEscaped));
    if (!text.is_valid()) nb::raise_python_error();
    result.append(text);
  }
  return result;
}

void require_memory(const Tensor& t, bool as_bytes) {
  if (t.dtype() == DType::string) fail("a tensor of strings has no array in memory; use strings()");
  if (is_sub_byte(t.dtype()) && !as_bytes) {
    fail("elements of ", name_of(t.dtype()), " share bytes: they have no array; use bytes_array()");
  }
}

template <class Framework>
nb::ndarray<Framework> export_array(const Tensor& t, bool as_bytes) {
  require_memory(t, as_bytes);
  auto* keeper = new Tensor(t);
  nb::capsule owner(keeper, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  std::vector<std::size_t> shape(t.dims().begin(), t.dims().end());
  nb::dlpack::dtype dtype = carrier_of(t.dtype());
  if (as_bytes) {
    shape = {t.bytes()};
    dtype = nb::dtype<std::uint8_t>();
  }
  return nb::ndarray<Framework>(keeper->mutable_data(), shape.size(), shape.data(), owner, nullptr, dtype);
}

}  // namespace

void bind_tensor(nb::module_& m) {
  nb::class_<Tensor>(m, "Tensor", "A dense tensor owned by, or lent to, the engine. Supports DLPack.")
      .def_static("from_array", &from_array, nb::arg("array"), nb::arg("dtype"), nb::arg("dims"),
                  "Shares the memory of a C-contiguous CPU array (numpy, DLPack) read as ONNX element type `dtype`.")
      .def_static("from_strings", &from_strings, nb::arg("items"), nb::arg("dims"), "of str or bytes")
      .def_prop_ro(
          "dtype", [](const Tensor& t) { return static_cast<int>(t.dtype()); }, "ONNX code of the element type")
      .def_prop_ro("shape", [](const Tensor& t) { return nb::tuple(nb::cast(t.dims())); })
      .def_prop_ro("nbytes", &Tensor::bytes)
      .def("strings", &strings_of, nb::sig("def strings(self) -> list[str]"))
      .def("__repr__", [](const Tensor& t) { return concat("Tensor(", name_of(t.dtype()), shown(t.dims()), ")"); })
      .def(
          "array", [](const Tensor& t) { return export_array<nb::numpy>(t, false); }, "numpy view of the memory")
      .def(
          "numpy", [](const Tensor& t) { return export_array<nb::numpy>(t, false); }, "the same as array()")
      .def(
          "bytes_array", [](const Tensor& t) { return export_array<nb::numpy>(t, true); }, "the memory as uint8")
      .def(
          "__dlpack__",
          [](nb::pointer_and_handle<Tensor> self, nb::kwargs kwargs) {
            nb::object a = nb::cast(export_array<nb::array_api>(*self.p, false));
            return a.attr("__dlpack__")(**kwargs);
          },
          nb::sig("def __dlpack__(self, **kwargs: object) -> typing.Any"))
      .def("__dlpack_device__", [](const Tensor&) { return nb::make_tuple(1, 0); });
}
