// Einsum: sums of products over the axes that an equation names.
#include <algorithm>
#include <array>
#include <string>

#include "graph/op.hpp"
#include "ops/flops.hpp"
#include "ops/linear/einsum_kernel.hpp"
#include "ops/linear/einsum_rule.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

struct Term {
  std::string letters;
  std::size_t ellipsis = std::string::npos;  ///< position among the letters, if there is one
};

struct Equation {
  std::vector<Term> inputs;
  Term output;
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

Term parse_term(const std::string& text, const Node& node) {
  Term term;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_letter(text[i])) {
      term.letters += text[i];
    } else if (text.compare(i, 3, "...") == 0 && term.ellipsis == std::string::npos) {
      term.ellipsis = term.letters.size();
      i += 2;
    } else {
      fail(node.label(), " equation: got ", printable(text), ", expected letters and at most one '...' per term");
    }
  }
  return term;
}

/// Without "->": the letters that occur once, in order of their codes, behind the ellipsis.
Term implicit_output(const std::vector<Term>& inputs) {
  std::array<int, 128> count{};
  Term output;
  for (const Term& term : inputs) {
    for (char letter : term.letters) ++count[static_cast<std::size_t>(letter)];
    if (term.ellipsis != std::string::npos) output.ellipsis = 0;
  }
  for (std::size_t letter = 0; letter < count.size(); ++letter) {
    if (count[letter] == 1) output.letters += static_cast<char>(letter);
  }
  return output;
}

void check_output(const Equation& e, const Node& node) {
  for (std::size_t i = 0; i < e.output.letters.size(); ++i) {
    char letter = e.output.letters[i];
    if (e.output.letters.find(letter, i + 1) != std::string::npos) {
      fail(node.label(), " equation: output names '", letter, "' twice");
    }
    bool known = std::any_of(e.inputs.begin(), e.inputs.end(),
                             [&](const Term& t) { return t.letters.find(letter) != std::string::npos; });
    if (!known) fail(node.label(), " equation: output names '", letter, "', which no input has");
  }
}

Equation parse(const Node& node) {
  std::string text = node.attr_string("equation");
  std::erase(text, ' ');
  std::size_t arrow = text.find("->");
  std::string left = text.substr(0, arrow);
  Equation e;
  for (std::size_t begin = 0; begin <= left.size();) {
    std::size_t end = std::min(left.find(',', begin), left.size());
    e.inputs.push_back(parse_term(left.substr(begin, end - begin), node));
    begin = end + 1;
  }
  e.output = arrow == std::string::npos ? implicit_output(e.inputs) : parse_term(text.substr(arrow + 2), node);
  check_output(e, node);
  if (e.inputs.size() != node.inputs.size()) {
    fail(node.label(), " equation '", text, "' has ", e.inputs.size(), " terms for ", node.inputs.size(), " inputs");
  }
  return e;
}

/// Labels of one term; the ellipsis stands for `extra` axes, aligned at the right.
std::vector<int> labels_of(const Term& term, std::size_t extra) {
  std::vector<int> labels(term.letters.begin(), term.letters.end());
  if (term.ellipsis == std::string::npos) return labels;
  std::vector<int> dots;
  for (std::size_t k = extra; k > 0; --k) dots.push_back(kFirstEllipsisLabel + static_cast<int>(k));
  labels.insert(labels.begin() + static_cast<std::ptrdiff_t>(term.ellipsis), dots.begin(), dots.end());
  return labels;
}

EinsumLabels label(const Equation& e, const std::vector<std::size_t>& ranks, const Node& node) {
  EinsumLabels labels;
  std::size_t most = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Term& term = e.inputs[i];
    bool dots = term.ellipsis != std::string::npos;
    if (dots ? ranks[i] < term.letters.size() : ranks[i] != term.letters.size()) {
      fail(node.label(), " input ", i, ": got rank ", ranks[i], " for the term '", term.letters, dots ? "...'" : "'");
    }
    std::size_t extra = ranks[i] - term.letters.size();
    most = std::max(most, extra);
    labels.terms.push_back(labels_of(term, extra));
  }
  labels.output = labels_of(e.output, most);
  return labels;
}

