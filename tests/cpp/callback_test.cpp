#include "ops/custom/callback.hpp"

#include <gtest/gtest.h>

#include "graph/op.hpp"

namespace backpass {
namespace {

TEST(Callback, ContextHoldsItsStateUntilTheLastHandleIsGone) {
  auto state = std::make_shared<int>(5);
  std::weak_ptr<int> watch = state;
  Tensor context = make_context(std::move(state));
  EXPECT_EQ(context.dtype(), DType::int64);
  EXPECT_TRUE(context.dims().empty());
  Tensor handle = context;
  context = Tensor();
  EXPECT_EQ(*std::static_pointer_cast<int>(state_of(handle)), 5);
  handle = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Callback, NumbersThatAreNoContextAreRefused) {
  Tensor context = make_context(std::make_shared<int>(1));
  Tensor copy = Tensor::scalar_int(*context.as<std::int64_t>());
  EXPECT_NE(state_of(copy), nullptr);  // a copy stands for the same thing as long as that lives
  context = Tensor();
  EXPECT_THROW(state_of(copy), InvalidInput);
  EXPECT_THROW(state_of(Tensor::scalar_int(0)), InvalidInput);
  EXPECT_THROW(state_of(Tensor::scalar_float(1)), InvalidInput);
  EXPECT_THROW(state_of(Tensor(DType::int64, {0})), InvalidInput);
}

TEST(Callback, StateMayMakeAndDropContextsWhileItGoes) {
  struct Nested {
    Tensor inner;
    ~Nested() { make_context(std::make_shared<int>(2)); }
  };
  auto nested = std::make_shared<Nested>();
  std::weak_ptr<Nested> watch = nested;
  nested->inner = make_context(std::make_shared<int>(3));
  Tensor context = make_context(std::move(nested));
  context = Tensor();
  EXPECT_TRUE(watch.expired());
}

Node aten_node() {
  const std::string domain = "org.pytorch.aten";
  return {.name = "it",
          .op = "ATen",
          .domain = domain,
          .def = find_op(domain, "ATen"),
          .inputs = {},
          .outputs = {},
          .attributes = {},
          .subgraphs = {}};
}

TEST(Callback, WithoutPyTorchTheNodeIsNamed) {
  const Node node = aten_node();
  ComputeContext c(node);
  set_torch_callback({});
  try {
    run_torch_callback(c);
    FAIL();
  } catch (const Unsupported& e) {
    EXPECT_NE(std::string(e.what()).find("[org.pytorch.aten.ATen 'it'] operator: got org.pytorch.aten.ATen"),
              std::string::npos)
        << e.what();
  }
}

TEST(Callback, WhatACallbackThrowsPassesThrough) {
  struct Own {};
  const Node node = aten_node();
  ComputeContext c(node);
  set_torch_callback([](ComputeContext&) { throw Own{}; });
  EXPECT_THROW(run_torch_callback(c), Own);
  set_torch_callback({});
}

}  // namespace
}  // namespace backpass
