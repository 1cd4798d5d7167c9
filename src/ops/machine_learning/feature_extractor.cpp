// ai.onnx.ml ArrayFeatureExtractor (columns picked by index) and Binarizer (1 above a threshold, else 0).
#include <string>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer_extract(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == DType::int64, "indices: got ", name_of(c.dtype(1)), ", expected int64");
  Shape shape = c.shape(0);
  c.require(!shape.empty(), "input: got a scalar, expected rows");
  if (shape.size() == 1) shape.insert(shape.begin(), 1);
  shape.back() = product(c.shape(1));
  c.set_shape(0, std::move(shape));
}

std::vector<Value*> expand_extract(Builder& b, const Node& node) {
  Value* x = node.input(0);
  if (!x->type.shape) fail<Unsupported>(node.label(), " input of unknown rank; give the model's input a shape");
  if (x->type.shape->size() == 1) x = b.op("Unsqueeze", {x, b.ints({0})});
  Value* indices = b.op("Reshape", {node.input(1), b.ints({-1})});
  return {b.op("Gather", {x, indices}, {{"axis", std::int64_t{-1}}})};
}

const Register kExtract({.name = "ArrayFeatureExtractor",
                         .domain = "ai.onnx.ml",
                         .doc = "columns of the last axis picked by index",
                         .inputs = {2, 2},
                         .types = types::reals | types::indices | types::strings,
                         .infer = infer_extract,
                         .expand = expand_extract});

Kernel prepare_binarizer(PrepareContext& c) {
  constexpr std::int64_t kGrain = 1 << 15;
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  float threshold = c.node.attr_float("threshold", 0);
  return [=](const KernelArgs& a) {
    visit_real_or_integer(dtype, [&]<class T>() {
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          a.out<T>(0)[i] = static_cast<double>(a.in<T>(0)[i]) > static_cast<double>(threshold) ? T{1} : T{0};
        }
      });
    });
  };
}

const Register kBinarizer({.name = "Binarizer",
                           .domain = "ai.onnx.ml",
                           .doc = "1 where an element is above the threshold, else 0",
                           .types = types::reals | types::indices,
                           .infer = rules::same_as_input,
                           .prepare = prepare_binarizer,
                           .in_place_input = 0});

}  // namespace
}  // namespace backpass
