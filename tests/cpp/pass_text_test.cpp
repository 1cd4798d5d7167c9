// Every pass, by tests/passes/<pass>.test: a graph as text and what becomes of it. BACKPASS_UPDATE_TESTS=1 writes what
// becomes of them now into the files, for you to read.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "graph_text.hpp"
#include "ops/convolution/dnnl_conv.hpp"
#include "pass_testing.hpp"
#include "plan/lower.hpp"
#include "support/random_seed.hpp"

namespace backpass {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(BACKPASS_SOURCE_DIR) / "tests" / "passes";

struct Case {
  std::string title;
  std::string input;
  std::string expected;  ///< the graph, and the reports behind it
};

struct TestFile {
  std::string head;
  std::vector<Case> cases;
};

TestFile read(const std::filesystem::path& path) {
  std::ifstream in(path);
  TestFile file;
  std::string* part = &file.head;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== ")) {
      file.cases.push_back({line.substr(3), "", ""});
      part = &file.cases.back().input;
    } else if (line == "-- becomes") {
      part = &file.cases.back().expected;
    } else if (part == &file.head || !line.empty()) {
      *part += line + "\n";
    }
  }
  return file;
}

void write(const std::filesystem::path& path, const TestFile& file) {
  std::ofstream out(path);
  out << file.head;
  for (std::size_t i = 0; i < file.cases.size(); ++i) {
    const Case& c = file.cases[i];
    out << (i > 0 ? "\n" : "") << "== " << c.title << "\n" << c.input << "-- becomes\n" << c.expected;
  }
}

/// `$b` stands for the channels of a block, `$2b` for twice as many.
std::string with_block(const std::string& text) {
  static const std::regex kBlocks("\\$(\\d*)b");
  std::string result;
  auto rest = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), kBlocks), end; it != end; ++it) {
    result.append(rest, (*it)[0].first);
    result += std::to_string(conv_block() * ((*it)[1].length() == 0 ? 1 : std::stoll((*it)[1])));
    rest = (*it)[0].second;
  }
  return result.append(rest, text.cend());
}

Tensor made_up(const Type& type, std::map<std::string, std::int64_t>& symbols) {
  Dims dims;
  for (const Dim& d : *type.shape) {
    const auto next = static_cast<std::int64_t>(symbols.size()) + 2;
    dims.push_back(d.is_known() ? d.value() : symbols.emplace(d.str(), next).first->second);
  }
  Tensor t(type.dtype, dims);
  for (std::int64_t i = 0; i < t.size(); ++i) {
    if (type.dtype == DType::float32) t.as<float>()[i] = static_cast<float>((i * 7 + 3) % 11) / 8;
    if (type.dtype == DType::float64) t.as<double>()[i] = static_cast<double>((i * 7 + 3) % 11) / 8;
    if (type.dtype == DType::int64) t.as<std::int64_t>()[i] = i % 2;
    if (type.dtype == DType::boolean) t.as<bool>()[i] = i % 2 == 0;
  }
  return t;
}

std::vector<RuntimeValue> results(const Graph& graph) {
  std::map<std::string, std::int64_t> symbols;
  std::vector<RuntimeValue> feeds;
  for (const Value* v : graph.inputs) feeds.emplace_back(made_up(v->type, symbols));
  RandomScope random(RandomRun{7, 0});
  return interpret(graph, feeds);
}

std::string shown(const Report& r) {
  std::string text = "-- " + r.what;
  if (!r.operations_saved.empty()) text += "; operations saved: " + r.operations_saved;
  if (!r.bytes_saved.empty()) text += "; bytes saved: " + r.bytes_saved;
  return text + "\n";
}

std::string after(const Pass& pass, Graph& graph) {
  PassManager manager({.disabled = {}, .verify = true, .chosen = {std::string(pass.name)}}, {&pass, 1});
  if (pass.graphs == Graphs::files) {
    manager.run(graph, std::vector<std::string>{std::string(pass.name)});
  } else if (pass.graphs == Graphs::lowered) {
    manager.lower(graph);
  } else {
    manager.run(graph, pass.side);
  }
  std::string text = print(graph);
  for (const Report& report : manager.reports()) {
    EXPECT_EQ(report.pass, pass.name);
    EXPECT_FALSE(report.what.empty() || report.why.empty());
    text += shown(report);
  }
  return text;
}

void check(const Pass& pass, Case& c, bool update) {
  SCOPED_TRACE(c.title);
  if (c.input.find("$b") != std::string::npos && conv_block() == 0) return;  // no blocked layout on this processor
  const std::string input = with_block(c.input);
  std::unique_ptr<Graph> graph = parse_graph(input);
  const std::vector<RuntimeValue> before = results(*graph);
  const std::string found = after(pass, *graph);
  const std::vector<RuntimeValue> now = results(*graph);
  for (std::size_t i = 0; i < before.size(); ++i) PassFixture::expect_near(before[i].tensor, now[i].tensor, 1e-5);
  if (update && with_block(c.expected) != found) {
    c.expected = found == print(*parse_graph(input)) ? "the same\n" : found;
  } else if (!update) {
    EXPECT_EQ(found, c.expected == "the same\n" ? print(*parse_graph(input)) : with_block(c.expected));
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Pass>& info) { return std::string(info.param.name); }

class PassText : public ::testing::TestWithParam<Pass> {};

TEST_P(PassText, BecomesWhatTheFileSays) {
  const std::filesystem::path path = kFolder / (std::string(GetParam().name) + ".test");
  TestFile file = read(path);
  ASSERT_GE(file.cases.size(), 2U) << path << " should show what the pass does and what it leaves alone";
  const bool update = std::getenv("BACKPASS_UPDATE_TESTS") != nullptr;
  for (Case& c : file.cases) check(GetParam(), c, update);
  if (update) write(path, file);
}

INSTANTIATE_TEST_SUITE_P(Passes, PassText, ::testing::ValuesIn(kEveryPass), name_of_case);

TEST(PassFiles, EveryFileIsOfAPass) {
  std::set<std::string> names;
  for (const Pass& pass : kEveryPass) names.insert(std::string(pass.name) + ".test");
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".test") files.insert(entry.path().filename());
  }
  EXPECT_EQ(files, names);
}

}  // namespace
}  // namespace backpass
