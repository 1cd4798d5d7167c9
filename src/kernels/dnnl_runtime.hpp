// The few things every oneDNN user needs: one engine, execution without maps, errors as InternalBug.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <initializer_list>
#include <utility>

#include "backpass/error.hpp"

namespace backpass {

const dnnl::engine& dnnl_engine();

/// Runs a primitive to completion on the calling thread's stream.
void execute(const dnnl::primitive& primitive, std::initializer_list<dnnl_exec_arg_t> arguments);
void execute(const dnnl::primitive& primitive, const dnnl_exec_arg_t* arguments, std::size_t count);

/// A memory object without memory; bind() gives it some before each run.
dnnl::memory unbound(const dnnl::memory::desc& desc);
void bind(dnnl::memory& memory, const void* data);

/// Copies between layouts (now, with temporary memory of its own).
void reorder_now(const dnnl::memory::desc& from, const void* source, const dnnl::memory::desc& to, void* target);

}  // namespace backpass
