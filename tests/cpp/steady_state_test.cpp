// Once a shape has been seen, a run allocates nothing: counted by replacing operator new for this executable and the
// engine it loads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "allocations.hpp"
#include "backpass/session.hpp"
#include "onnx_io/proto.hpp"
#include "onnx_io/writer.hpp"

namespace {

std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(bytes == 0 ? 1 : bytes)
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 1); }
void* operator new[](std::size_t bytes) { return counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t a) { return counted(bytes, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return counted(bytes, static_cast<std::size_t>(a)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace backpass {

std::int64_t allocation_count() { return allocations; }

namespace {

using onnx_io::AttributeProto;
using onnx_io::ModelProto;
using onnx_io::NodeProto;
using onnx_io::TypeProto;
using onnx_io::ValueInfoProto;

NodeProto node(const char* op, std::vector<std::string> inputs, const char* output) {
  NodeProto n;
  n.op_type = op;
  n.name = output;
  n.input = std::move(inputs);
  n.output = {output};
  return n;
}

ValueInfoProto matrix(const char* name) {
  ValueInfoProto info;
  info.name = name;
  info.type.kind = TypeProto::Kind::tensor;
  info.type.elem_type = DType::float32;
  info.type.shape = std::vector<onnx_io::DimProto>(2);
  return info;
}

std::string transformer_like_model() {
  ModelProto model;
  model.ir_version = 10;
  model.opset_import = {{"", 21}};
  model.graph.name = "g";
  model.graph.input = {matrix("x"), matrix("w")};
  model.graph.output = {matrix("y")};
  model.graph.node = {node("MatMul", {"x", "w"}, "q"),  node("Transpose", {"q"}, "qt"),
                      node("MatMul", {"q", "qt"}, "s"), node("Softmax", {"s"}, "p"),
                      node("MatMul", {"p", "q"}, "c"),  node("Add", {"c", "x"}, "r"),
                      node("Tanh", {"r"}, "t"),         node("Mul", {"t", "r"}, "y")};
  return onnx_io::write_model(model);
}

TEST(SteadyState, ARunAllocatesNothing) {
  std::string bytes = transformer_like_model();
  SessionOptions options;
  options.num_threads = 1;
  InferenceSession session(bytes, nullptr, options);
  Tensor x(DType::float32, {48, 32});
  Tensor w(DType::float32, {32, 32});
  std::fill_n(x.as<float>(), x.size(), 0.5F);
  std::fill_n(w.as<float>(), w.size(), 0.25F);
  std::vector<RuntimeValue> inputs{x, w};
  std::vector<Tensor> outputs{Tensor(DType::float32, {48, 32})};
  for (int warm_up = 0; warm_up < 3; ++warm_up) session.run_into(inputs, outputs);
  std::int64_t before = allocations;
  for (int i = 0; i < 5; ++i) session.run_into(inputs, outputs);
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace backpass
