// NonZero and Compress: how many elements come out depends on the data.
#include <algorithm>
#include <complex>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

template <class T>
bool is_set(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return !value.empty();
  } else if constexpr (std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>) {
    return value != T(0);
  } else {
    return static_cast<float>(value) != 0.0F || static_cast<double>(value) != 0.0;
  }
}

template <class F>
void visit_any(DType dtype, const F& f) {
  switch (dtype) {
    case DType::string:
      return f.template operator()<std::string>();
    case DType::complex64:
      return f.template operator()<std::complex<float>>();
    case DType::complex128:
      return f.template operator()<std::complex<double>>();
    default:
      visit_numeric(dtype, f);
  }
}

std::vector<std::int64_t> set_positions(const Tensor& t) {
  std::vector<std::int64_t> positions;
  visit_any(t.dtype(), [&]<class T>() {
    const T* data = t.as<T>();
    for (std::int64_t i = 0; i < t.size(); ++i) {
      if (is_set(data[i])) positions.push_back(i);
    }
  });
  return positions;
}

void infer_non_zero(InferContext& c) {
  c.set_dtype(0, DType::int64);
  // numpy treats a scalar as a vector of one.
  auto rank = static_cast<std::int64_t>(std::max<std::size_t>(c.rank(0), 1));
  c.set_shape(0, {rank, c.data_dependent("nonzero", product(c.shape(0)))});
}

void compute_non_zero(ComputeContext& c) {
  const Tensor& in = c.tensor(0);
  std::vector<std::int64_t> positions = set_positions(in);
  auto count = static_cast<std::int64_t>(positions.size());
  Dims dims = in.rank() == 0 ? Dims{1} : in.dims();
  Tensor out(DType::int64, {static_cast<std::int64_t>(dims.size()), count});
  auto* to = out.as<std::int64_t>();
  for (std::size_t axis = dims.size(); axis-- > 0;) {
    std::int64_t* row = to + static_cast<std::int64_t>(axis) * count;
    for (std::int64_t j = 0; j < count; ++j) {
      std::int64_t& rest = positions[static_cast<std::size_t>(j)];
      row[j] = rest % dims[axis];
      rest /= dims[axis];
    }
  }
  c.outputs[0] = std::move(out);
}

void infer_compress(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == DType::boolean, "condition: got ", name_of(c.dtype(1)), ", expected bool");
  if (c.knows_shape(1)) c.require(c.rank(1) == 1, "condition: got rank ", c.rank(1), ", expected 1");
  Shape out = c.shape(0);
  if (!c.node.has_attribute("axis")) return c.set_shape(0, {c.data_dependent("compress", product(out))});
  Dim& extent = out[c.axis(c.node.attr_int("axis"), out.size())];
  extent = c.data_dependent("compress", extent);
  c.set_shape(0, std::move(out));
}

void compute_compress(ComputeContext& c) {
  Tensor in = c.tensor(0);
  const Tensor& condition = c.tensor(1);
  c.require(condition.rank() == 1, "condition: got rank ", condition.rank(), ", expected 1");
  if (!c.node.has_attribute("axis")) in = in.reshaped({in.size()});
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), in.dims().size());
  std::vector<std::int64_t> chosen = set_positions(condition);
  std::int64_t extent = in.dims()[axis];
  c.require(chosen.empty() || chosen.back() < extent, "condition: selects position ",
            chosen.empty() ? 0 : chosen.back(), ", expected one below ", extent);
  Dims dims = in.dims();
  dims[axis] = static_cast<std::int64_t>(chosen.size());
  Tensor out(in.dtype(), dims);
  std::int64_t outer = product(dims, 0, axis);
  std::int64_t inner = product(dims, axis + 1, dims.size());
  visit_storage(in.dtype(), [&]<class T>() {
    T* to = out.as<T>();
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t i : chosen) to = std::copy_n(in.as<T>() + (o * extent + i) * inner, inner, to);
    }
  });
  c.outputs[0] = std::move(out);
}

void compress_gradient(GradientContext& g) {
  Value* positions = g.op("Compress", {positions_of(g, g.x()), g.x(1)}, attributes_of(g.node));
  g.set(0, add_at(g, positions, g.dy(), g.x()));
}

const Register non_zero{{.name = "NonZero",
                         .since = 13,
                         .doc = "Indices of the elements that are not zero, one column each.",
                         .types = types::numbers | types::boolean | types::strings | types::complexes,
                         .infer = infer_non_zero,
                         .compute = compute_non_zero}};

const Register compress{{.name = "Compress",
                         .since = 28,
                         .doc = "Slices along `axis` (elements without it) where the condition holds.",
                         .inputs = {2, 2},
                         .types = types::movable,
                         .infer = infer_compress,
                         .compute = compute_compress,
                         .gradient = compress_gradient}};

}  // namespace
}  // namespace backpass
