#include "torch_exchange.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backpass/error.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

// The binary interface of DLPack 1, https://dmlc.github.io/dlpack: only what is used here.
namespace dl {

struct Version {
  std::uint32_t major, minor;
};
struct Device {
  std::int32_t type, id;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Array {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct Managed {
  Version version;
  void* manager_ctx;
  void (*deleter)(Managed*);
  std::uint64_t flags;
  Array array;
};
struct Header {
  Version version;
  Header* previous;
};
struct Exchange {
  Header header;
  int (*allocate)(Array*, Managed**, void*, void (*)(void*, const char*, const char*));
  int (*from_object)(void*, Managed**);
  int (*to_object)(Managed*, void**);
  int (*lend)(void*, Array*);  // null where a version has none
};

constexpr std::int32_t kCpu = 1;
enum Code : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8e4m3fn = 10,
  kFloat8e4m3fnuz = 11,
  kFloat8e5m2 = 12,
  kFloat8e5m2fnuz = 13,
  kFloat8e8m0 = 14
};

}  // namespace dl

struct Torch {
  nb::object tensor_type, parameter_type;
  const dl::Exchange* exchange = nullptr;
};

const Torch& torch() {
  static const Torch* found = [] {
    auto* t = new Torch;  // never released: the interpreter may be gone first
    t->tensor_type = nb::module_::import_("torch").attr("Tensor");
    t->parameter_type = nb::module_::import_("torch.nn").attr("Parameter");
    nb::object table = nb::getattr(t->tensor_type, "__dlpack_c_exchange_api__", nb::none());
    if (table.is_none()) fail<Unsupported>("torch: got a version without the DLPack exchange table; use torch 2.13");
    t->exchange = static_cast<const dl::Exchange*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
    if (t->exchange == nullptr) throw nb::python_error();
    if (t->exchange->header.version.major != 1) {
      fail<Unsupported>("torch: got DLPack ", t->exchange->header.version.major, ", expected 1; use torch 2.13");
    }
    return t;
  }();
  return *found;
}

/// Elements that both sides have, with what DLPack calls them.
constexpr std::pair<DType, dl::DataType> kElements[] = {{DType::float32, {dl::kFloat, 32, 1}},
                                                        {DType::float64, {dl::kFloat, 64, 1}},
                                                        {DType::float16, {dl::kFloat, 16, 1}},
                                                        {DType::bfloat16, {dl::kBfloat, 16, 1}},
                                                        {DType::int64, {dl::kInt, 64, 1}},
                                                        {DType::int32, {dl::kInt, 32, 1}},
                                                        {DType::int16, {dl::kInt, 16, 1}},
                                                        {DType::int8, {dl::kInt, 8, 1}},
                                                        {DType::uint8, {dl::kUInt, 8, 1}},
                                                        {DType::uint16, {dl::kUInt, 16, 1}},
                                                        {DType::uint32, {dl::kUInt, 32, 1}},
                                                        {DType::uint64, {dl::kUInt, 64, 1}},
                                                        {DType::boolean, {dl::kBool, 8, 1}},
                                                        {DType::complex64, {dl::kComplex, 64, 1}},
                                                        {DType::complex128, {dl::kComplex, 128, 1}},
                                                        {DType::float8e4m3fn, {dl::kFloat8e4m3fn, 8, 1}},
                                                        {DType::float8e4m3fnuz, {dl::kFloat8e4m3fnuz, 8, 1}},
                                                        {DType::float8e5m2, {dl::kFloat8e5m2, 8, 1}},
                                                        {DType::float8e5m2fnuz, {dl::kFloat8e5m2fnuz, 8, 1}},
                                                        {DType::float8e8m0, {dl::kFloat8e8m0, 8, 1}}};

DType dtype_of(dl::DataType t) {
  for (const auto& [dtype, element] : kElements) {
    if (element.code == t.code && element.bits == t.bits && element.lanes == t.lanes) return dtype;
  }
  fail<Unsupported>("torch tensor: got element type (DLPack code ", int{t.code}, ", ", int{t.bits},
                    " bits), expected one that ONNX has");
}

dl::DataType data_type(DType dtype) {
  for (const auto& [known, element] : kElements) {
    if (known == dtype) return element;
  }
  fail<Unsupported>("tensor of ", name_of(dtype), ": got an element type that torch has no tensors of");
}

bool is_contiguous(const dl::Array& a) {
  std::int64_t expected = 1;
  for (std::int32_t i = a.ndim; i-- > 0;) {
    if (a.shape[i] == 0) return true;
    if (a.shape[i] != 1 && a.strides[i] != expected) return false;
    expected *= a.shape[i];
  }
  return true;
}

/// Whether the elements lie one after the other and mean what their bytes say. Signs that torch has put off do not show
/// here either; asking every tensor for them takes as long as all the rest, so that callers do.
bool is_as_stored(nb::handle object, const dl::Array& a) {
  return is_contiguous(a) && (a.dtype.code != dl::kComplex || !nb::cast<bool>(object.attr("is_conj")()));
}

dl::Managed* take(nb::handle object) {
  dl::Managed* managed = nullptr;
  if (torch().exchange->from_object(object.ptr(), &managed) != 0) throw nb::python_error();
  return managed;
}

void require_cpu(const dl::Array& a) {
  if (a.device.type != dl::kCpu) fail("input: got a tensor on another device, expected one on the CPU; use .cpu()");
}

struct Lent {
  dl::Managed managed{};
  Tensor tensor;
  Dims strides;
};

void release(dl::Managed* managed) { delete static_cast<Lent*>(managed->manager_ctx); }

}  // namespace

