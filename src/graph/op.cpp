#include "graph/op.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "graph/registry.hpp"

namespace backpass {
namespace {

using Key = std::pair<std::string, std::string>;

/// Built-in operators are there before main; those of users come, go and may be looked up by several threads.
struct Registry {
  std::shared_mutex mutex;
  std::map<Key, OpDef> built_in;
  std::map<Key, const OpDef*> overrides;
  std::vector<std::shared_ptr<const OpDef>> kept;
};

Registry& registry() {
  static auto* all = new Registry;  // outlives the graphs of static objects
  return *all;
}

std::multimap<Key, Adapter>& adapter_registry() {
  static std::multimap<Key, Adapter> adapters;
  return adapters;
}

std::size_t normalized_axis(const Node& node, std::int64_t axis, std::size_t rank) {
  auto r = static_cast<std::int64_t>(rank);
  if (axis < -r || axis >= r) fail(node.label(), " axis: got ", axis, ", expected one in [", -r, ", ", r, ")");
  return static_cast<std::size_t>(axis < 0 ? axis + r : axis);
}

}  // namespace

std::string DTypeSet::str() const {
  std::string text;
  for (int code = 1; code <= static_cast<int>(DType::int2); ++code) {
    auto t = static_cast<DType>(code);
    if (has(t)) text += (text.empty() ? "" : ", ") + std::string(name_of(t));
  }
  return text;
}

Register::Register(const OpDef& def) {
  bool added = registry().built_in.emplace(Key{def.domain, def.name}, def).second;
  ensure(added, "operator ", def.domain, ".", def.name, " is registered twice");
}

void override_op(std::string_view domain, std::string_view name, std::shared_ptr<const OpDef> def) {
  Registry& all = registry();
  std::unique_lock lock(all.mutex);
  if (def == nullptr) {
    all.overrides.erase(Key{domain, name});
    return;
  }
  all.overrides.insert_or_assign(Key{domain, name}, def.get());
  all.kept.push_back(std::move(def));
}

RegisterAdapter::RegisterAdapter(const Adapter& adapter) {
  adapter_registry().emplace(Key{adapter.domain, adapter.op}, adapter);
}

const OpDef* find_built_in(std::string_view domain, std::string_view name) {
  auto it = registry().built_in.find(Key{domain, name});
  return it == registry().built_in.end() ? nullptr : &it->second;
}

const OpDef* find_op(std::string_view domain, std::string_view name) {
  Registry& all = registry();
  {
    std::shared_lock lock(all.mutex);
    auto it = all.overrides.find(Key{domain, name});
    if (it != all.overrides.end()) return it->second;
  }
  return find_built_in(domain, name);
}

std::vector<const OpDef*> all_ops() {
  std::vector<const OpDef*> ops;
  for (const auto& [key, def] : registry().built_in) ops.push_back(&def);
  return ops;
}

std::vector<const Adapter*> adapters_for(std::string_view domain, std::string_view op, std::int64_t opset) {
  std::vector<const Adapter*> found;
  auto [begin, end] = adapter_registry().equal_range(Key{domain, op});
  for (auto it = begin; it != end; ++it) {
    if (opset < it->second.below) found.push_back(&it->second);
  }
  std::sort(found.begin(), found.end(), [](const Adapter* a, const Adapter* b) { return a->below < b->below; });
  return found;
}

const TensorInfo& PrepareContext::in(std::size_t i) const {
  if (!has_input(i)) fail("input ", i, " is missing");
  return inputs[i];
}

const TensorInfo& PrepareContext::out(std::size_t i) const {
  ensure(i < outputs.size(), shown(node), " output ", i, " does not exist");
  return outputs[i];
}

std::size_t PrepareContext::axis(std::int64_t axis, std::size_t rank) const {
  return normalized_axis(node, axis, rank);
}

std::size_t PrepareContext::reserve(std::size_t bytes) {
  std::size_t offset = scratch_bytes;
  scratch_bytes += (bytes + 63) / 64 * 64;
  return offset;
}

const Tensor& ComputeContext::tensor(std::size_t i) const {
  if (i >= inputs.size() || !inputs[i].is_tensor()) fail("input ", i, " is missing or no tensor: expected a tensor");
  return inputs[i].tensor;
}

const std::vector<RuntimeValue>& ComputeContext::sequence(std::size_t i) const {
  if (i >= inputs.size() || inputs[i].kind != RuntimeValue::Kind::sequence) {
    fail("input ", i, " is no sequence: expected a sequence");
  }
  return *inputs[i].items;
}

std::size_t ComputeContext::axis(std::int64_t axis, std::size_t rank) const {
  return normalized_axis(node, axis, rank);
}

std::size_t InferContext::axis(std::int64_t axis, std::size_t rank) const { return normalized_axis(node, axis, rank); }

}  // namespace backpass
