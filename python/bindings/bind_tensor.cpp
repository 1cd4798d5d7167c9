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

Tensor from_strings(const std::vector<std::string>& items, std::vector<std::int64_t> dims) {
  return Tensor::from<std::string>(DType::string, std::move(dims), items);
}

std::vector<std::string> strings_of(const Tensor& t) {
  auto v = t.values<std::string>();
  return {v.begin(), v.end()};
}

template <class Framework>
nb::ndarray<Framework> export_array(const Tensor& t, bool as_bytes) {
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
      .def_static("from_strings", &from_strings, nb::arg("items"), nb::arg("dims"))
      .def_prop_ro(
          "dtype", [](const Tensor& t) { return static_cast<int>(t.dtype()); }, "ONNX code of the element type")
      .def_prop_ro("shape", [](const Tensor& t) { return nb::tuple(nb::cast(t.dims())); })
      .def_prop_ro("nbytes", &Tensor::bytes)
      .def("strings", &strings_of)
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
