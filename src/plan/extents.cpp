#include "plan/extents.hpp"

#include <algorithm>
#include <iterator>

#include "graph/infer.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

bool depend_on_data(const Shape& shape) {
  return std::any_of(shape.begin(), shape.end(), [](const Dim& d) { return d.str().find('@') != std::string::npos; });
}

bool follows_from_inputs(const Value& v) {
  return !v.constant && v.producer != nullptr && v.producer->def != nullptr && v.producer->def->prepare != nullptr;
}

}  // namespace

Extents::Found Extents::as_it_is(const Value& v) {
  if (v.constant) return {Type::tensor(v.constant->dtype(), to_shape(v.constant->dims())), v.ints};
  return v.producer == nullptr ? Found{v.type, std::nullopt} : Found{};
}

bool Extents::are_known(const Value* value) {
  std::vector<const Value*> open{value};  // no recursion: graphs may be deep
  while (!open.empty()) {
    const Value* v = open.back();
    const std::size_t before = open.size();
    if (found_.count(v) == 0 && follows_from_inputs(*v)) {
      std::copy_if(v->producer->inputs.begin(), v->producer->inputs.end(), std::back_inserter(open),
                   [&](const Value* read) { return read != nullptr && found_.count(read) == 0; });
      if (open.size() > before) continue;
      run_rule(*v->producer);
    }
    if (found_.count(v) == 0) found_.emplace(v, as_it_is(*v));
    open.pop_back();
  }
  return found_.at(value).type.shape.has_value();
}

void Extents::run_rule(const Node& node) {
  std::vector<const Type*> types;
  std::vector<const Tensor*> constants;
  std::vector<const std::vector<Dim>*> ints;
  for (const Value* v : node.inputs) {
    const Found* read = v == nullptr ? nullptr : &found_.at(v);
    types.push_back(read == nullptr ? nullptr : &read->type);
    constants.push_back(v != nullptr && v->constant ? &*v->constant : nullptr);
    ints.push_back(read != nullptr && read->ints ? &*read->ints : nullptr);
  }
  InferContext c(node, std::move(types), std::move(constants), std::move(ints));
  run_infer_rule(c);
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] == nullptr) continue;
    Found& found = found_[node.outputs[k]];
    found = {std::move(c.outputs[k]), std::move(c.output_ints[k])};
    if (found.type.shape && depend_on_data(*found.type.shape)) found.type.shape.reset();
  }
}

}  // namespace backpass
