// The end of a network that names one of many classes: a product with the weights of the classes, perhaps a bias, and a
// loss that compares the scores with labels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

struct Head {
  Node* loss = nullptr;  ///< whose result is the loss
  Value* labels = nullptr;
  Value* class_weights = nullptr;  ///< may be null
  std::string reduction;
  float smoothing = 0;
  std::optional<std::int64_t> ignore_index;
  std::optional<float> mean_of_none;  ///< where no label counts; absent: not a number

  Node* product = nullptr;
  Value* x = nullptr;  ///< [..., features]
  Value* weight = nullptr;
  bool classes_first = false;  ///< weight is [classes, features], else [features, classes]
  Value* bias = nullptr;       ///< may be null; one element per class, and axes of extent 1 before them
  std::int64_t classes = 0;
  DType product_type = DType::undefined;  ///< of x, and what weights are rounded to when they have another

  /// The scores on their way from the product, or the sum with the bias, to the loss; each but the first is made from
  /// the one before by a node that chooses, arranges or scales rows, or by none that matters to x.
  struct Place {
    Value* scores;
    Node* made_by;  ///< null: as before
  };
  std::vector<Place> way;

  /// As the loss reads them.
  Value* scores() const { return way.back().scores; }
};

/// What is known of a node that may be the loss of a head.
struct HeadMatch {
  std::optional<Head> head;
  std::string why_not;  ///< empty where the node is no loss at all, or one of few classes
  std::int64_t classes = 0;
};

/// The head whose loss this node is, when all its results between product and loss have no other reader (but gradients,
/// which read the log probabilities: `Head` does not say whether there are any).
HeadMatch match_head(const Graph& graph, Node& loss);

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

/// PyTorch's cross entropy with label smoothing, as exporters write it in ONNX:
///
///   rows = (1 - s) NegativeLogLikelihoodLoss(log, labels, w) + s / C Where(ignored, 0, -ReduceSum(log w))
///
/// and the sum of those, or their mean, divided by the weight of all labels that count.
struct SmoothedLoss {
  Node* result = nullptr;
  std::string reduction;
  float smoothing = 0;
};

/// Around a NegativeLogLikelihoodLoss of log probabilities that it reads together with that part for all classes.
std::optional<SmoothedLoss> match_smoothing(const Graph& graph, const Node& label_loss, std::int64_t classes);

}  // namespace backpass
