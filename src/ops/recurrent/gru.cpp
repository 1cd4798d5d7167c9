// GRU: gated recurrent unit over a sequence, in one or both directions.
#include "ops/flops.hpp"
#include "ops/recurrent/recurrent.hpp"
#include "ops/recurrent/recurrent_rule.hpp"

namespace backpass {
namespace {

constexpr RecurrentOutputs kOutputs{.y = 0, .y_h = 1};

const Register gru{{.name = "GRU",
                    .since = 22,
                    .doc = "Gated recurrent unit over a sequence, in one or both directions.",
                    .inputs = {3, 6},
                    .outputs = {0, 2},
                    .types = types::floats,
                    .infer = [](InferContext& c) { infer_recurrent(c, CellKind::gru, kOutputs); },
                    .prepare = [](PrepareContext& c) { return prepare_recurrent(c, CellKind::gru, kOutputs); },
                    .gradient = recurrent_gradient_rule<CellKind::gru>,
                    .fused_gradient = recurrent_fused_gradient_rule<CellKind::gru>,
                    .half_through_float = true,
                    .flops = flops::recurrent}};

}  // namespace
}  // namespace backpass