Tensor tensor_from_torch(nb::handle object) {
  if (PyObject_IsInstance(object.ptr(), torch().tensor_type.ptr()) != 1) {
    fail("input: got ", nb::str(object.type()).c_str(), ", expected a torch.Tensor");
  }
  nb::object held;
  dl::Managed* managed = take(object);
  if (managed->array.device.type == dl::kCpu && !is_as_stored(object, managed->array)) {
    managed->deleter(managed);
    held = object.attr("resolve_conj")().attr("contiguous")();
    managed = take(held);
  }
  std::shared_ptr<const void> owner(managed, [](const void* p) {
    auto* m = static_cast<dl::Managed*>(const_cast<void*>(p));  // NOLINT: it was not const
    if (m->deleter != nullptr) m->deleter(m);
  });
  const dl::Array& a = managed->array;
  require_cpu(a);
  return {dtype_of(a.dtype), Dims(a.shape, a.shape + a.ndim), static_cast<std::byte*>(a.data) + a.byte_offset,
          std::move(owner)};
}

nb::object tensor_to_torch(const Tensor& tensor) {
  auto lent = std::make_unique<Lent>();
  lent->tensor = tensor;
  lent->strides.resize(tensor.dims().size());
  std::int64_t step = 1;
  for (std::size_t i = lent->strides.size(); i-- > 0;) {
    lent->strides[i] = step;
    step *= std::max<std::int64_t>(1, tensor.dims()[i]);
  }
  dl::Array& a = lent->managed.array;
  a.data = lent->tensor.mutable_data();
  a.device = {dl::kCpu, 0};
  a.ndim = static_cast<std::int32_t>(tensor.dims().size());
  a.dtype = data_type(tensor.dtype());
  a.shape = const_cast<std::int64_t*>(lent->tensor.dims().data());  // NOLINT: the interface is not const
  a.strides = lent->strides.data();
  lent->managed.version = torch().exchange->header.version;
  lent->managed.manager_ctx = lent.get();
  lent->managed.deleter = release;
  void* object = nullptr;
  dl::Managed* managed = &lent.release()->managed;
  if (torch().exchange->to_object(managed, &object) != 0) {
    release(managed);
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(object));
}

TorchMemory torch_memory(nb::handle object) {
  auto* tensor_type = reinterpret_cast<PyTypeObject*>(torch().tensor_type.ptr());
  if (PyType_IsSubtype(Py_TYPE(object.ptr()), tensor_type) == 0) {
    fail("input: got ", nb::str(object.type()).c_str(), ", expected a torch.Tensor");
  }
  if (torch().exchange->lend == nullptr)
    fail<Unsupported>("torch: got a version that lends no tensors; use torch 2.13");
  dl::Array a{};
  if (torch().exchange->lend(object.ptr(), &a) != 0) throw nb::python_error();
  require_cpu(a);
  const auto rank = static_cast<std::size_t>(a.ndim);
  TorchMemory memory{
      static_cast<std::byte*>(a.data) + a.byte_offset, dtype_of(a.dtype), 1, {a.shape, rank}, {a.strides, rank}};
  for (const std::int64_t extent : memory.shape) memory.count *= extent;
  return memory;
}

bool TorchMemory::is_dense() const {
  std::int64_t expected = 1;
  std::size_t left = shape.size();
  for (std::size_t i = shape.size(); i-- > 0;) {  // the usual order, in one go
    if (shape[i] != 1 && strides[i] != expected) break;
    expected *= shape[i];
    left = i;
  }
  if (left == 0 || count == 0) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1) axes.emplace_back(strides[i], shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  expected = 1;
  for (const auto& [stride, extent] : axes) {
    if (stride != expected) return false;
    expected *= extent;
  }
  return true;
}

bool TorchMemory::is_laid_out_as(const TorchMemory& other) const {
  if (!std::equal(shape.begin(), shape.end(), other.shape.begin(), other.shape.end())) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && strides[i] != other.strides[i]) return false;
  }
  return true;
}

std::string kinds_of(const nb::tuple& objects) {
  const Torch& known = torch();
  if (known.exchange->lend == nullptr) return {};
  std::string kinds;
  auto add = [&](const void* data, std::size_t bytes) { kinds.append(static_cast<const char*>(data), bytes); };
  for (nb::handle object : objects) {
    const nb::handle type = object.type();
    if (!type.is(known.tensor_type) && !type.is(known.parameter_type)) return {};
    dl::Array a{};
    if (known.exchange->lend(object.ptr(), &a) != 0) {
      PyErr_Clear();  // sparse, perhaps
      return {};
    }
    if (a.device.type != dl::kCpu) return {};
    add(&a.dtype, sizeof a.dtype);
    add(&a.ndim, sizeof a.ndim);
    add(a.shape, sizeof *a.shape * static_cast<std::size_t>(a.ndim));
  }
  return kinds;
}
