// TfIdfVectorizer: counts known n-grams of words or numbers, optionally weighted.
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

enum class Weighting : std::uint8_t { tf, idf, tfidf };

struct Options {
  Weighting weighting = Weighting::tf;
  std::int64_t least = 1, most = 1, skips = 0;
  std::vector<std::int64_t> counts, indexes;
  std::vector<float> weights;
  std::int64_t columns = 0;
};

Options options_of(const Node& node) {
  Options o;
  const std::string mode = node.attr_string("mode");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
    fail(node.label(), " attribute 'mode': got ", printable(mode), ", expected TF, IDF or TFIDF");
  o.weighting = mode == "TF" ? Weighting::tf : mode == "IDF" ? Weighting::idf : Weighting::tfidf;
  o.least = node.attr_int("min_gram_length"), o.most = node.attr_int("max_gram_length");
  o.skips = node.attr_int("max_skip_count");
  if (o.least < 1 || o.most < o.least)
    fail(node.label(), " gram lengths: got ", o.least, " to ", o.most, ", expected positive numbers in order");
  if (o.skips < 0) fail(node.label(), " attribute 'max_skip_count': got ", o.skips, ", expected 0 or more");
  o.counts = node.attr_ints("ngram_counts"), o.indexes = node.attr_ints("ngram_indexes");
  o.weights = node.attr_floats("weights");
  constexpr std::int64_t kMaxColumns = std::int64_t{1} << 31;
  for (std::int64_t index : o.indexes) {
    if (index < 0 || index >= kMaxColumns)
      fail(node.label(), " attribute 'ngram_indexes': got ", index, ", expected 0 to ", kMaxColumns - 1);
    o.columns = std::max(o.columns, index + 1);
  }
  if (o.indexes.empty()) fail(node.label(), " attribute 'ngram_indexes': got none, expected at least one");
  if (!o.weights.empty() && static_cast<std::int64_t>(o.weights.size()) < o.columns)
    fail(node.label(), " attribute 'weights': got ", o.weights.size(), " values, expected ", o.columns);
  return o;
}

/// Known n-grams as a tree: one step per word.
template <class Word>
struct Tree {
  std::unordered_map<Word, std::unique_ptr<Tree>> next;
  std::int64_t column = -1;  ///< of the n-gram that ends here; -1: none
};

// The pool lists all 1-grams, then all 2-grams, ...; counts[n - 1] is where n-grams begin.
template <class Word>
std::unique_ptr<Tree<Word>> make_tree(const Node& node, const Options& o, const std::vector<Word>& pool) {
  auto root = std::make_unique<Tree<Word>>();
  const auto size = static_cast<std::int64_t>(pool.size());
  std::size_t gram = 0;
  for (std::size_t n = 1; n <= o.counts.size(); ++n) {
    const std::int64_t begin = o.counts[n - 1];
    const std::int64_t end = n < o.counts.size() ? o.counts[n] : size;
    if (begin < 0 || end < begin || end > size)
      fail(node.label(), " attribute 'ngram_counts': got ", to_string(o.counts), ", expected growing positions up to ",
           size);
    const auto length = static_cast<std::int64_t>(n);
    for (std::int64_t at = begin; at + length <= end; at += length, ++gram) {
      if (gram >= o.indexes.size())
        fail(node.label(), " attribute 'ngram_indexes': got ", o.indexes.size(),
             ", expected one per n-gram of the pool");
      if (length < o.least || length > o.most) continue;
      Tree<Word>* tree = root.get();
      for (std::int64_t i = at; i < at + length; ++i) {
        std::unique_ptr<Tree<Word>>& child = tree->next[pool[static_cast<std::size_t>(i)]];
        if (child == nullptr) child = std::make_unique<Tree<Word>>();
        tree = child.get();
      }
      tree->column = o.indexes[gram];
    }
  }
  return root;
}

