// Cast: elements converted to another type.
#include <string>

#include "gradient/rule.hpp"
#include "ops/pointwise/string_cast.hpp"
#include "ops/pointwise/tile_op.hpp"
#include "support/convert.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

bool can_cast(DType dtype) { return dtype == DType::string || Conversion::supports(dtype); }

Float8E8M0::Round round_mode(InferContext& c) {
  const std::string mode = c.node.attr_string("round_mode", "up");
  if (mode == "up") return Float8E8M0::Round::up;
  if (mode == "down") return Float8E8M0::Round::down;
  c.require(mode == "nearest", "round_mode: got \"", mode, "\", expected \"up\", \"down\" or \"nearest\"");
  return Float8E8M0::Round::nearest;
}

// Known contents survive where every number they may be survives.
bool keeps_integers(DType from, DType to) {
  return (to == DType::int64 || to == from) || (to == DType::int32 && is_integer(from));
}

void infer(InferContext& c) {
  const std::int64_t to = c.node.attr_int("to");
  c.require(is_known_dtype(to) && can_cast(static_cast<DType>(to)), "to: got ", to,
            ", expected the number of a numeric or string element type");
  const auto dtype = static_cast<DType>(to);
  c.set_dtype(0, dtype);
  c.require(can_cast(c.dtype(0)), "input of type ", name_of(c.dtype(0)), ": expected a numeric or string type");
  round_mode(c);
  c.set_shape(0, c.shape(0));
  if (!is_integer(c.dtype(0)) || !keeps_integers(c.dtype(0), dtype)) return;
  if (auto values = c.maybe_ints(0)) c.set_ints(0, *values);
}

ConvertOptions options_of(const Node& node) {
  const std::string mode = node.attr_string("round_mode", "up");
  using Round = Float8E8M0::Round;
  return {.saturate = node.attr_int("saturate", 1) != 0,
          .round = mode == "up" ? Round::up : (mode == "down" ? Round::down : Round::nearest)};
}

constexpr std::int64_t kStringGrain = 4096;  // a multiple of 8: packed elements of a chunk end with a byte

Kernel prepare_from_string(PrepareContext& c) {
  const DType to = c.out(0).dtype;
  const std::int64_t n = c.out(0).size();
  return [=, label = c.node.label(), options = options_of(c.node)](const KernelArgs& args) {
    parallel_for(n, kStringGrain, [&](std::int64_t begin, std::int64_t end) {
      strings_to_numbers(label, args.in<std::string>(0) + begin, to, args.out<std::byte>(0) + begin * bit_width(to) / 8,
                         end - begin, options);
    });
  };
}

Kernel prepare_to_string(PrepareContext& c) {
  const DType from = c.in(0).dtype;
  const std::int64_t n = c.out(0).size();
  return [=](const KernelArgs& args) {
    parallel_for(n, kStringGrain, [&](std::int64_t begin, std::int64_t end) {
      numbers_to_strings(from, args.in<std::byte>(0) + begin * bit_width(from) / 8, args.out<std::string>(0) + begin,
                         end - begin);
    });
  };
}

Kernel prepare(PrepareContext& c) {
  const DType from = c.in(0).dtype;
  const DType to = c.out(0).dtype;
  const std::int64_t n = c.out(0).size();
  if (from == DType::string && to == DType::string) {
    return [=](const KernelArgs& args) {
      if (args.inputs[0] != args.outputs[0]) std::copy_n(args.in<std::string>(0), n, args.out<std::string>(0));
    };
  }
  if (from == DType::string) return prepare_from_string(c);
  if (to == DType::string) return prepare_to_string(c);
  return [conversion = Conversion(from, to, options_of(c.node)), n](const KernelArgs& args) {
    conversion.parallel(args.inputs[0], args.outputs[0], n);
  };
}

// Inside a fused program. Rounding to 16 bits is what the model asked for, so it happens even though the value stays in
// a float register. Conversions that need care with range or double rounding are left to the kernel above.
TileRegister emit(TileEmit& e) {
  const auto to = static_cast<DType>(e.node.attr_int("to"));
  const DType compute = tile_compute_type(to);
  if (compute != to && e.builder.type(e.inputs[0]) != compute)
    fail<Unsupported>(e.node.label(), " rounds twice in tiles");
  TileRegister value = e.builder.convert(e.inputs[0], compute);
  return compute == to ? value : e.builder.convert(e.builder.convert(value, to), compute);
}

void gradient(GradientContext& g) { g.set(0, g.cast_like(g.dy(), g.x())); }

constexpr TileOp kTile{.emit = emit};

const Register cast{{.name = "Cast",
                     .since = 28,
                     .doc = "Converts elements to another type; floats are cut off towards zero when cast to integers.",
                     .types = types::numbers | types::boolean | types::strings | types::float8s | types::sub_bytes |
                              DTypeSet{DType::float6e2m3, DType::float6e3m2},
                     .infer = infer,
                     .prepare = prepare,
                     .tile = &kTile,
                     .gradient = gradient,
                     .in_place_input = 0}};

}  // namespace
}  // namespace backpass
