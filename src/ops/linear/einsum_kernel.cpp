#include "ops/linear/einsum_kernel.hpp"

#include <algorithm>
#include <type_traits>

#include "support/parallel.hpp"

namespace backpass {
namespace {

bool has(const std::vector<int>& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

Dims row_major(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

/// `labels` in the order in which `like` has them; the rest behind.
std::vector<int> ordered_like(std::vector<int> labels, const std::vector<int>& like) {
  auto rank = [&](int label) { return std::find(like.begin(), like.end(), label) - like.begin(); };
  std::stable_sort(labels.begin(), labels.end(), [&](int x, int y) { return rank(x) < rank(y); });
  return labels;
}

std::vector<int> joined(std::initializer_list<std::vector<int>> groups) {
  std::vector<int> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace

EinsumPlan::EinsumPlan(const EinsumLabels& labels, std::span<const Dims> operands, DType dtype) : dtype_(dtype) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (std::size_t k = 0; k < operands[i].size(); ++k) {
      std::int64_t& e = extents_.try_emplace(labels.terms[i][k], 1).first->second;
      if (operands[i][k] != 1) e = operands[i][k];
    }
  }
  for (auto [label, e] : extents_) is_zero_ |= e == 0;
  for (int label : labels.output) {
    output_size_ *= extent(label);
    if (extent(label) != 1) output_.push_back(label);
  }
  if (is_zero_) return;
  std::vector<View> views;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    views.push_back(operand(labels.terms[i], operands[i], static_cast<int>(i)));
  }
  auto needed_after = [&](std::size_t i) {
    std::vector<int> keep = output_;
    for (std::size_t k = i; k < views.size(); ++k) keep = joined({keep, views[k].labels});
    return keep;
  };
  View result = sum_out(views[0], needed_after(1));
  for (std::size_t i = 1; i < views.size(); ++i) {
    std::vector<int> keep = needed_after(i + 1);
    View next = sum_out(views[i], joined({keep, result.labels}));
    result = sum_out(result, joined({keep, next.labels}));
    result = join(result, next, keep, i + 1 == views.size());
  }
  finish(result);
}

std::int64_t EinsumPlan::stride(const View& v, int label) const {
  auto at = std::find(v.labels.begin(), v.labels.end(), label);
  return at == v.labels.end() ? 0 : v.strides[static_cast<std::size_t>(at - v.labels.begin())];
}

Dims EinsumPlan::strides_in(const View& v, const std::vector<int>& labels) const {
  Dims strides;
  for (int label : labels) strides.push_back(stride(v, label));
  return strides;
}

Dims EinsumPlan::dims_of(const std::vector<int>& labels) const {
  Dims dims;
  for (int label : labels) dims.push_back(extent(label));
  return dims;
}

EinsumPlan::Merged EinsumPlan::merge(const View& v, const std::vector<int>& labels) const {
  if (labels.empty()) return {true, 1, 1};
  Merged m{true, extent(labels.back()), stride(v, labels.back())};
  for (std::size_t i = labels.size() - 1; i-- > 0;) {
    m.possible &= stride(v, labels[i]) == m.stride * m.extent;
    m.extent *= extent(labels[i]);
  }
  return m;
}

EinsumPlan::View EinsumPlan::fresh(const std::vector<int>& labels) {
  constexpr std::int64_t kAlignment = 16;  // elements
  Dims dims = dims_of(labels);
  View v{kScratch, scratch_, labels, row_major(dims)};
  scratch_ += (element_count(dims) + kAlignment - 1) / kAlignment * kAlignment;
  return v;
}

/// A repeated label walks the diagonal; an axis of extent 1 says nothing about its label.
EinsumPlan::View EinsumPlan::operand(const std::vector<int>& term, const Dims& dims, int input) const {
  View v{input, 0, {}, {}};
  Dims strides = row_major(dims);
  for (std::size_t k = 0; k < dims.size(); ++k) {
    if (dims[k] == 1) continue;
    auto at = std::find(v.labels.begin(), v.labels.end(), term[k]);
    if (at == v.labels.end()) {
      v.labels.push_back(term[k]);
      v.strides.push_back(strides[k]);
    } else {
      v.strides[static_cast<std::size_t>(at - v.labels.begin())] += strides[k];
    }
  }
  return v;
}

EinsumPlan::View EinsumPlan::arranged(const View& v, const std::vector<int>& labels) {
  View to = fresh(labels);
  Step& step = add_step(Kind::copy, v, {}, to.offset);
  step.copy = kernels::StridedCopy(dtype_, dims_of(labels), strides_in(v, labels), to.strides);
  return to;
}

EinsumPlan::View EinsumPlan::sum_out(const View& v, const std::vector<int>& keep) {
  std::vector<int> kept;
  std::vector<bool> gone;
  for (int label : v.labels) {
    gone.push_back(!has(keep, label));
    if (!gone.back()) kept.push_back(label);
  }
  if (kept.size() == v.labels.size()) return v;
  View from = v;
  if (v.strides != row_major(dims_of(v.labels))) from = arranged(v, v.labels);
  View to = fresh(kept);
  Step& step = add_step(Kind::sum, from, {}, to.offset);
  step.reduction = plan_reduction(dims_of(v.labels), gone, Fold::sum, Finish::none);
  step.partial = scratch_;
  scratch_ += static_cast<std::int64_t>(step.reduction.scratch_bytes()) * 8 / bit_width(dtype_);
  return to;
}

EinsumPlan::View EinsumPlan::join(View a, View b, const std::vector<int>& keep, bool last) {
  // The columns of a matrix product lie together in the result: they should be those that the output has last.
  if (last && !output_.empty() && has(a.labels, output_.back()) && !has(b.labels, output_.back())) std::swap(a, b);
  std::vector<int> batch, summed, rows, columns;
  for (int label : a.labels) {
    (has(b.labels, label) ? (has(keep, label) ? batch : summed) : rows).push_back(label);
  }
  for (int label : b.labels) {
    if (!has(a.labels, label)) columns.push_back(label);
  }
  if (last) {
    for (auto* group : {&batch, &rows, &columns}) *group = ordered_like(*group, output_);
  }
  if (!summed.empty()) return matrix_product(a, b, batch, summed, rows, columns, last);
  return multiply(a, b, last ? output_ : joined({batch, rows, columns}));
}

EinsumPlan::View EinsumPlan::multiply(const View& a, const View& b, const std::vector<int>& labels) {
  View to = fresh(labels);
  Step& step = add_step(Kind::multiply, a, b, to.offset);
  step.extents = dims_of(labels);
  step.a_strides = strides_in(a, labels);
  step.b_strides = strides_in(b, labels);
  return to;
}

EinsumPlan::View EinsumPlan::matrix_product(View a, View b, const std::vector<int>& batch,
                                            const std::vector<int>& summed, const std::vector<int>& rows,
                                            const std::vector<int>& columns, bool last) {
  // A matrix can be used where it lies if each index is one stride and one of the two strides is 1.
  auto fits = [&](const View& v, const std::vector<int>& outer, const std::vector<int>& inner, bool& transposed,
                  std::int64_t& ld) {
    Merged o = merge(v, outer);
    Merged i = merge(v, inner);
    transposed = i.stride != 1 && i.extent != 1;
    const Merged& far = transposed ? i : o;
    const Merged& near = transposed ? o : i;
    ld = far.extent == 1 ? near.extent : far.stride;
    return o.possible && i.possible && (near.stride == 1 || near.extent == 1) && ld >= near.extent;
  };
  GemmBatch g;
  if (!fits(a, rows, summed, g.trans_a, g.lda)) {
    a = arranged(a, joined({batch, rows, summed}));
    fits(a, rows, summed, g.trans_a, g.lda);
  }
  if (!fits(b, summed, columns, g.trans_b, g.ldb)) {
    b = arranged(b, joined({batch, summed, columns}));
    fits(b, summed, columns, g.trans_b, g.ldb);
  }
  // The result goes straight to the output's layout when that is a legal one for a matrix product.
  View to = fresh(last ? output_ : joined({batch, rows, columns}));
  bool transposed = false;
  if (!fits(to, rows, columns, transposed, g.ldc) || transposed) {
    to = fresh(joined({batch, rows, columns}));
    fits(to, rows, columns, transposed, g.ldc);
  }
  g.m = merge(to, rows).extent;
  g.n = merge(to, columns).extent;
  g.k = merge(a, summed).extent;
  g.batch = dims_of(batch);
  g.stride_a = strides_in(a, batch);
  g.stride_b = strides_in(b, batch);
  g.stride_c = strides_in(to, batch);
  add_step(Kind::product, a, b, to.offset).gemm = std::move(g);
  return to;
}

void EinsumPlan::finish(const View& v) {
  bool in_order = v.labels == output_ && v.input == kScratch;
  if (in_order && !steps_.empty() && steps_.back().to == v.offset) {
    steps_.back().to = kOutput;
    return;
  }
  add_step(Kind::copy, v, {}, kOutput).copy =
      kernels::StridedCopy(dtype_, dims_of(output_), strides_in(v, output_), row_major(dims_of(output_)));
}

EinsumPlan::Step& EinsumPlan::add_step(Kind kind, const View& a, const View& b, std::int64_t to) {
  Step& step = steps_.emplace_back();
  step.kind = kind;
  step.a = a;
  step.b = b;
  step.to = to;
  return step;
}

template <class T>
void EinsumPlan::run_multiply(const Step& step, const T* a, const T* b, T* to) const {
  if (step.extents.empty()) {
    *to = *a * *b;
    return;
  }
  std::int64_t n = step.extents.back();
  std::int64_t sa = step.a_strides.back();
  std::int64_t sb = step.b_strides.back();
  parallel_for(element_count(step.extents) / n, grain_for(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* x = a;
      const T* y = b;
      std::int64_t rest = row;
      for (std::size_t k = step.extents.size() - 1; k-- > 0;) {
        x += (rest % step.extents[k]) * step.a_strides[k];
        y += (rest % step.extents[k]) * step.b_strides[k];
        rest /= step.extents[k];
      }
      for (std::int64_t i = 0; i < n; ++i) to[row * n + i] = x[i * sa] * y[i * sb];
    }
  });
}

template <class T>
void EinsumPlan::run(const void* const* inputs, T* output, T* scratch) const {
  if (is_zero_) {
    std::fill_n(output, output_size_, T(0));
    return;
  }
  auto at = [&](const View& v) {
    return v.input == kScratch ? scratch + v.offset : static_cast<const T*>(inputs[v.input]) + v.offset;
  };
  for (const Step& step : steps_) {
    T* to = step.to == kOutput ? output : scratch + step.to;
    switch (step.kind) {
      case Kind::copy:
        step.copy(at(step.a), to);
        break;
      case Kind::multiply:
        run_multiply(step, at(step.a), at(step.b), to);
        break;
      case Kind::sum:
        reduce(step.reduction, dtype_, at(step.a), nullptr, to, reinterpret_cast<std::byte*>(scratch + step.partial));
        break;
      case Kind::product:
        if constexpr (std::is_floating_point_v<T>) {
          batched_gemm(step.gemm, T(1), at(step.a), at(step.b), to);
        } else {
          batched_integer_gemm(step.gemm, at(step.a), at(step.b), to);
        }
    }
  }
}

template void EinsumPlan::run(const void* const*, float*, float*) const;
template void EinsumPlan::run(const void* const*, double*, double*) const;
template void EinsumPlan::run(const void* const*, std::uint64_t*, std::uint64_t*) const;

}  // namespace backpass
