// Trains from artifacts and exports the result: `train <artifact folder> <data> <steps> <batch> <features> [output]`.
// `data` holds, for each step, batch x features float32 numbers followed by batch int64 labels. Prints one loss per
// line; with an output name, writes the trained model to inference.onnx in the artifact folder.
#include <backpass/training.hpp>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void fill(std::ifstream& data, backpass::Tensor& tensor) {
  if (!data.read(tensor.as<char>(), static_cast<std::streamsize>(tensor.bytes()))) {
    throw std::runtime_error("the data file ends too early");
  }
}

void train(backpass::TrainingSession& session, std::ifstream& data, int steps, std::int64_t batch,
           std::int64_t features) {
  backpass::Tensor x(backpass::DType::float32, {batch, features});
  backpass::Tensor labels(backpass::DType::int64, {batch});
  for (int step = 0; step < steps; ++step) {
    fill(data, x);
    fill(data, labels);
    const std::vector<backpass::RuntimeValue> inputs = {x, labels};
    const auto results = session.train_step(inputs);
    std::cout << std::setprecision(9) << *results[0].tensor.as<float>() << "\n";
    session.optimizer_step();
    session.lazy_reset_grad();
  }
}

void run(std::span<char*> arguments) {
  const std::filesystem::path folder = arguments[1];
  auto state = std::make_shared<backpass::CheckpointState>(backpass::CheckpointState::load(folder / "checkpoint"));
  backpass::TrainingSession session(
      state, {folder / "training_model.onnx", folder / "eval_model.onnx", folder / "optimizer_model.onnx"});
  std::ifstream data(arguments[2], std::ios::binary);
  train(session, data, std::stoi(arguments[3]), std::stoll(arguments[4]), std::stoll(arguments[5]));
  if (arguments.size() > 6) {
    const std::vector<std::string> outputs = {arguments[6]};
    session.export_model_for_inferencing(folder / "inference.onnx", outputs);
  }
  state->save(folder / "checkpoint", /*include_optimizer_state=*/true);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: train <artifact folder> <data> <steps> <batch> <features> [output]\n";
    return 2;
  }
  try {
    run({argv, static_cast<std::size_t>(argc)});
    return 0;
  } catch (const std::exception& e) {  // backpass::InvalidInput, Unsupported: the message says what to do
    std::cerr << e.what() << "\n";
    return 1;
  }
}
