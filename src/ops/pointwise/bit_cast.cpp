// BitCast: the same bits under another element type of the same width.
#include <cstring>

#include "gradient/rule.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  const std::int64_t to = c.node.attr_int("to");
  c.require(is_known_dtype(to), "to: got ", to, ", expected the number of an element type");
  const auto target = static_cast<DType>(to);
  const DType source = c.dtype(0);
  c.require(source != DType::string && target != DType::string, "strings have no bits to reinterpret; use Cast");
  c.require(bit_width(source) == bit_width(target), "from ", name_of(source), " to ", name_of(target), ": got ",
            bit_width(source), " and ", bit_width(target), " bits, expected the same width");
  c.set(0, target, c.shape(0));
}

// Bytes that are neither 0 nor 1 are no bool: anything else than 0 counts as true.
Kernel prepare_to_bool(std::int64_t n) {
  return [n](const KernelArgs& args) {
    const auto* from = args.in<std::uint8_t>(0);
    auto* to = args.out<std::uint8_t>(0);
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] != 0 ? 1 : 0;
  };
}

Kernel prepare(PrepareContext& c) {
  if (c.out(0).dtype == DType::boolean) return prepare_to_bool(c.out(0).size());
  return [bytes = byte_size(c.out(0).dtype, c.out(0).size())](const KernelArgs& args) {
    if (bytes > 0 && args.inputs[0] != args.outputs[0]) std::memcpy(args.outputs[0], args.inputs[0], bytes);
  };
}

/// Only bits that stay what they are have a slope.
void gradient(GradientContext& g) {
  const DType from = g.x()->type.dtype;
  const DType to = g.y()->type.dtype;
  if (from != to) {
    fail<Unsupported>(g.node.label(), " gradient: got bits of ", name_of(from), " taken for ", name_of(to),
                      ", which has no derivative; convert the numbers by Cast, or freeze what comes before it");
  }
  g.set(0, g.dy());
}

const Register bit_cast{{.name = "BitCast",
                         .since = 26,
                         .doc = "Reinterprets the bits of elements as another type of the same width.",
                         .types = types::plain | types::sub_bytes,
                         .infer = infer,
                         .prepare = prepare,
                         .gradient = gradient,
                         .in_place_input = 0}};

}  // namespace
}  // namespace backpass
