// The passes that rewrite what is computed, and the order they run in. A pass is one file with its name, one line of
// kPasses, and tests/passes/<name>.test. What they leave can be written to a file and read again; how it is laid out
// for running is said in plan/lower.hpp.
#pragma once

#include "passes/pass.hpp"

namespace backpass {

/// What stands behind functions that users differentiate by rules of their own, once gradients are there.
void function_gradients(Graph& graph, Reports& reports);

/// Nodes and constants that no output depends on.
void remove_dead_nodes(Graph& graph, Reports& reports);

/// Small integer tensors that inference knows as numbers become constants (`Gather(Shape(x), -1)` where the last extent
/// of x is fixed); those known as the same expressions as an earlier one are replaced by it, so that what is made of
/// them (the causal mask of every block of a decoder) can be recognised as equal.
void known_ints(Graph& graph, Reports& reports);

/// Computes nodes whose inputs are all constants, once: results of up to 64 MiB, unless they are larger than what they
/// are computed from by more than 1 MiB (an Expand of a scalar is cheaper to redo than to keep).
void fold_constants(Graph& graph, Reports& reports);

/// Identity, Cast to the same type, Transpose by the identity permutation, Expand and Reshape to the same shape are
/// bypassed.
void remove_identities(Graph& graph, Reports& reports);

/// `Reshape(x, Concat(Gather(Shape(x), 0), 12, -1))` becomes `Reshape(x, [0, 12, -1])`: the shape arithmetic, often
/// half the nodes of an exported transformer, disappears.
void constant_reshapes(Graph& graph, Reports& reports);

/// Nodes with the same operator, inputs and attributes compute the same thing once. Random operators and nodes with
/// subgraphs are left alone.
void merge_duplicates(Graph& graph, Reports& reports);

/// A Cast of a Cast is one, or none, where the first only widens.
void merge_casts(Graph& graph, Reports& reports);

/// A Transpose of a Transpose is one, a Reshape of a Reshape to known extents too.
void merge_transposes(Graph& graph, Reports& reports);
void merge_reshapes(Graph& graph, Reports& reports);

/// Gelu that older exports write out (by erf, by tanh, by a gate of 1.702 x) becomes one operator, whose gradient needs
/// nothing but x.
void recognise_gelu(Graph& graph, Reports& reports);

/// The same for LayerNormalization and RMSNormalization, over the last axes.
void recognise_norms(Graph& graph, Reports& reports);

/// Rows whose label is ignored are left out in front of losses: `Gather(scores, LabelledRows(labels))`.
void skip_ignored_labels(Graph& graph, Reports& reports);

/// Values are computed for those rows that somebody chooses of them: the choice moves up, through attention as far as
/// queries go. See row_needs.hpp.
void move_rows(Graph& graph, Reports& reports);

/// Keys that no needed query sees, and all that is computed for them alone, are left out: padding. Attention runs on
/// ragged rows. See row_needs.hpp.
void skip_padding(Graph& graph, Reports& reports);
/// A Slice along the axis of a Concat reads only the operands it lies in.
void slice_concats(Graph& graph, Reports& reports);

/// A selection along one axis (Gather, Slice) moves towards where its tensor comes from, in front of every node that
/// computes places along the axis one by one: less is computed, and less is written. Never where that takes more
/// operations or bytes.
void move_slices(Graph& graph, Reports& reports);

/// A Gather of neighbouring places is a Slice, and a Slice of a Slice one.
void merge_slices(Graph& graph, Reports& reports);

/// Slices that together make all of an axis are one Split, whose gradient is put together instead of added up.
void slices_to_split(Graph& graph, Reports& reports);

/// Attention that is written out, with dropout of the probabilities, becomes one operator: scores and probabilities of
/// all queries are never there together, and gradients draw again what was dropped. See ops/attention/attention.cpp.
void fuse_attention(Graph& graph, Reports& reports);

/// A loss over many classes computes its scores itself, some rows at a time, and its gradients with them: the scores of
/// all rows are never there together. See ops/losses/linear_cross_entropy.cpp.
void chunk_loss(Graph& graph, Reports& reports);

/// Where the gradient of Gather is added to others (an embedding that is the head's weight, too), its rows are: the sum
/// is there already, and no tensor of zeros is made for them.
void add_gathered(Graph& graph, Reports& reports);

/// BatchNormalization in training becomes statistics, and a pointwise part that is fused with what stands around it.
void split_batch_norm(Graph& graph, Reports& reports);

/// Values that gradients need and that follow cheaply from others are computed again instead of kept, wherever that
/// makes fewer bytes to keep and no higher peak. It asks what the plan would be, so it stands there:
/// plan/keep_less.cpp.
void keep_less(Graph& graph, Reports& reports);

/// MatMul and Gemm take over what stands around them and become backpass.Linear (ops/linear/linear.cpp): transpositions
/// and scalar factors of operands and result, a bias, an activation.
void fuse_linear(Graph& graph, Reports& reports);

/// BatchNormalization after a convolution becomes part of weights and bias. Inference form only, float32 and float64,
/// all parameters constant.
void fold_batch_norm(Graph& graph, Reports& reports);

inline constexpr Pass kPasses[] = {
    {"function_gradients", function_gradients, Side::after, Graphs::plans},
    {"remove_dead_nodes", remove_dead_nodes, Side::after, Graphs::both},
    {"known_ints", known_ints, Side::after, Graphs::plans},
    {"fold_constants", fold_constants, Side::after, Graphs::both},
    {"remove_identities", remove_identities, Side::after, Graphs::both},
    {"merge_casts", merge_casts, Side::after, Graphs::plans},
    {"constant_reshapes", constant_reshapes, Side::after, Graphs::plans},
    {"merge_duplicates", merge_duplicates, Side::after, Graphs::both},
    {"merge_transposes", merge_transposes, Side::after, Graphs::files},
    {"merge_reshapes", merge_reshapes, Side::after, Graphs::files},
    {"recognise_gelu", recognise_gelu, Side::before, Graphs::plans},
    {"recognise_norms", recognise_norms, Side::before, Graphs::plans},
    {"skip_ignored_labels", skip_ignored_labels, Side::before, Graphs::plans, true},
    {"move_rows", move_rows, Side::before, Graphs::plans},
    {"skip_padding", skip_padding, Side::before, Graphs::plans, true},
    {"slice_concats", slice_concats, Side::before, Graphs::plans},
    {"move_slices", move_slices, Side::before, Graphs::plans},
    {"merge_slices", merge_slices, Side::before, Graphs::plans},
    {"slices_to_split", slices_to_split, Side::before, Graphs::plans},
    {"fuse_attention", fuse_attention, Side::both, Graphs::plans},
    {"chunk_loss", chunk_loss, Side::both, Graphs::plans},
    {"add_gathered", add_gathered, Side::after, Graphs::plans},
    {"split_batch_norm", split_batch_norm, Side::after, Graphs::plans},
    {"keep_less", keep_less, Side::after, Graphs::plans},
    {"fuse_linear", fuse_linear, Side::after, Graphs::plans},
    {"fold_batch_norm", fold_batch_norm, Side::after, Graphs::plans},
};

}  // namespace backpass
