// A ConvGeometry in oneDNN's terms.
#pragma once

#include <dnnl.hpp>

#include "kernels/conv.hpp"

namespace backpass {

struct DnnlConvSizes {
  dnnl::memory::dims x, w, y, bias, stride, dilation, pad_begin, pad_end;

  explicit DnnlConvSizes(const ConvGeometry& g);
};

/// Row-major.
dnnl::memory::desc plain_layout(const dnnl::memory::dims& dims);

/// Whichever layout the primitive likes best.
dnnl::memory::desc any_layout(const dnnl::memory::dims& dims);

}  // namespace backpass