void infer(InferContext& c) {
  DType dtype = c.dtype(0);
  c.set_dtype(0, dtype);
  Equation equation = parse(c.node);
  std::vector<std::size_t> ranks;
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    c.require(c.dtype(i) == dtype, "input ", i, ": got ", name_of(c.dtype(i)), ", expected ", name_of(dtype));
    ranks.push_back(c.rank(i));
  }
  EinsumLabels labels = label(equation, ranks, c.node);
  std::map<int, Dim> extents;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t k = 0; k < ranks[i]; ++k) {
      const Dim& d = c.shape(i)[k];
      auto [at, is_new] = extents.try_emplace(labels.terms[i][k], d);
      if (is_new) continue;
      // Under the ellipsis unlike symbols may broadcast; a letter stands for one extent.
      at->second = labels.terms[i][k] >= kFirstEllipsisLabel || d.is(1) || at->second.is(1)
                       ? rules::broadcast(c, {at->second}, {d})[0]
                       : c.unify(at->second, d, "extents of one label");
    }
  }
  Shape shape;
  for (int l : labels.output) shape.push_back(extents.at(l));
  c.set_shape(0, std::move(shape));
}

Kernel prepare_real(PrepareContext& c, const EinsumLabels& labels, const std::vector<Dims>& dims) {
  DType dtype = c.in(0).dtype;
  EinsumPlan plan(labels, dims, dtype);
  std::size_t scratch = c.reserve(byte_size(dtype, plan.scratch_size()));
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() { plan.run(a.inputs, a.out<T>(0), reinterpret_cast<T*>(a.scratch + scratch)); });
  };
}

/// All integer types are worked out in 64 bits and cut off, which is the same as wrapping around in their own width.
Kernel prepare_integer(PrepareContext& c, const EinsumLabels& labels, const std::vector<Dims>& dims) {
  DType dtype = c.in(0).dtype;
  EinsumPlan plan(labels, dims, DType::uint64);
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  for (const Dims& d : dims) total += sizes.emplace_back(element_count(d));
  std::int64_t outputs = c.out(0).size();
  std::size_t scratch = c.reserve(byte_size(DType::uint64, plan.scratch_size() + total + outputs));
  return [=](const KernelArgs& a) {
    auto* work = reinterpret_cast<std::uint64_t*>(a.scratch + scratch);
    std::uint64_t* wide = work + plan.scratch_size();
    std::uint64_t* result = wide + total;
    visit_integer(dtype, [&]<class T>() {
      std::vector<const void*> inputs;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        inputs.push_back(wide);
        wide =
            std::transform(a.in<T>(i), a.in<T>(i) + sizes[i], wide, [](T v) { return static_cast<std::uint64_t>(v); });
      }
      plan.run(inputs.data(), result, work);
      std::transform(result, result + outputs, a.out<T>(0), [](std::uint64_t v) { return static_cast<T>(v); });
    });
  };
}

Kernel prepare(PrepareContext& c) {
  std::vector<std::size_t> ranks;
  std::vector<Dims> dims;
  for (const TensorInfo& t : c.inputs) {
    ranks.push_back(t.dims.size());
    dims.push_back(t.dims);
  }
  EinsumLabels labels = label(parse(c.node), ranks, c.node);
  std::map<int, std::int64_t> extents;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    for (std::size_t k = 0; k < dims[i].size(); ++k) {
      std::int64_t& e = extents.try_emplace(labels.terms[i][k], 1).first->second;
      c.require(e == 1 || dims[i][k] == 1 || e == dims[i][k], "input ", i, ", axis ", k, ": got extent ", dims[i][k],
                ", expected ", e);
      if (dims[i][k] != 1) e = dims[i][k];
    }
  }
  return is_float(c.in(0).dtype) ? prepare_real(c, labels, dims) : prepare_integer(c, labels, dims);
}

/// As if all sums were taken at once: at least what pairs of operands cost.
Dim count_flops(const Node& node) {
  std::vector<std::size_t> ranks;
  for (const Value* x : node.inputs) ranks.push_back(flops::shape(x).size());
  const EinsumLabels labels = label(parse(node), ranks, node);
  std::map<int, Dim> extents;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t k = 0; k < ranks[i]; ++k) {
      Dim& extent = extents.try_emplace(labels.terms[i][k], 1).first->second;
      if (extent.is(1)) extent = flops::shape(node.inputs[i])[k];
    }
  }
  Dim all(2);
  for (const auto& [name, extent] : extents) all = all * extent;
  return all;
}

void gradient(GradientContext& g) {
  std::vector<std::size_t> ranks;
  for (const Value* x : g.node.inputs) ranks.push_back(static_cast<std::size_t>(g.rank(x)));
  einsum_gradient(g, label(parse(g.node), ranks, g.node));
}

const Register kOp({.name = "Einsum",
                    .since = 28,
                    .doc = "sums of products over axes named by an equation",
                    .inputs = {1, -1},
                    .types = types::numbers,
                    .infer = infer,
                    .prepare = prepare,
                    .gradient = gradient,
                    .half_through_float = true,
                    .flops = count_flops});

}  // namespace
}  // namespace backpass
