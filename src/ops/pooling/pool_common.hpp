// What pooling operators share: shape rule and sizes.
#pragma once

#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"

namespace backpass {

/// Shape of pooling x [N, C, ...] by the attributes kernel_shape, strides, pads, dilations, auto_pad and ceil_mode.
Shape pool_shape(InferContext&, const Shape& x);

/// Sizes once all extents are numbers.
PoolGeometry pool_geometry(const Node&, const Dims& x, const Dims& y);

/// Extents of output 0 = [N, C, 1, 1, ...]; dtype of input 0.
void infer_global_pool(InferContext&);

}  // namespace backpass
