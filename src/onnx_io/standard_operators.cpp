#include "onnx_io/standard_operators.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <tuple>

#include "backpass/error.hpp"

namespace backpass::onnx_io {
namespace {

constexpr StandardOperator kTable[] = {
#include "onnx_io/standard_operators.inc"
};

using Problems = std::vector<std::string>;

/// Calls f(word) for what blanks separate.
template <class F>
void for_each_word(std::string_view text, F&& f) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    f(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

struct Formal {
  char option;
  std::uint32_t elements;

  bool takes(DType dtype) const { return elements == 0 || ((elements >> static_cast<unsigned>(dtype)) & 1U) != 0; }
};

std::vector<Formal> formals_of(std::string_view text) {
  std::vector<Formal> result;
  for_each_word(text, [&](std::string_view word) {
    Formal formal{word.front(), 0};
    std::from_chars(word.data() + 1, word.data() + word.size(), formal.elements, 16);
    result.push_back(formal);
  });
  return result;
}

/// The formal parameter that an actual one stands for; null when there are too many.
const Formal* formal_at(const std::vector<Formal>& formals, std::size_t i) {
  if (i < formals.size()) return &formals[i];
  return !formals.empty() && formals.back().option == '*' ? &formals.back() : nullptr;
}

void check_parameters(const std::vector<std::string>& names, std::string_view text, int least, const char* what,
                      Problems& problems) {
  const std::vector<Formal> formals = formals_of(text);
  const bool is_variadic = !formals.empty() && formals.back().option == '*';
  const auto count = std::ssize(names);
  if (count < least || (!is_variadic && count > std::ssize(formals))) {
    std::string expected = is_variadic ? concat(least, " or more") : concat(least, " to ", formals.size());
    if (!is_variadic && least == std::ssize(formals)) expected = std::to_string(least);
    problems.push_back(concat("number of ", what, "s: got ", count, ", expected ", expected));
  }
  for (std::size_t i = 0; i < std::min(names.size(), formals.size()); ++i) {
    if (!names[i].empty() || formals[i].option != '1') continue;
    problems.push_back(concat(what, " ", i, ": got none, expected a value; it may not be omitted"));
  }
}

struct AttributeRule {
  std::string_view name;
  char kind;
  bool is_required;
};

std::vector<AttributeRule> attribute_rules(std::string_view text) {
  std::vector<AttributeRule> rules;
  for_each_word(text, [&](std::string_view word) {
    const std::size_t colon = word.rfind(':');
    rules.push_back({word.substr(0, colon), word[colon + 1], word.back() == '!'});
  });
  return rules;
}

/// By the numbers of AttributeProto::Type.
constexpr std::string_view kKinds = "?fistgFISTGxXpP";
constexpr std::string_view kKindNames[] = {"nothing", "a float",         "an int",         "a string", "a tensor",
                                           "a graph", "floats",          "ints",           "strings",  "tensors",
                                           "graphs",  "a sparse tensor", "sparse tensors", "a type",   "types"};

std::string_view name_of_kind(char kind) { return kKindNames[kKinds.find(kind)]; }

std::string names_of(const std::vector<AttributeRule>& rules) {
  std::string text;
  for (const AttributeRule& rule : rules) text += concat(text.empty() ? "" : ", ", rule.name);
  return text.empty() ? "none" : text;
}

void check_attributes(const NodeProto& node, const StandardOperator& op, Problems& problems) {
  const std::vector<AttributeRule> rules = attribute_rules(op.attributes);
  for (const AttributeProto& a : node.attribute) {
    if (a.name.starts_with("__")) continue;  // of tools, for themselves
    auto rule = std::find_if(rules.begin(), rules.end(), [&](const AttributeRule& r) { return r.name == a.name; });
    if (rule == rules.end()) {
      problems.push_back(
          concat("attribute '", a.name, "': not one of ", op.name, "-", op.since, ", expected ", names_of(rules)));
    } else if (const char kind = kKinds[static_cast<std::size_t>(a.type)]; kind != rule->kind) {
      problems.push_back(
          concat("attribute '", a.name, "': got ", name_of_kind(kind), ", expected ", name_of_kind(rule->kind)));
    }
  }
  for (const AttributeRule& rule : rules) {
    auto is_it = [&](const AttributeProto& a) { return a.name == rule.name; };
    if (!rule.is_required || std::any_of(node.attribute.begin(), node.attribute.end(), is_it)) continue;
    problems.push_back(
        concat("attribute '", rule.name, "': got none, expected ", name_of_kind(rule.kind), "; it may not be omitted"));
  }
}

Problems problems_with(const NodeProto& node, const StandardOperator& op) {
  Problems problems;
  check_parameters(node.input, op.inputs, op.min_inputs, "input", problems);
  check_parameters(node.output, op.outputs, op.min_outputs, "output", problems);
  check_attributes(node, op, problems);
  return problems;
}

bool fit(const std::vector<DType>& types, std::string_view text) {
  const std::vector<Formal> formals = formals_of(text);
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] == DType::undefined) continue;
    const Formal* formal = formal_at(formals, i);
    if (formal == nullptr || !formal->takes(types[i])) return false;
  }
  return true;
}

}  // namespace

std::span<const StandardOperator> standard_versions(std::string_view domain, std::string_view name) {
  struct Before {
    static auto key(const StandardOperator& op) { return std::tie(op.domain, op.name); }
    bool operator()(const StandardOperator& a, const StandardOperator& b) const { return key(a) < key(b); }
  };
  StandardOperator wanted{.domain = domain, .name = name};
  auto [begin, end] = std::equal_range(std::begin(kTable), std::end(kTable), wanted, Before());
  return {begin, end};
}

std::vector<std::string> standard_problems(const NodeProto& node, std::int64_t opset) {
  std::span<const StandardOperator> versions = standard_versions(node.domain, node.op_type);
  if (versions.empty()) return {};
  if (opset < versions.front().since) {
    return {concat("opset of the model: got ", opset, ", expected ", versions.front().since,
                   " or newer, which has the operator; convert with onnx.version_converter")};
  }
  auto next = std::find_if(versions.begin(), versions.end(), [&](const auto& v) { return v.since > opset; });
  const StandardOperator& op = *std::prev(next);
  if (op.is_deprecated && op.since > versions.front().since) {  // else files of its time are right to have it
    return {concat("opset of the model: got ", opset, ", expected less than ", op.since,
                   ", which has withdrawn the operator; convert with onnx.version_converter")};
  }
  return problems_with(node, op);
}

std::int64_t oldest_standard_opset(const NodeProto& node, const std::vector<DType>& inputs,
                                   const std::vector<DType>& outputs, std::int64_t opset) {
  std::span<const StandardOperator> versions = standard_versions(node.domain, node.op_type);
  for (auto v = versions.begin(); v != versions.end(); ++v) {
    if (std::next(v) != versions.end() && std::next(v)->since <= opset) continue;  // no longer in force
    if (v->is_deprecated || !problems_with(node, *v).empty()) continue;
    if (fit(inputs, v->inputs) && fit(outputs, v->outputs)) return std::max(opset, v->since);
  }
  return opset;
}

}  // namespace backpass::onnx_io
