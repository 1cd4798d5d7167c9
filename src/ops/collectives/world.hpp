// Who takes part in a collective operator, and tensors as communicators want them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backpass/parallel.hpp"
#include "graph/op.hpp"

namespace backpass::collectives {

/// The processes that attribute group_type of a node names (0 all, 1 data parallel, 2 and 3 those on one machine and
/// across machines, 4 horizontal, 5 model parallel), to be looked up at every run.
class Group {
 public:
  explicit Group(const Node& node);

  /// Null: this process is alone, and every collective an identity. Unsupported where the communicator of the process
  /// knows no such groups.
  std::shared_ptr<Communicator> members() const;

 private:
  std::string label_;
  std::size_t type_;
};

/// All processes, of which a node expects as many as its attribute group_size says.
class World {
 public:
  explicit World(const Node& node);

  std::int64_t size() const { return size_; }
  /// Null: one process is expected. InvalidInput where there are more or fewer.
  std::shared_ptr<Communicator> members() const;

 private:
  std::string label_;
  std::int64_t size_;
};

/// Memory of a kernel as a tensor of one axis.
Tensor tensor_at(DType dtype, std::int64_t count, const void* memory);

/// For what is moved and not added up: networks know bytes of any element type.
Tensor bytes_of(const Tensor& tensor);

/// Every input has an output of its type; all have one element type.
void infer_elementwise(InferContext& c);

/// An operator of com.microsoft that all processes run together.
OpDef collective(std::string_view name, std::string_view doc);

}  // namespace backpass::collectives
