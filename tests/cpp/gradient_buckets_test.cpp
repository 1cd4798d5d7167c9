#include "training/gradient_buckets.hpp"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstring>
#include <thread>

#include "backpass/trainer.hpp"
#include "expect_error.hpp"
#include "graph/overwriting.hpp"
#include "graph_text.hpp"
#include "onnx_io/writer.hpp"
#include "plan/schedule.hpp"
#include "training/bucket_nodes.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<std::size_t>;

Tensor like(DType dtype, Dims dims) { return {dtype, std::move(dims), nullptr, nullptr}; }

TEST(BucketLayout, FillsBucketsInOrderOfCompletion) {
  const std::vector<Tensor> gradients{like(DType::float32, {100}), like(DType::float64, {8}),
                                      like(DType::float32, {3, 5}), like(DType::float32, {0}),
                                      like(DType::float32, {})};
  const Numbers order{2, 1, 4, 0, 3};
  const std::vector<Bucket> buckets = lay_out(gradients, order, 200, 2);
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].dtype, DType::float32);  // closed when the third did not fit
  ASSERT_EQ(buckets[0].members.size(), 2U);
  EXPECT_EQ(buckets[0].members[0].gradient, 2U);
  EXPECT_EQ(buckets[0].members[1].begin, 16);
  EXPECT_EQ(buckets[0].size, 32);
  EXPECT_EQ(buckets[1].members.size() + buckets[2].members.size(), 3U);
  for (const Bucket& bucket : buckets) EXPECT_EQ(bucket.size * bit_width(bucket.dtype) / 8 % (2 * 64), 0);
}

TEST(BucketLayout, PartsHaveAllElementsOnce) {
  const std::vector<Tensor> gradients{like(DType::float32, {7}), like(DType::float32, {100}),
                                      like(DType::float32, {33})};
  const Numbers order{0, 1, 2};
  for (const int parts : {1, 2, 3, 8}) {
    const Bucket bucket = lay_out(gradients, order, 1 << 20, parts).at(0);
    std::int64_t next = 0, element = 0;
    for (int part = 0; part < parts; ++part) {
      const BucketPart own = part_of(bucket, part, parts);
      EXPECT_EQ(own.begin, next);
      EXPECT_EQ(own.first, element);
      next = own.end;
      element = own.last;
    }
    EXPECT_EQ(next, bucket.size);
    EXPECT_EQ(element, 140);
  }
}

std::unique_ptr<Graph> graph_with_gradients(const std::string& text, std::size_t first) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  graph->first_gradient = first;
  graph->gradient_count = graph->outputs.size() - first;
  return graph;
}

Names order_of(const Graph& graph) {
  Names names;
  for (const Node* node : order_to_run(graph)) names.push_back(node->name);
  return names;
}

TEST(BucketNodes, StandBehindTheLastGradient) {
  auto graph = graph_with_gradients(R"(graph 'g' (%x: float32[2,2], %w: float32[2,2], %v: float32[2,2])
  %a = MatMul(%x, %w) 'first'
  %y = MatMul(%a, %v) 'second'
  %dv = MatMul(%a, %y) 'dv'
  %da = MatMul(%y, %v) 'da'
  %dw = MatMul(%x, %da) 'dw'
  return %y, %dw, %dv
)",
                                    1);
  EXPECT_EQ(completion_order(*graph), (Numbers{1, 0}));
  add_bucket_nodes(*graph, std::vector<Numbers>{{1}, {0}});
  EXPECT_EQ(verify(*graph), Names{});
  EXPECT_EQ(order_of(*graph), (Names{"first", "second", "dv", "bucket_0", "da", "dw", "bucket_1"}));
  EXPECT_EQ(graph->gradient_count, 4U);
}

TEST(BucketNodes, GiveMemoryOfItsOwnToWhatOthersRead) {
  auto graph = graph_with_gradients(R"(graph 'g' (%x: float32[2,2], %w: float32[2,2])
  %shape = int64[1]{4}
  %da = MatMul(%x, %w) 'da'
  %dv = Tanh(%da) 'dv'
  %flat = Reshape(%dv, %shape) 'flat'
  return %x, %da, %dv, %flat, %w
)",
                                    1);
  add_bucket_nodes(*graph, std::vector<Numbers>{{0, 1, 2, 3}});
  EXPECT_EQ(verify(*graph), Names{});
  const Node* ready = graph->outputs.back()->producer;
  ASSERT_EQ(ready->op, "BucketReady");
  ValueSet seen;
  for (const Value* v : ready->inputs) EXPECT_TRUE(seen.insert(v).second);
  EXPECT_EQ(ready->input(0)->producer->op, "PassThrough");  // read by Tanh
  EXPECT_EQ(ready->input(1)->producer->op, "PassThrough");  // given out twice
  EXPECT_EQ(ready->input(3)->producer->op, "PassThrough");  // an input
}

/// Remembers what was asked of it.
class Recording : public Communicator {
 public:
  std::vector<std::int64_t> sums;  // sizes
  int waits = 0;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  void broadcast(Tensor, int) override {}
  void start_allreduce(Tensor values) override { sums.push_back(values.size()); }
  void wait() override { ++waits; }
  void allgather(Tensor, Tensor) override {}
  void reduce_scatter(Tensor, Tensor) override {}
  void send(Tensor, int, int) override {}
  void receive(Tensor, int, int) override {}
};