// Adds the n-grams that begin at `start` and take every `step`-th word.
template <class Word, class Element>
void count_from(const Tree<Word>& root, const Options& o, const Element* row, std::int64_t length, std::int64_t start,
                std::int64_t step, std::int64_t least, float* counts) {
  const Tree<Word>* tree = &root;
  std::int64_t at = start;
  for (std::int64_t n = 1; n <= o.most && at < length; ++n, at += step) {
    auto found = tree->next.find(static_cast<Word>(row[at]));
    if (found == tree->next.end()) return;
    tree = found->second.get();
    if (n >= least && tree->column >= 0) counts[tree->column] += 1;
  }
}

template <class Word, class Element>
void count_row(const Tree<Word>& root, const Options& o, const Element* row, std::int64_t length, float* counts) {
  std::int64_t least = o.least;
  for (std::int64_t step = 1; step <= std::min(o.skips, length) + 1; ++step) {
    for (std::int64_t start = 0; start + step * (least - 1) < length; ++start)
      count_from(root, o, row, length, start, step, least, counts);
    // Single words are the same at any distance: they count once.
    if (least == 1 && ++least > o.most) return;
  }
}

void weigh(const Options& o, float* counts) {
  for (std::int64_t i = 0; i < o.columns; ++i) {
    if (o.weighting == Weighting::idf) counts[i] = counts[i] > 0 ? 1.0F : 0.0F;
    if (o.weighting != Weighting::tf && !o.weights.empty()) counts[i] *= o.weights[static_cast<std::size_t>(i)];
  }
}

template <class Word, class Element>
void run(const Tree<Word>& tree, const Options& o, const Tensor& x, Tensor& y) {
  const std::int64_t rows = y.size() / o.columns;
  const std::int64_t length = rows == 0 ? 0 : x.size() / rows;
  std::fill_n(y.as<float>(), y.size(), 0.0F);
  for (std::int64_t row = 0; row < rows; ++row) {
    float* counts = y.as<float>() + row * o.columns;
    count_row<Word, Element>(tree, o, x.as<Element>() + row * length, length, counts);
    weigh(o, counts);
  }
}

void infer(InferContext& c) {
  c.set_dtype(0, DType::float32);
  const Options o = options_of(c.node);
  const bool strings = c.node.has_attribute("pool_strings") && !c.node.attr_strings("pool_strings").empty();
  c.require(strings == (c.dtype(0) == DType::string), "element type of X: got ", name_of(c.dtype(0)),
            ", expected the type of the given pool, ", strings ? "string" : "int32 or int64");
  const Shape& x = c.shape(0);
  c.require(x.size() <= 2, "rank of X: got ", x.size(), ", expected 1 or 2");
  c.set_shape(0, x.size() == 2 ? Shape{x[0], o.columns} : Shape{o.columns});
}

void compute(ComputeContext& c) {
  const Tensor& x = c.tensor(0);
  const Options o = options_of(c.node);
  Tensor y(DType::float32, x.rank() == 2 ? Dims{x.dims()[0], o.columns} : Dims{o.columns});
  if (x.dtype() == DType::string) {
    const auto tree = make_tree<std::string>(c.node, o, c.node.attr_strings("pool_strings"));
    run<std::string, std::string>(*tree, o, x, y);
  } else {
    const auto tree = make_tree<std::int64_t>(c.node, o, c.node.attr_ints("pool_int64s"));
    if (x.dtype() == DType::int64) run<std::int64_t, std::int64_t>(*tree, o, x, y);
    if (x.dtype() == DType::int32) run<std::int64_t, std::int32_t>(*tree, o, x, y);
  }
  c.outputs[0] = std::move(y);
}

const Register tfidf_vectorizer{{.name = "TfIdfVectorizer",
                                 .since = 9,
                                 .doc = "Counts known n-grams of words or numbers, optionally weighted.",
                                 .inputs = {1, 1},
                                 .types = types::strings | types::indices,
                                 .infer = infer,
                                 .compute = compute}};

}  // namespace
}  // namespace backpass
