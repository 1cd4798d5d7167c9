// The end of a network that names one of many classes: a product with the weights of the classes, perhaps a bias, and a
// loss that compares the scores with labels.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

struct Head {
  Node* loss = nullptr;
  Node* product = nullptr;
  Value* x = nullptr;  ///< [..., features]
  Value* weight = nullptr;
  bool classes_first = false;  ///< weight is [classes, features], else [features, classes]
  Value* bias = nullptr;       ///< may be null
  std::int64_t classes = 0;
  Value* scores = nullptr;  ///< as the loss reads them
  std::optional<std::int64_t> ignore_index;
  std::vector<Node*> way;  ///< Reshape and Slice nodes between product and loss that choose and arrange rows, in order
};

/// The head whose loss this node is, when all its results between product and loss have no other reader (but
/// gradients, which read the log probabilities: `Head` does not say whether there are any).
std::optional<Head> match_head(const Graph& graph, Node& loss);

/// What a differentiated graph makes of the gradient of a head's loss; null for what nobody asked for.
struct HeadGradient {
  Node* node = nullptr;   ///< the gradient of the scores
  Value* flow = nullptr;  ///< what flows back to the loss
  Value* dx = nullptr;    ///< [rows, features]
  Value* dweight = nullptr;
  bool classes_first = false;  ///< dweight is [classes, features], whatever the weight is
  Value* dbias = nullptr;
};

/// The gradient of the head, when nothing else is made of the gradient of its scores.
std::optional<HeadGradient> match_head_gradient(const Graph& graph, const Head& head);

}  // namespace backpass
