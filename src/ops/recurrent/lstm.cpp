// LSTM: long short-term memory over a sequence, in one or both directions.
#include "ops/flops.hpp"
#include "ops/recurrent/recurrent.hpp"
#include "ops/recurrent/recurrent_rule.hpp"

namespace backpass {
namespace {

constexpr RecurrentOutputs kOutputs{.y = 0, .y_h = 1, .y_c = 2};

const Register lstm{{.name = "LSTM",
                     .since = 22,
                     .doc = "Long short-term memory over a sequence, in one or both directions.",
                     .inputs = {3, 8},
                     .outputs = {0, 3},
                     .types = types::floats,
                     .infer = [](InferContext& c) { infer_recurrent(c, CellKind::lstm, kOutputs); },
                     .prepare = [](PrepareContext& c) { return prepare_recurrent(c, CellKind::lstm, kOutputs); },
                     .gradient = recurrent_gradient_rule<CellKind::lstm>,
                     .fused_gradient = recurrent_fused_gradient_rule<CellKind::lstm>,
                     .half_through_float = true,
                     .flops = flops::recurrent}};

}  // namespace
}  // namespace backpass
