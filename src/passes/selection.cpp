#include "passes/selection.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "graph/dim_terms.hpp"
#include "ops/indexing/gather.hpp"
#include "passes/axis_map.hpp"

namespace backpass {
namespace {

bool is_same(const Value* a, const Value* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || !a->constant || !b->constant) return false;
  const Tensor& x = *a->constant;
  const Tensor& y = *b->constant;
  return x.dims() == y.dims() && is_integer(x.dtype()) && is_integer(y.dtype()) && x.to_ints() == y.to_ints();
}

/// A node that shows what it reads under another shape, or element type.
bool is_relabelling(const Node* node) {
  for (const char* op : {"Squeeze", "Unsqueeze", "Reshape", "Flatten", "Identity", "Cast", "Transpose"}) {
    if (is_op(node, op)) return true;
  }
  return false;
}

/// Numbers that all count from the front, or all from the end, none of them twice.
bool are_distinct_numbers(std::vector<std::int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const bool is_one_sided = numbers.empty() || (numbers.front() < 0) == (numbers.back() < 0);
  return is_one_sided && std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end();
}

/// Places of a list of `whole` elements, each at most once.
bool are_distinct(const Value* places, const Dim& whole) {
  if (*places->type.shape == Shape{} || *places->type.shape == Shape{1}) return true;
  if (const auto numbers = numbers_in(places)) return are_distinct_numbers(*numbers);
  const Node* node = places->producer;
  while (is_relabelling(node)) node = node->input(0)->producer;
  if (is_op(node, "Slice") && is_op(node->input(0)->producer, "Range")) {
    return *node->input(0)->type.shape == Shape{whole};
  }
  const bool finds = is_op(node, "NonZero") || is_op(node, "LabelledRows", "backpass");
  if (!finds || !node->input(0)->type.shape) return false;
  const Shape& shape = *node->input(0)->type.shape;
  return (shape.size() == 1 || node->op == "LabelledRows") && product(shape) == whole;
}

/// One of every so many: n of n*m, which has to have places if there are n to be found in it.
bool divides(const Dim& count, const Dim& whole) {
  if (count.is_known() || count == whole) return false;
  return unless_it_overflows([&] { return floor_div(whole, count) * count - whole; }) == Dim(0);
}

std::optional<Selection> of_gather(const Node& node) {
  const Shape& data = *node.input(0)->type.shape;
  const Shape& places = *node.input(1)->type.shape;
  if (places.size() > 1) return std::nullopt;
  Selection s;
  s.axis = from_front(node.attr_int("axis", 0), data.size());
  s.keeps_axis = places.size() == 1;
  s.places = node.input(1);
  s.from_front = node.attr_int(kIndicesFromFront, 0) != 0;
  s.whole = data[s.axis];
  s.count = s.keeps_axis ? places[0] : Dim(1);
  // Who selects one place has one to select from, else running fails.
  const bool is_part = node.op == "ShrunkenGather" || are_distinct(s.places, s.whole) || divides(s.count, s.whole);
  s.most = is_part ? min(s.count, s.whole) : s.count;
  return s;
}

bool has_one(const Value* v) { return v->type.shape && v->type.shape->size() == 1 && v->type.shape->front().is(1); }

std::optional<Selection> of_slice(const Node& node) {
  const Shape& data = *node.input(0)->type.shape;
  Selection s;
  s.start = node.input(1);
  s.end = node.input(2);
  s.step = node.input(4);
  if (!has_one(s.start) || !has_one(s.end) || (s.step != nullptr && !has_one(s.step))) return std::nullopt;
  // Every Slice whose bounds are not known as expressions has an extent of its own.
  const bool is_known = (s.start->constant || s.start->ints) && (s.end->constant || s.end->ints) &&
                        (s.step == nullptr || numbers_in(s.step));
  const auto axes = node.input(3) != nullptr ? numbers_in(node.input(3)) : std::vector<std::int64_t>{0};
  if (!is_known || !axes || axes->size() != 1) return std::nullopt;
  s.axis = from_front(axes->front(), data.size());
  s.whole = data[s.axis];
  s.count = node.output(0)->type.shape->at(s.axis);
  s.most = s.count;
  return s;
}

void add_symbols(const Dim& d, std::set<std::string>& names) {
  if (d.is_known()) return;
  for (const auto& [monomial, coefficient] : *d.terms()) {
    for (const AtomRef& atom : monomial) {
      if (atom->kind == Atom::Kind::symbol) names.insert(atom->text);
      for (const Dim& operand : atom->operands) add_symbols(operand, names);
    }
  }
}

std::set<std::string> symbols_of(const Dim& d) {
  std::set<std::string> names;
  add_symbols(d, names);
  return names;
}

/// A list of the one number.
Value* as_list(Builder& b, Value* number) {
  if (number->constant) return b.ints({number->constant->to_ints().front()});
  for (Node* reader : number->readers) {
    const bool lists = is_op(reader, "Unsqueeze") && reader->input(0) == number;
    if (lists && numbers_in(reader->input(1)) == std::vector<std::int64_t>{0}) return reader->output(0);
  }
  return b.op("Unsqueeze", {number, b.ints({0})});
}

/// The list, whichever way it is written: one number is as good as a list of it.
bool same_places(const Value* a, const Value* b) {
  if (is_same(a, b)) return true;
  if (a == nullptr || b == nullptr) return false;
  if (a->constant && b->constant) return a->constant->to_ints() == b->constant->to_ints();
  auto lists = [](const Value* list, const Value* number) {
    return is_op(list->producer, "Unsqueeze") && list->producer->input(0) == number;
  };
  return lists(a, b) || lists(b, a);
}

}  // namespace

