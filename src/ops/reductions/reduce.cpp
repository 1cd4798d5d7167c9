// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceLogSum, ReduceSumSquare.
#include "kernels/reduce.hpp"

#include "graph/op.hpp"
#include "ops/reductions/reduce_axes.hpp"
#include "ops/reductions/reduce_rules.hpp"

namespace backpass {
namespace {

template <Fold fold, Finish finish>
Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  Reduction plan = plan_reduction(c.in(0).dims, reduced_axes(c), fold, finish);
  std::size_t scratch = c.reserve(plan.scratch_bytes());
  return [plan, dtype, scratch](const KernelArgs& a) {
    reduce(plan, dtype, a.inputs[0], nullptr, a.outputs[0], a.scratch + scratch);
  };
}

constexpr DTypeSet kSumTypes = types::floats | DTypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};
constexpr DTypeSet kOrderTypes = kSumTypes | DTypeSet{DType::int8, DType::uint8, DType::boolean};

template <Fold fold, Finish finish = Finish::none>
OpDef reduction(std::string_view name, int since, std::string_view doc, DTypeSet types) {
  return {.name = name,
          .since = since,
          .doc = doc,
          .inputs = {1, 2},
          .types = types,
          .infer = infer_reduce,
          .prepare = prepare<fold, finish>,
          .gradient = reduce_rule(name)};
}

const Register kSum(reduction<Fold::sum>("ReduceSum", 13, "sum over axes", kSumTypes));
const Register kMean(reduction<Fold::sum, Finish::mean>("ReduceMean", 18, "mean over axes", kSumTypes));
const Register kMax(reduction<Fold::maximum>("ReduceMax", 20, "maximum over axes", kOrderTypes));
const Register kMin(reduction<Fold::minimum>("ReduceMin", 20, "minimum over axes", kOrderTypes));
const Register kProd(reduction<Fold::product>("ReduceProd", 18, "product over axes", kSumTypes));
const Register kL1(reduction<Fold::sum_abs>("ReduceL1", 18, "sum of magnitudes over axes", kSumTypes));
const Register kL2(reduction<Fold::sum_square, Finish::root>("ReduceL2", 18, "Euclidean norm over axes", kSumTypes));
const Register kLogSum(reduction<Fold::sum, Finish::log>("ReduceLogSum", 28, "log of the sum over axes", kSumTypes));
const Register kSumSquare(reduction<Fold::sum_square>("ReduceSumSquare", 18, "sum of squares over axes", kSumTypes));

const RegisterAdapter kSumAxes({.op = "ReduceSum", .below = 13, .lift = axes_attribute_to_input});
const RegisterAdapter kMeanAxes({.op = "ReduceMean", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kMaxAxes({.op = "ReduceMax", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kMinAxes({.op = "ReduceMin", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kProdAxes({.op = "ReduceProd", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kL1Axes({.op = "ReduceL1", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kL2Axes({.op = "ReduceL2", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kLogSumAxes({.op = "ReduceLogSum", .below = 18, .lift = axes_attribute_to_input});
const RegisterAdapter kSumSquareAxes({.op = "ReduceSumSquare", .below = 18, .lift = axes_attribute_to_input});

/// com.microsoft ReduceSumTraining: ReduceSum whose axes are always an input.
OpDef reduce_sum_training() {
  OpDef def = reduction<Fold::sum>("ReduceSumTraining", 1, "sum over axes given as an input", kSumTypes);
  def.domain = "com.microsoft";
  def.inputs = {2, 2};
  return def;
}
const Register kSumTraining(reduce_sum_training());

}  // namespace
}  // namespace backpass
