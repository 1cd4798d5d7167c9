// ONNX Runtime's dropouts whose mask is 32 elements to a word: BitmaskDropout, BitmaskBiasDropout, BitmaskDropoutGrad.
// They are the ordinary ones with masks packed and unpacked by PackBits and UnpackBits.
#include <cstring>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kBits = 32;  // of a word
constexpr std::int64_t kGrain = 1 << 10;

std::int64_t words(std::int64_t elements) { return (elements + kBits - 1) / kBits; }

void infer_pack(InferContext& c) {
  c.set_dtype(0, DType::uint32);
  c.set_shape(0, {ceil_div(product(c.shape(0)), Dim(kBits))});
}

Kernel prepare_pack(PrepareContext& c) {
  const std::int64_t n = c.in(0).size();
  return [n](const KernelArgs& a) {
    parallel_for(words(n), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t word = begin; word < end; ++word) {
        std::uint32_t bits = 0;
        const std::int64_t count = std::min(kBits, n - word * kBits);
        for (std::int64_t i = 0; i < count; ++i) {
          bits |= static_cast<std::uint32_t>(a.in<bool>(0)[word * kBits + i]) << i;
        }
        a.out<std::uint32_t>(0)[word] = bits;
      }
    });
  };
}

/// UnpackBits(words, like): as many as `like` has elements.
void infer_unpack(InferContext& c) {
  c.set_dtype(0, DType::boolean);
  c.set_shape(0, c.shape(1));
}

Kernel prepare_unpack(PrepareContext& c) {
  const std::int64_t n = c.out(0).size();
  c.require(c.in(0).size() == words(n), "mask: got ", c.in(0).size(), " words, expected ", words(n), " for ", n,
            " elements");
  return [n](const KernelArgs& a) {
    parallel_for(words(n), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * kBits; i < std::min(n, end * kBits); ++i) {
        a.out<bool>(0)[i] = (a.in<std::uint32_t>(0)[i / kBits] >> (i % kBits) & 1U) != 0;
      }
    });
  };
}

const Register kPack({.name = "PackBits",
                      .domain = "backpass",
                      .doc = "32 booleans to a word, the first in its lowest bit",
                      .types = types::boolean,
                      .infer = infer_pack,
                      .prepare = prepare_pack,
                      .is_flat = true});

const Register kUnpack({.name = "UnpackBits",
                        .domain = "backpass",
                        .doc = "booleans from words of 32, in the shape of input 1",
                        .inputs = {2, 2},
                        .types = {DType::uint32},
                        .infer = infer_unpack,
                        .prepare = prepare_unpack,
                        .is_flat = true});

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::uint32);
  c.set_shape(0, c.shape(0));
  c.set_shape(1, {ceil_div(product(c.shape(0)), Dim(kBits))});
}

std::vector<Value*> with_packed_mask(Builder& b, const Node& node, std::string_view op, std::string_view domain) {
  AttributeList attributes;
  if (node.has_attribute("seed")) attributes.emplace_back("seed", node.attr_int("seed"));
  std::vector<Value*> inputs(node.inputs.begin(), node.inputs.end());
  const std::vector<Value*> dropped = b.ops(op, inputs, 2, attributes, domain);
  return {dropped[0], b.op("PackBits", {dropped[1]}, {}, "backpass")};
}

std::vector<Value*> expand(Builder& b, const Node& node) { return with_packed_mask(b, node, "Dropout", ""); }

std::vector<Value*> expand_bias(Builder& b, const Node& node) {
  return with_packed_mask(b, node, "BiasDropout", "com.microsoft");
}

void infer_grad(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == DType::uint32, "mask: got ", name_of(c.dtype(1)), ", expected uint32");
}

std::vector<Value*> expand_grad(Builder& b, const Node& node) {
  std::vector<Value*> inputs(node.inputs.begin(), node.inputs.end());
  inputs[1] = b.op("UnpackBits", {node.input(1), node.input(0)}, {}, "backpass");
  return {b.op("DropoutGrad", inputs, {}, "com.microsoft")};
}

const Register kDropout({.name = "BitmaskDropout",
                         .domain = "com.microsoft",
                         .doc = "dropout whose mask is 32 elements to a word",
                         .inputs = {1, 3},
                         .outputs = {1, 2},
                         .types = types::floats,
                         .infer = infer,
                         .expand = expand,
                         .is_random = true});

const Register kBiasDropout({.name = "BitmaskBiasDropout",
                             .domain = "com.microsoft",
                             .doc = "dropout of data + bias, plus a residual; its mask is 32 elements to a word",
                             .inputs = {2, 5},
                             .outputs = {1, 2},
                             .types = types::floats,
                             .infer = infer,
                             .expand = expand_bias,
                             .is_random = true});

const Register kGrad({.name = "BitmaskDropoutGrad",
                      .domain = "com.microsoft",
                      .doc = "gradient of BitmaskDropout",
                      .inputs = {2, 4},
                      .types = types::floats,
                      .infer = infer_grad,
                      .expand = expand_grad});

}  // namespace
}  // namespace backpass