bool Selection::is_constant() const {
  auto is = [](const Value* v) { return v == nullptr || v->constant; };
  return is(places) && is(start) && is(end) && is(step);
}

bool Selection::is_no_more(const Dim& a, const Dim& b) const {
  constexpr std::int64_t kHuge = std::int64_t{1} << 30;
  std::map<std::string, Dim> usual;
  for (const Dim* d : {&a, &b}) {
    for (const std::string& name : symbols_of(*d)) usual.emplace(name, Dim::symbol(name) + 1);
  }
  const std::optional<std::string> name = whole.is_compound() ? std::nullopt : whole.symbol_name();
  const Dim limit = name ? count.substituted({{*name, kHuge}}) : Dim(kHuge);
  if (limit.is_known() && limit.value() <= kHuge / 4) usual[*name] = whole + max(limit * 4, 1);
  return surely_at_most(a.substituted(usual), b.substituted(usual));
}

bool Selection::is_saving(const Dim& operations, const Dim& bytes) const {
  return !(operations.is(0) && bytes.is(0)) && is_no_more(operations, 0) && is_no_more(bytes, 0);
}

Value* Selection::found(const Value* x, std::size_t along) const {
  for (const Node* reader : x->readers) {
    if (reader->input(0) != x) continue;
    const std::optional<Selection> other = selection_of(*reader);
    if (other && other->axis == along && other->keeps_axis && selects_the_same(*this, *other)) return reader->output(0);
  }
  return nullptr;
}

Value* Selection::of(Builder& b, Value* x, std::size_t along) const {
  if (Value* there = found(x, along)) return there;
  const auto axis_number = static_cast<std::int64_t>(along);
  if (places != nullptr) {
    AttributeList attributes{{"axis", axis_number}};
    if (from_front) attributes.emplace_back(kIndicesFromFront, std::int64_t{1});
    return b.op("Gather", {x, keeps_axis ? places : as_list(b, places)}, attributes);
  }
  std::vector<Value*> reads{x, start, end, b.ints({axis_number})};
  if (step != nullptr) reads.push_back(step);
  return b.op("Slice", reads);
}

std::optional<Selection> selection_of(const Node& node) {
  const bool gathers = is_op(&node, "Gather") || is_op(&node, "ShrunkenGather", "com.microsoft");
  if (!gathers && !is_op(&node, "Slice")) return std::nullopt;
  for (const Value* v : {static_cast<const Value*>(node.input(0)), static_cast<const Value*>(node.input(1)),
                         static_cast<const Value*>(node.output(0))}) {
    if (v == nullptr || !v->type.is_tensor() || !v->type.shape) return std::nullopt;
  }
  if (node.input(0)->type.shape->empty()) return std::nullopt;
  return gathers ? of_gather(node) : of_slice(node);
}

bool selects_the_same(const Selection& a, const Selection& b) {
  return a.whole == b.whole && same_places(a.places, b.places) && is_same(a.start, b.start) && is_same(a.end, b.end) &&
         is_same(a.step, b.step);
}

}  // namespace backpass
