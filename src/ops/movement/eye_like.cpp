// EyeLike and Trilu: a diagonal of ones, a triangle of a matrix.
#include <algorithm>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kEyeTypes = types::numbers | types::boolean;

void infer_eye(InferContext& c) {
  std::int64_t code = c.node.attr_int("dtype", 0);
  DType dtype = c.dtype(0);
  if (code != 0) {
    c.require(is_known_dtype(code) && kEyeTypes.has(static_cast<DType>(code)), "dtype: got ", code,
              ", expected a numeric element type");
    dtype = static_cast<DType>(code);
  }
  c.set_dtype(0, dtype);
  c.require(c.rank(0) == 2, "input: got rank ", c.rank(0), ", expected a matrix");
  c.set_shape(0, c.shape(0));
}

Kernel prepare_eye(PrepareContext& c) {
  DType dtype = c.out(0).dtype;
  std::int64_t rows = c.out(0).dims[0];
  std::int64_t columns = c.out(0).dims[1];
  std::int64_t k = std::clamp(c.node.attr_int("k", 0), -rows, columns);
  return [=](const KernelArgs& args) {
    visit_numeric(dtype, [&]<class T>() {
      T* out = args.out<T>(0);
      std::fill_n(out, rows * columns, T(0));
      for (std::int64_t i = std::max<std::int64_t>(0, -k); i < rows && i + k < columns; ++i) {
        out[i * columns + i + k] = T(1);
      }
    });
  };
}

void infer_trilu(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  if (c.has_input(1)) {
    c.require(c.dtype(1) == DType::int64, "k: got ", name_of(c.dtype(1)), ", expected int64");
    if (c.knows_shape(1)) {
      Dim count = product(c.shape(1));
      c.require(count.is(1) || !count.is_known(), "k: got ", shown(count), " numbers, expected one");
    }
  }
  c.require(c.rank(0) >= 2, "input: got rank ", c.rank(0), ", expected a matrix or a batch of them");
  c.set_shape(0, c.shape(0));
}

Kernel prepare_trilu(PrepareContext& c) {
  const Dims& dims = c.in(0).dims;
  DType dtype = c.in(0).dtype;
  std::int64_t columns = dims.back();
  std::int64_t rows = dims[dims.size() - 2];
  std::int64_t all_rows = columns == 0 ? 0 : c.in(0).size() / columns;
  bool upper = c.node.attr_int("upper", 1) != 0;
  bool has_k = c.has_input(1);
  return [=](const KernelArgs& args) {
    std::int64_t k = std::clamp(has_k ? *args.in<std::int64_t>(1) : 0, -rows - 1, columns + 1);
    visit_storage(dtype, [&]<class T>() {
      parallel_for(all_rows, grain_for(columns), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const T* from = args.in<T>(0) + r * columns;
          T* to = args.out<T>(0) + r * columns;
          // Columns [0, split) are on one side of the diagonal, [split, columns) on the other.
          std::int64_t split = std::clamp<std::int64_t>(r % rows + k + (upper ? 0 : 1), 0, columns);
          std::int64_t first = upper ? split : 0;
          std::int64_t last = upper ? columns : split;
          if (to != from) std::copy(from + first, from + last, to + first);
          std::fill(to, to + first, T{});
          std::fill(to + last, to + columns, T{});
        }
      });
    });
  };
}

void trilu_gradient(GradientContext& g) {
  std::vector<Value*> inputs = g.node.inputs;
  inputs[0] = g.dy();
  g.set(0, g.op("Trilu", std::move(inputs), attributes_of(g.node)));
}

const Register eye_like{{.name = "EyeLike",
                         .since = 22,
                         .doc = "A matrix of zeros with ones on the k-th diagonal.",
                         .types = kEyeTypes,
                         .infer = infer_eye,
                         .prepare = prepare_eye,
                         .is_flat = true}};

const Register trilu{{.name = "Trilu",
                      .since = 14,
                      .doc = "The upper or lower triangle of matrices, the rest zero.",
                      .inputs = {1, 2},
                      .types = types::movable,
                      .infer = infer_trilu,
                      .prepare = prepare_trilu,
                      .gradient = trilu_gradient,
                      .in_place_input = 0}};

}  // namespace
}  // namespace backpass
