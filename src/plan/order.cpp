#include "plan/order.hpp"

#include <algorithm>

#include "graph/effects.hpp"

namespace backpass {
namespace {

class Ordering {
 public:
  Ordering(const Program& program, const NodeSet& forward)
      : program_(program), forward_(forward), producer_(program.values.size(), -1), readers_(program.values.size()) {
    for (std::size_t s = 0; s < program.steps.size(); ++s) {
      for (int v : program.steps[s].outputs) {
        if (v >= 0) producer_[static_cast<std::size_t>(v)] = static_cast<int>(s);
      }
      program.steps[s].for_each_read([&](int v) {
        std::vector<int>& readers = readers_[static_cast<std::size_t>(v)];
        if (readers.empty() || readers.back() != static_cast<int>(s)) readers.push_back(static_cast<int>(s));
      });
    }
    is_output_.assign(program.values.size(), 0);
    for (int v : program.outputs) is_output_[static_cast<std::size_t>(v)] = 1;
  }

  std::vector<const Node*> run() const {
    const auto count = program_.steps.size();
    std::vector<char> is_end(count, 0);
    for (std::size_t s = count; s-- > 0;) is_end[s] = is_only_for_an_output(s, is_end) ? 1 : 0;
    std::vector<std::vector<int>> followers(count);
    std::vector<int> order;
    int last_forward = -1;
    for (std::size_t s = 0; s < count; ++s) {
      if (forward_.count(program_.steps[s].node) != 0) last_forward = static_cast<int>(s);
      if (is_end[s] == 0) continue;
      const int anchor = std::max(last_forward, last_producer(s));
      if (anchor < 0) {
        is_end[s] = 0;
      } else {
        followers[static_cast<std::size_t>(anchor)].push_back(static_cast<int>(s));
      }
    }
    for (std::size_t s = 0; s < count; ++s) {
      if (is_end[s] == 0) append(static_cast<int>(s), followers, order);
    }
    std::vector<const Node*> nodes;
    nodes.reserve(count);
    for (int s : order) nodes.push_back(program_.steps[static_cast<std::size_t>(s)].node);
    return nodes;
  }

 private:
  bool is_backward(int s) const { return forward_.count(program_.steps[static_cast<std::size_t>(s)].node) == 0; }

  /// The step with those that follow from it alone.
  static void append(int first, const std::vector<std::vector<int>>& followers, std::vector<int>& order) {
    std::vector<int> todo{first};
    while (!todo.empty()) {
      const int s = todo.back();
      todo.pop_back();
      order.push_back(s);
      const std::vector<int>& next = followers[static_cast<std::size_t>(s)];
      todo.insert(todo.end(), next.rbegin(), next.rend());
    }
  }

  int last_producer(std::size_t s) const {
    int last = -1;
    program_.steps[s].for_each_read([&](int v) { last = std::max(last, producer_[static_cast<std::size_t>(v)]); });
    return last;
  }

  /// One of several backward values that it reads may come much later than the others.
  bool reads_one_of_backward(int s) const {
    int found = 0;
    program_.steps[static_cast<std::size_t>(s)].for_each_read([&](int v) {
      const int producer = producer_[static_cast<std::size_t>(v)];
      if (producer >= 0 && is_backward(producer)) ++found;
    });
    return found == 1;
  }

  bool is_only_for_an_output(std::size_t s, const std::vector<char>& is_end) const {
    if (!is_backward(static_cast<int>(s)) || has_effect(*program_.steps[s].node)) return false;
    for (int v : program_.steps[s].outputs) {
      if (v < 0) continue;
      const std::vector<int>& readers = readers_[static_cast<std::size_t>(v)];
      if (is_output_[static_cast<std::size_t>(v)] != 0 && readers.empty()) continue;
      const bool is_link =
          readers.size() == 1 && is_end[static_cast<std::size_t>(readers[0])] != 0 && reads_one_of_backward(readers[0]);
      if (!is_link) return false;
    }
    return true;
  }

  const Program& program_;
  const NodeSet& forward_;
  std::vector<int> producer_;
  std::vector<std::vector<int>> readers_;
  std::vector<char> is_output_;
};

}  // namespace

std::vector<const Node*> with_gradients_early(const Program& program, const NodeSet& forward) {
  return Ordering(program, forward).run();
}

}  // namespace backpass
