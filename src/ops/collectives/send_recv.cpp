// Send and Recv: tensors from one process to another, with a flag that orders them among other nodes.
//
// What goes over the wire, all under the node's tag: the length of a description, the description (per tensor its
// element type, rank and extents), then the bytes of every tensor that has any.
#include <vector>

#include "ops/collectives/world.hpp"

namespace backpass {
namespace {

constexpr std::size_t kFirstSent = 2;
constexpr std::size_t kFirstReceived = 1;

std::vector<DType> element_types(const Node& node) {
  std::vector<DType> found;
  for (std::int64_t code : node.attr_ints("element_types")) {
    const bool is_type = code > 0 && is_known_dtype(static_cast<int>(code));
    if (!is_type || static_cast<DType>(code) == DType::string) {
      fail(node.label(), " element_types: got ", code, ", expected codes of ONNX element types of fixed size");
    }
    found.push_back(static_cast<DType>(code));
  }
  return found;
}

void infer_signal(InferContext& c) {
  c.require(c.dtype(0) == DType::boolean, "signal: got ", name_of(c.dtype(0)), ", expected bool");
  c.require(c.dtype(1) == DType::int64, "remote: got ", name_of(c.dtype(1)), ", expected int64");
  c.set(0, DType::boolean, {});
}

void infer_send(InferContext& c) {
  infer_signal(c);
  const std::vector<DType> types = element_types(c.node);
  const std::size_t count = c.input_count() - kFirstSent;
  c.require(types.empty() || types.size() == count, "element_types: got ", types.size(), ", expected one for each of ",
            count, " tensors");
  for (std::size_t i = 0; i < types.size(); ++i) {
    const DType dtype = c.dtype(kFirstSent + i);
    c.require(dtype == types[i], "input ", kFirstSent + i, ": got ", name_of(dtype), ", expected ", name_of(types[i]));
  }
}

void infer_receive(InferContext& c) {
  infer_signal(c);
  const std::vector<DType> types = element_types(c.node);
  c.require(types.size() + kFirstReceived == c.node.outputs.size(), "element_types: got ", types.size(),
            ", expected one for each of ", c.node.outputs.size() - kFirstReceived, " tensors");
  for (std::size_t i = 0; i < types.size(); ++i) c.set_dtype(kFirstReceived + i, types[i]);
}

struct Peer {
  std::shared_ptr<Communicator> world;
  int rank;
  int tag;
};

Peer peer_of(const ComputeContext& c) {
  const Tensor& signal = c.tensor(0);
  const std::vector<std::int64_t> remote = c.tensor(1).to_ints();
  c.require(signal.size() == 1 && signal.as<bool>()[0],
            "signal: got false, expected true: it says that what has to "
            "come before this node has run");
  c.require(remote.size() == 1, "remote: got ", remote.size(), " numbers, expected one rank");
  std::shared_ptr<Communicator> world = communicator();
  c.require(world != nullptr, "remote: got rank ", remote[0],
            ", but this process runs alone; start several and set their communicator");
  c.require(remote[0] >= 0 && remote[0] < world->size() && remote[0] != world->rank(), "remote: got rank ", remote[0],
            ", expected another process than ", world->rank(), " of ", world->size());
  const std::int64_t tag = c.node.attr_int("tag", 0);
  return {std::move(world), static_cast<int>(remote[0]), static_cast<int>(tag)};
}

Tensor signal_of() {
  Tensor signal(DType::boolean, {});
  *signal.as<bool>() = true;
  return signal;
}

void compute_send(ComputeContext& c) {
  const Peer peer = peer_of(c);
  std::vector<std::int64_t> description;
  for (std::size_t i = kFirstSent; i < c.inputs.size(); ++i) {
    const Tensor& t = c.tensor(i);
    c.require(t.dtype() != DType::string, "input ", i, ": got strings, expected elements of fixed size");
    description.push_back(static_cast<std::int64_t>(t.dtype()));
    description.push_back(t.rank());
    description.insert(description.end(), t.dims().begin(), t.dims().end());
  }
  const std::int64_t length[] = {static_cast<std::int64_t>(description.size())};
  peer.world->send(Tensor::ints(length), peer.rank, peer.tag);
  peer.world->send(Tensor::ints(description), peer.rank, peer.tag);
  for (std::size_t i = kFirstSent; i < c.inputs.size(); ++i) {
    if (c.tensor(i).bytes() > 0) peer.world->send(collectives::bytes_of(c.tensor(i)), peer.rank, peer.tag);
  }
  c.outputs[0] = signal_of();
}

/// What the other side says will come.
std::vector<Tensor> announced(const Peer& peer, std::size_t most) {
  Tensor length(DType::int64, {1});
  peer.world->receive(length, peer.rank, peer.tag);
  const std::int64_t count = *length.as<std::int64_t>();
  constexpr std::int64_t kMostAxes = 64;
  const std::int64_t limit = static_cast<std::int64_t>(most) * (2 + kMostAxes);
  if (count < 0 || count > limit) fail("got a description of ", count, " numbers, expected at most ", limit);
  Tensor description(DType::int64, {count});
  peer.world->receive(description, peer.rank, peer.tag);
  std::span<const std::int64_t> rest = description.values<std::int64_t>();
  std::vector<Tensor> found;
  while (rest.size() >= 2) {
    const auto rank = static_cast<std::size_t>(rest[1]);
    const bool is_type = rest[0] > 0 && is_known_dtype(static_cast<int>(rest[0]));
    if (!is_type || static_cast<DType>(rest[0]) == DType::string || rank > rest.size() - 2) break;
    const auto dims = rest.subspan(2, rank);
    found.emplace_back(static_cast<DType>(rest[0]), Dims(dims.begin(), dims.end()));
    rest = rest.subspan(2 + rank);
  }
  if (!rest.empty()) fail("got a description that is no list of tensors");
  return found;
}

void compute_receive(ComputeContext& c) {
  const Peer peer = peer_of(c);
  const std::vector<DType> types = element_types(c.node);
  std::vector<Tensor> tensors;
  try {
    tensors = announced(peer, types.size());
  } catch (const InvalidInput& e) {
    c.fail("message from rank ", peer.rank, ": ", e.what(), "; does it run the Send that belongs here?");
  }
  c.require(tensors.size() == types.size(), "message from rank ", peer.rank, ": got ", tensors.size(),
            " tensors, expected ", types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    c.require(tensors[i].dtype() == types[i], "tensor ", i, " from rank ", peer.rank, ": got ",
              name_of(tensors[i].dtype()), ", expected ", name_of(types[i]));
    if (tensors[i].bytes() > 0) peer.world->receive(collectives::bytes_of(tensors[i]), peer.rank, peer.tag);
    c.outputs[kFirstReceived + i] = tensors[i];
  }
  c.outputs[0] = signal_of();
}

const Register send{{.name = "Send",
                     .domain = "com.microsoft",
                     .doc = "Sends tensors to the process `remote`; true when they are on their way.",
                     .inputs = {3, -1},
                     .types = types::boolean,
                     .infer = infer_send,
                     .compute = compute_send,
                     .is_random = true,
                     .has_effect = true}};

const Register receive{{.name = "Recv",
                        .domain = "com.microsoft",
                        .doc = "True, and the tensors that the process `remote` sent; their extents come with them.",
                        .inputs = {2, 2},
                        .outputs = {2, -1},
                        .types = types::boolean,
                        .infer = infer_receive,
                        .compute = compute_receive,
                        .is_random = true,
                        .has_effect = true}};

}  // namespace
}  // namespace backpass
