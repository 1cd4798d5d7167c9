#include <algorithm>
#include <cctype>
#include <limits>

#include "graph/op.hpp"

namespace backpass {

InferContext::InferContext(const Node& n, std::vector<const Type*> inputs, std::vector<const Tensor*> constants,
                           std::vector<const std::vector<Dim>*> ints)
    : node(n),
      outputs(n.outputs.size()),
      output_ints(n.outputs.size()),
      inputs_(std::move(inputs)),
      constants_(std::move(constants)),
      ints_(std::move(ints)) {}

const Type& InferContext::type(std::size_t i) const {
  if (!has_input(i)) fail("input ", i, " is missing");
  return *inputs_[i];
}

DType InferContext::dtype(std::size_t i) const {
  const Type& t = type(i);
  if (t.kind == Type::Kind::unknown) throw NotKnownYet{};
  if (t.kind == Type::Kind::optional && t.element->is_tensor()) return t.element->dtype;
  if (!t.is_tensor()) fail("input ", i, ": got ", t.str(), ", expected a tensor");
  return t.dtype;
}

bool InferContext::knows_shape(std::size_t i) const {
  return has_input(i) && inputs_[i]->is_tensor() && inputs_[i]->shape.has_value();
}

const Shape& InferContext::shape(std::size_t i) const {
  dtype(i);
  if (!knows_shape(i)) throw NotKnownYet{};
  return *inputs_[i]->shape;
}

std::optional<std::vector<Dim>> InferContext::maybe_ints(std::size_t i) const {
  constexpr std::int64_t kMaxTracked = 1024;
  if (!has_input(i)) return std::nullopt;
  if (i < ints_.size() && ints_[i] != nullptr) return *ints_[i];
  const Tensor* t = constant(i);
  if (t == nullptr || t->rank() > 1 || t->size() > kMaxTracked) return std::nullopt;
  if (!is_integer(t->dtype()) && t->dtype() != DType::boolean) return std::nullopt;
  std::vector<std::int64_t> values = t->to_ints();
  return std::vector<Dim>(values.begin(), values.end());
}

void InferContext::check_integers(std::size_t i) const {
  const Type& t = type(i);
  if (!t.is_tensor() || t.dtype == DType::undefined || is_integer(t.dtype) || t.dtype == DType::boolean) return;
  fail("input ", i, ": got ", t.str(), ", expected integers");
}

std::vector<Dim> InferContext::ints(std::size_t i) const {
  check_integers(i);
  auto values = maybe_ints(i);
  if (!values) throw NotKnownYet{};
  return *std::move(values);
}

std::vector<std::int64_t> InferContext::known_ints(std::size_t i) const {
  check_integers(i);
  if (const Tensor* t = constant(i); t != nullptr && (is_integer(t->dtype()) || t->dtype() == DType::boolean)) {
    return t->to_ints();
  }
  std::vector<std::int64_t> values;
  for (const Dim& d : ints(i)) {
    if (!d.is_known()) throw NotKnownYet{};
    values.push_back(d.value());
  }
  return values;
}

void InferContext::set_dtype(std::size_t output, DType dtype) {
  if (output >= outputs.size()) return;
  outputs[output].kind = Type::Kind::tensor;
  outputs[output].dtype = dtype;
}

void InferContext::set_shape(std::size_t output, Shape shape) {
  if (output < outputs.size()) outputs[output].shape = std::move(shape);
}

void InferContext::set(std::size_t output, DType dtype, Shape shape) {
  set_dtype(output, dtype);
  set_shape(output, std::move(shape));
}

void InferContext::set_type(std::size_t output, Type type) {
  if (output < outputs.size()) outputs[output] = std::move(type);
}

namespace {

/// Whether an element of this type is surely that number: the arithmetic of narrow types wraps around. Extents are
/// taken to fit into 32 bits.
bool can_hold(DType dtype, const Dim& d) {
  if (dtype == DType::undefined || dtype == DType::int64) return true;
  if (!d.is_known()) return dtype == DType::int32;
  const int bits = dtype == DType::boolean ? 1 : bit_width(dtype);
  const bool is_signed = types::signed_integers.has(dtype);
  const std::int64_t low = is_signed ? -(std::int64_t{1} << (bits - 1)) : 0;
  const std::int64_t high =
      bits == 64 ? std::numeric_limits<std::int64_t>::max() : (std::int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  return d.value() >= low && d.value() <= high;
}

}  // namespace

void InferContext::set_ints(std::size_t output, std::vector<Dim> values) {
  if (output >= output_ints.size()) return;
  const DType dtype = outputs[output].dtype;
  if (std::all_of(values.begin(), values.end(), [&](const Dim& d) { return can_hold(dtype, d); })) {
    output_ints[output] = std::move(values);
  }
}

Dim InferContext::data_dependent(std::string_view hint, const std::optional<Dim>& bound) {
  const Value* v = node.output(0);
  // A rule runs again when more is known, and then may ask for fewer: numbers in the order of asking would come to mean
  // other extents. Rules that ask for several of a kind say which by a number of their own.
  const bool is_numbered = !hint.empty() && std::isdigit(static_cast<unsigned char>(hint.back())) != 0;
  const std::string tag = fresh_ == 0 || is_numbered ? "" : concat("'", fresh_);
  ++fresh_;
  const std::string name = concat(hint, "@", v == nullptr ? node.name : v->name, tag);
  if (bound) most.emplace(name, *bound);
  return Dim::symbol(name);
}

Dim InferContext::unify(const Dim& a, const Dim& b, std::string_view what) {
  if (a == b) return a;
  if (a.is_known() && b.is_known()) fail(what, ": got ", a.str(), " and ", b.str(), ", expected them to be equal");
  for (const auto& [gone, kept] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    auto solution = solved_for_function(*gone, *kept);
    if (!solution) continue;
    equalities.push_back(*std::move(solution));
    return *kept;
  }
  const Dim& kept = a.is_known() ? a : (b.is_known() ? b : a);
  const Dim& gone = a.is_known() ? b : (b.is_known() ? a : b);
  if (auto symbol = gone.symbol_name(); symbol && !kept.mentions(*symbol)) equalities.emplace_back(*symbol, kept);
  return kept;
}

}  // namespace backpass