TEST(GradientBuckets, AreSentInOrderWhateverComesFirst) {
  const std::vector<Tensor> gradients{like(DType::float32, {16}), like(DType::float32, {32}),
                                      like(DType::float32, {48})};
  auto world = std::make_shared<Recording>();
  GradientBuckets buckets(lay_out(gradients, Numbers{0, 1, 2}, 1, 1), world, false);
  auto complete = [&](std::size_t b, const void* where) { buckets.complete(b, std::vector<const void*>{where}); };
  auto place = [&](std::size_t b) { return buckets.gradients()[b].data(); };
  buckets.begin();
  complete(1, place(1));
  EXPECT_EQ(world->sums.size(), 0U);
  complete(0, place(0));
  EXPECT_EQ(world->sums, (std::vector<std::int64_t>{16, 32}));
  complete(2, nullptr);  // not where it belongs yet
  EXPECT_EQ(world->sums.size(), 2U);
  buckets.finish();
  EXPECT_EQ(world->sums, (std::vector<std::int64_t>{16, 32, 48}));
  EXPECT_EQ(world->waits, 1);
  buckets.begin();
  buckets.abandon();  // nothing was sent
  buckets.begin();
  complete(0, place(0));
  buckets.abandon();
  expect_error<InvalidInput>([&] { buckets.begin(); }, {"no longer in step with the others"});
}

/// Ranks that are threads of this test.
class Meeting {
 public:
  explicit Meeting(int size) : brought_(static_cast<std::size_t>(size)), barrier_(size) {}

  template <class F>
  void meet(int rank, Tensor brings, const F& use) {
    brought_[static_cast<std::size_t>(rank)] = std::move(brings);
    barrier_.arrive_and_wait();
    const std::vector<std::byte> result = use(brought_);
    barrier_.arrive_and_wait();
    Tensor& own = brought_[static_cast<std::size_t>(rank)];
    if (!result.empty()) std::memcpy(own.mutable_data(), result.data(), result.size());
    barrier_.arrive_and_wait();
  }

 private:
  std::vector<Tensor> brought_;
  std::barrier<> barrier_;
};

std::vector<std::byte> bytes_of(const Tensor& t) { return {t.as<std::byte>(), t.as<std::byte>() + t.bytes()}; }

class Threads : public Communicator {
 public:
  Threads(std::shared_ptr<Meeting> meeting, int rank, int size)
      : meeting_(std::move(meeting)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void broadcast(Tensor values, int root) override {
    meeting_->meet(rank_, values, [&](const auto& all) { return bytes_of(all[static_cast<std::size_t>(root)]); });
  }
  void start_allreduce(Tensor values) override {
    meeting_->meet(rank_, values, [&](const std::vector<Tensor>& all) {
      std::vector<float> sum(static_cast<std::size_t>(values.size()));
      for (const Tensor& one : all) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one.as<float>()[i];
      }
      const auto* begin = reinterpret_cast<const std::byte*>(sum.data());
      return std::vector<std::byte>(begin, begin + values.bytes());
    });
  }
  void wait() override {}
  void allgather(Tensor mine, Tensor all) override {
    meeting_->meet(rank_, mine, [&](const std::vector<Tensor>& everybody) {
      std::byte* to = all.as<std::byte>();
      for (const Tensor& one : everybody) {
        std::memcpy(to, one.data(), one.bytes());
        to += one.bytes();
      }
      return std::vector<std::byte>{};
    });
  }
  void reduce_scatter(Tensor, Tensor) override { FAIL(); }
  void send(Tensor, int, int) override { FAIL(); }
  void receive(Tensor, int, int) override { FAIL(); }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_, size_;
};

Floats train_alone(const ModelSource& model, TrainerOptions options, const Tensor& x, const Tensor& t) {
  auto state = Trainer::state_of(model, "loss");
  options.algorithm = Algorithm::sgd;
  Trainer trainer(state, options);
  const std::size_t program = trainer.add_model({model, "loss", {"loss"}, {}});
  for (int i = 0; i < 3; ++i) trainer.train_step(program, std::vector<RuntimeValue>{x, t}, 0.05);
  return numbers_in(state->parameter("w").tensor);
}

TEST(GradientBuckets, TwoTrainersAreAsOneWithAllData) {
  const ModelSource model = ModelSource::from_bytes(onnx_io::write_model(regression_model()));
  const Tensor x = floats({4, 2}, {1, 2, 3, 4, 5, 6, 7, 9}), t = floats({4, 1}, {1, 0, -1, 2});
  const std::array<Tensor, 2> xs{floats({2, 2}, {1, 2, 3, 4}), floats({2, 2}, {5, 6, 7, 9})};
  const std::array<Tensor, 2> ts{floats({2, 1}, {1, 0}), floats({2, 1}, {-1, 2})};
  const Floats alone = train_alone(model, {}, x, t);
  auto meeting = std::make_shared<Meeting>(2);
  std::array<Floats, 2> found;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      TrainerOptions options;
      options.communicator = std::make_shared<Threads>(meeting, rank, 2);
      options.parallel.bucket_bytes = 1;
      options.session.num_threads = 1;
      found[r] = train_alone(model, options, xs[r], ts[r]);
    });
  }
  ranks.clear();
  EXPECT_EQ(found[0], found[1]);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(found[0][i], alone[i], 1e-5F);
}

TEST(Communicator, OfTheThreadComesBeforeThatOfTheProcess) {
  EXPECT_EQ(communicator(), nullptr);
  auto process = std::make_shared<Recording>(), thread = std::make_shared<Recording>();
  set_communicator(process);
  {
    const CommunicatorScope scope(thread);
    EXPECT_EQ(communicator(), thread);
    std::jthread([&] { EXPECT_EQ(communicator(), process); });
  }
  EXPECT_EQ(communicator(), process);
  set_communicator(nullptr);
  EXPECT_EQ(communicator(), nullptr);
}

}  // namespace
}  // namespace backpass
