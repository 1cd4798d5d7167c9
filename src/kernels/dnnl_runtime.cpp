#include "kernels/dnnl_runtime.hpp"

namespace backpass {

const dnnl::engine& dnnl_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

void execute(const dnnl::primitive& primitive, const dnnl_exec_arg_t* arguments, std::size_t count) {
  thread_local dnnl::stream stream(dnnl_engine());
  dnnl_status_t status = dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(count), arguments);
  ensure(status == dnnl_success, "oneDNN could not run a primitive: status ", static_cast<int>(status));
}

void execute(const dnnl::primitive& primitive, std::initializer_list<dnnl_exec_arg_t> arguments) {
  execute(primitive, arguments.begin(), arguments.size());
}

dnnl::memory unbound(const dnnl::memory::desc& desc) { return dnnl::memory(desc, dnnl_engine(), nullptr); }

void bind(dnnl::memory& memory, const void* data) {
  memory.set_data_handle(const_cast<void*>(data));  // NOLINT: oneDNN takes inputs as void*
}

void reorder_now(const dnnl::memory::desc& from, const void* source, const dnnl::memory::desc& to, void* target) {
  dnnl::memory in = unbound(from);
  dnnl::memory out = unbound(to);
  bind(in, source);
  bind(out, target);
  dnnl::reorder reorder(in, out);
  execute(reorder, {{DNNL_ARG_FROM, in.get()}, {DNNL_ARG_TO, out.get()}});
}

}  // namespace backpass
