// ai.onnx.ml LabelEncoder: each element is looked up in a table from keys to values, any of which may be strings.
#include <bit>
#include <cmath>
#include <string>
#include <unordered_map>

#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kTypes = types::reals | DTypeSet{DType::int16, DType::int32, DType::int64, DType::string};

Tensor strings_tensor(const std::vector<std::string>& values) {
  return Tensor::from<std::string>(DType::string, {static_cast<std::int64_t>(values.size())}, values);
}

/// Attribute `<what>_tensor`, `<what>_strings`, `<what>_int64s` or `<what>_floats`, whichever is there.
Tensor table_column(const Node& node, const std::string& what) {
  if (const Tensor* t = node.attr_tensor(what + "_tensor")) return *t;
  if (node.has_attribute(what + "_strings")) return strings_tensor(node.attr_strings(what + "_strings"));
  if (node.has_attribute(what + "_int64s")) return Tensor::ints(node.attr_ints(what + "_int64s"));
  if (!node.has_attribute(what + "_floats")) fail(node.label(), " attribute ", what, "_* is missing");
  std::vector<float> values = node.attr_floats(what + "_floats");
  return Tensor::from<float>(DType::float32, {static_cast<std::int64_t>(values.size())}, values);
}

/// One element of the values' type, for keys that are not in the table.
Tensor default_value(const Node& node, DType dtype) {
  if (const Tensor* t = node.attr_tensor("default_tensor")) {
    if (t->dtype() != dtype || t->size() != 1) {
      fail(node.label(), " default_tensor: got ", name_of(t->dtype()), to_string(t->dims()), ", expected one ",
           name_of(dtype));
    }
    return *t;
  }
  Tensor t(dtype, {1});
  switch (dtype) {
    case DType::string:
      *t.as<std::string>() = node.attr_string("default_string", "_Unused");
      break;
    case DType::float32:
      *t.as<float>() = node.attr_float("default_float", -0.0F);
      break;
    case DType::float64:
      *t.as<double>() = node.attr_float("default_float", -0.0F);
      break;
    case DType::int16:
      *t.as<std::int16_t>() = static_cast<std::int16_t>(node.attr_int("default_int64", -1));
      break;
    case DType::int32:
      *t.as<std::int32_t>() = static_cast<std::int32_t>(node.attr_int("default_int64", -1));
      break;
    default:
      *t.as<std::int64_t>() = node.attr_int("default_int64", -1);
  }
  return t;
}

void infer(InferContext& c) {
  Tensor keys = table_column(c.node, "keys");
  Tensor values = table_column(c.node, "values");
  c.require(kTypes.has(keys.dtype()) && kTypes.has(values.dtype()), "table: got ", name_of(keys.dtype()), " to ",
            name_of(values.dtype()), ", expected ", shown(kTypes));
  c.require(keys.size() == values.size(), "got ", keys.size(), " keys and ", values.size(),
            " values, expected as many");
  c.require(c.dtype(0) == keys.dtype(), "input: got ", name_of(c.dtype(0)), ", expected the type of the keys, ",
            name_of(keys.dtype()));
  default_value(c.node, values.dtype());
  c.set_dtype(0, values.dtype());
  c.set_shape(0, c.shape(0));
}

/// What equal keys have in common. Zeros are equal whatever their sign, and NaN finds NaN.
template <class T>
auto key_of(const T& value) {
  if constexpr (std::is_floating_point_v<T>) {
    auto v = static_cast<double>(value);
    return std::isnan(v) ? ~std::uint64_t{0} : std::bit_cast<std::uint64_t>(v == 0 ? 0.0 : v);
  } else {
    return value;
  }
}

template <class F>
void visit_entry(DType dtype, F&& f) {
  switch (dtype) {
    case DType::string:
      return f.template operator()<std::string>();
    case DType::float32:
      return f.template operator()<float>();
    case DType::float64:
      return f.template operator()<double>();
    case DType::int16:
      return f.template operator()<std::int16_t>();
    case DType::int32:
      return f.template operator()<std::int32_t>();
    default:
      return f.template operator()<std::int64_t>();
  }
}

template <class K>
using Index = std::unordered_map<decltype(key_of(K())), std::int64_t>;

template <class K, class V>
Tensor look_up(const Index<K>& index, const Tensor& values, const Tensor& otherwise, const Tensor& x) {
  Tensor y(values.dtype(), x.dims());
  V* out = y.as<V>();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    auto found = index.find(key_of(x.as<K>()[i]));
    out[i] = found == index.end() ? *otherwise.as<V>() : values.as<V>()[found->second];
  }
  return y;
}

void compute(ComputeContext& c) {
  const Tensor keys = table_column(c.node, "keys");
  const Tensor values = table_column(c.node, "values");
  const Tensor otherwise = default_value(c.node, values.dtype());
  const Tensor& x = c.tensor(0);
  c.require(x.dtype() == keys.dtype(), "input: got ", name_of(x.dtype()), ", expected ", name_of(keys.dtype()));
  visit_entry(keys.dtype(), [&]<class K>() {
    Index<K> index;
    for (std::int64_t i = 0; i < keys.size(); ++i) index.insert_or_assign(key_of(keys.as<K>()[i]), i);
    visit_entry(values.dtype(), [&]<class V>() { c.outputs[0] = look_up<K, V>(index, values, otherwise, x); });
  });
}

const Register kOp({.name = "LabelEncoder",
                    .domain = "ai.onnx.ml",
                    .since = 4,
                    .doc = "elements replaced by what a table holds for them",
                    .types = kTypes,
                    .infer = infer,
                    .compute = compute});

/// Version 1: a list of strings, mapped to and from positions.
void lift_version_1(Builder&, Node& node) {
  std::vector<std::string> classes = node.attr_strings("classes_strings");
  std::vector<std::int64_t> positions;
  for (std::size_t i = 0; i < classes.size(); ++i) positions.push_back(static_cast<std::int64_t>(i));
  node.attributes.erase("classes_strings");
  bool from_strings = node.input(0) != nullptr && node.input(0)->type.dtype == DType::string;
  node.attributes[from_strings ? "keys_strings" : "values_strings"] = classes;
  node.attributes[from_strings ? "values_int64s" : "keys_int64s"] = positions;
}

const RegisterAdapter kLift({.op = "LabelEncoder", .below = 2, .lift = lift_version_1, .domain = "ai.onnx.ml"});

}  // namespace
}  // namespace backpass
