#include "ops/normalization/row_parameter.hpp"

#include <algorithm>

#include "ops/shape_rules.hpp"

namespace backpass {

void check_row_parameter(InferContext& c, std::size_t input) {
  if (!c.has_input(input) || !c.knows_shape(0) || !c.knows_shape(input)) return;
  const Shape& x = c.shape(0);
  const Shape& p = c.shape(input);
  bool fits = p.size() <= x.size();
  for (std::size_t i = 0; fits && i < p.size(); ++i) {
    const Dim& have = p[p.size() - 1 - i];
    const Dim& want = x[x.size() - 1 - i];
    fits = have.is(1) || !have.is_known() || !want.is_known() || have == want;
  }
  c.require(fits, "input ", input, ": got shape ", shown(p), ", expected one that broadcasts to ", shown(x));
}

RowParameter row_parameter(PrepareContext& c, std::size_t input, std::size_t axis) {
  RowParameter p;
  if (!c.has_input(input)) return p;
  p.present = true;
  p.input = input;
  const Dims& x = c.in(0).dims;
  Dims own = c.in(input).dims;
  c.require(own.size() <= x.size() && broadcast_dims(own, x) == x, "input ", input, ": got shape ", shown(own),
            ", expected one that broadcasts to ", shown(x));
  own.insert(own.begin(), x.size() - own.size(), 1);
  auto at = static_cast<std::ptrdiff_t>(axis);
  bool one_row = std::all_of(own.begin(), own.begin() + at, [](std::int64_t d) { return d == 1; }) &&
                 std::equal(own.begin() + at, own.end(), x.begin() + at);
  if (one_row) return p;
  p.stride = product(x, axis, x.size());
  p.spread.emplace(c.in(input).dtype, x, broadcast_strides(own, x), strides_of(x));
  p.scratch = c.reserve(byte_size(c.in(input).dtype, element_count(x)));
  return p;
}

}  // namespace backpass
