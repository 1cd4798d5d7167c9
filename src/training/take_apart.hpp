// A training graph that came with its gradients, taken apart and put together again.
//
// Passes that work before differentiation save most: what they leave out, gradients need not be computed for. A
// training model has been differentiated already; but where its gradients are nothing but the derivative of its loss,
// they may be thrown away and made anew from the forward part, after those passes have been there. Whether they are
// that is decided by proof where we would have written the same nodes, and by ONNX Runtime's names where it wrote them.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "backpass/report.hpp"
#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

struct ForwardPart {
  std::unique_ptr<Graph> graph;  ///< outputs: the user's, then new values of statistics; null: it has to stay whole
  Report refusal;                ///< why
};

/// `training`: outputs are the user's, the loss first, then gradients of the inputs named `trainable`, then new values
/// of statistics (training/unwrap.hpp). `file`: where it came from.
ForwardPart forward_part(const Graph& training, std::span<const std::string> trainable,
                         const onnx_io::ModelProto& file);

/// The training graph of a forward part whose first `user_outputs` outputs are the user's. The graph becomes it.
void add_training_gradients(Graph& forward, std::size_t user_outputs, std::span<const std::string> trainable);

/// Whether two forward parts compute the same outputs in the same way.
bool computes_alike(const Graph& one, const Graph& other);

}  // namespace backpass
