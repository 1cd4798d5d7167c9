#include "training/rewritten_model.hpp"

#include "plan/lower.hpp"

namespace backpass {

onnx_io::ModelProto rewritten_model(const StepSource& source, const SessionOptions& options) {
  std::vector<std::string> all;
  for (const Pass& pass : kEveryPass) {
    if (pass.by_data) all.emplace_back(pass.name);
  }
  PassManager passes({options.disabled_passes, options.verify_passes, all}, kEveryPass);
  return source.training_model(passes);
}

onnx_io::ModelProto rewritten_model(const onnx_io::ModelProto& training,
                                    const std::function<bool(const std::string&)>& is_parameter) {
  return rewritten_model(StepSource(training, is_parameter, true), {});
}

}  // namespace backpass
