#include "ops/collectives/world.hpp"

namespace backpass::collectives {
namespace {

constexpr std::string_view kGroups[] = {
    "all processes", "data parallel", "data parallel on one machine", "data parallel across machines",
    "horizontal",    "model parallel"};
constexpr std::size_t kDataParallel = 1;

std::size_t group_type(const Node& node) {
  const std::int64_t type = node.attr_int("group_type", 0);
  if (type < 0 || type >= static_cast<std::int64_t>(std::size(kGroups))) {
    fail(node.label(), " group_type: got ", type, ", expected 0 to ", std::size(kGroups) - 1);
  }
  return static_cast<std::size_t>(type);
}

}  // namespace

Group::Group(const Node& node) : label_(node.label()), type_(group_type(node)) {}

std::shared_ptr<Communicator> Group::members() const {
  std::shared_ptr<Communicator> world = communicator();
  if (world == nullptr || world->size() == 1) return nullptr;
  std::shared_ptr<Communicator> group = world->subgroup(static_cast<int>(type_));
  if (group == nullptr && type_ > kDataParallel) {
    fail<Unsupported>(label_, " group_type: got ", type_, " (", kGroups[type_], "), expected 0 or 1 among ",
                      world->size(), " processes that form one group; give the communicator a function subgroup(kind)");
  }
  if (group == nullptr) return world;
  return group->size() == 1 ? nullptr : group;
}

World::World(const Node& node) : label_(node.label()), size_(node.attr_int("group_size", 1)) {
  if (size_ < 1) fail(label_, " group_size: got ", size_, ", expected at least 1");
}

std::shared_ptr<Communicator> World::members() const {
  std::shared_ptr<Communicator> world = communicator();
  const std::int64_t size = world == nullptr ? 1 : world->size();
  if (size != size_) {
    fail(label_, " group_size: got ", size_, ", but ", size, " process", size == 1 ? " runs" : "es run",
         " the model; start ", size_, " and set their communicator");
  }
  return size == 1 ? nullptr : world;
}

Tensor tensor_at(DType dtype, std::int64_t count, const void* memory) { return {dtype, {count}, memory, nullptr}; }

Tensor bytes_of(const Tensor& tensor) {
  return {DType::uint8, {static_cast<std::int64_t>(tensor.bytes())}, tensor.data(), tensor.owner()};
}

void infer_elementwise(InferContext& c) {
  group_type(c.node);
  c.require(c.node.outputs.size() <= c.input_count(), "got ", c.node.outputs.size(), " outputs for ", c.input_count(),
            " inputs, expected one for each");
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    c.require(c.dtype(i) == c.dtype(0), "input ", i, ": got ", name_of(c.dtype(i)), ", expected ", name_of(c.dtype(0)),
              " like input 0");
    if (i < c.node.outputs.size()) c.set_type(i, c.type(i));
  }
}

OpDef collective(std::string_view name, std::string_view doc) {
  return {.name = name,
          .domain = "com.microsoft",
          .doc = doc,
          .inputs = {1, -1},
          .outputs = {1, -1},
          .types = types::floats,
          .infer = infer_elementwise,
          .is_random = true,
          .has_effect = true};
}

}  // namespace backpass::collectives
