#include "frontend/grammar/builder.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "frontend/grammar/automaton.h"
#include "frontend/grammar/builder_impl.h"
#include "frontend/grammar/program.h"
#include "proto/base/check.h"
#include "proto/base/status_wire.h"
#include "proto/engine.pb.h"

namespace holdfast::grammar {
namespace {

// Written out up to this many states; beyond it a repetition is counted.
constexpr uint64_t kUnrolled = 256;

uint32_t Saturate(uint64_t v) { return static_cast<uint32_t>(std::min<uint64_t>(v, UINT32_MAX / 2)); }

}  // namespace

Builder::Builder(BuilderLimits limits) : impl_(std::make_unique<Impl>(limits)) {
  impl_->Add(NodeData{});  // node 0: the empty text
  NodeData never;
  never.kind = NodeKind::kNever;
  impl_->Add(std::move(never));
}

Builder::~Builder() = default;

const absl::Status& Builder::status() const { return impl_->store.status; }

void Builder::Impl::Fail(std::string message) {
  if (store.status.ok()) store.status = absl::InvalidArgumentError("the grammar " + std::move(message));
}

Node Builder::Impl::Add(NodeData data) {
  if (store.nodes.size() >= store.limits.max_nodes) {
    Fail(fmt::format("needs more than {} nodes", store.limits.max_nodes));
    return Node{1};
  }
  if (data.depth > store.limits.max_depth) {
    Fail(fmt::format("is nested more than {} deep", store.limits.max_depth));
    return Node{1};
  }
  store.nodes.push_back(std::move(data));
  return Node{static_cast<uint32_t>(store.nodes.size() - 1)};
}

const NodeData& Builder::Impl::Get(Node node) const {
  HF_CHECKF(node.id < store.nodes.size(), "node {} of {}", node.id, store.nodes.size());
  return store.nodes[node.id];
}

Node Builder::Empty() { return Node{0}; }

Node Builder::Never() { return Node{1}; }

Node Builder::Literal(std::string_view bytes) {
  if (bytes.empty()) return Empty();
  NodeData data;
  data.kind = NodeKind::kBytes;
  data.bytes.assign(bytes);
  data.size = Saturate(bytes.size());
  return impl_->Add(std::move(data));
}

Node Builder::Special(TokenId id) {
  NodeData data;
  data.kind = NodeKind::kSpecial;
  data.value = id;
  return impl_->Add(std::move(data));
}

Node Builder::CodePoints(std::span<const std::pair<uint32_t, uint32_t>> ranges, bool negated) {
  std::vector<CodePointRange> normal = Normalise(ranges);
  if (negated) normal = Complement(normal);
  if (normal.empty()) return Never();
  NodeData data;
  data.kind = NodeKind::kUtf8;
  data.sequences = ToUtf8(normal);
  uint64_t size = 1;
  for (const Utf8Sequence& s : data.sequences) size += s.length - 1;
  data.size = Saturate(size);
  return impl_->Add(std::move(data));
}

Node Builder::Seq(std::span<const Node> parts) {
  NodeData data;
  data.kind = NodeKind::kSeq;
  uint64_t size = 1;
  for (const Node part : parts) {
    const NodeData& p = impl_->Get(part);
    if (p.kind == NodeKind::kNever) return Never();
    if (p.kind == NodeKind::kEmpty) continue;
    size += p.size;
    data.depth = std::max(data.depth, p.depth + 1);
    data.parts.push_back(part.id);
  }
  if (data.parts.empty()) return Empty();
  if (data.parts.size() == 1) return Node{data.parts[0]};
  data.size = Saturate(size);
  return impl_->Add(std::move(data));
}

Node Builder::Choice(std::span<const Node> parts) {
  NodeData data;
  data.kind = NodeKind::kChoice;
  uint64_t size = 1;
  for (const Node part : parts) {
    const NodeData& p = impl_->Get(part);
    if (p.kind == NodeKind::kNever) continue;
    size += p.size;
    data.depth = std::max(data.depth, p.depth + 1);
    data.parts.push_back(part.id);
  }
  if (data.parts.empty()) return Never();
  if (data.parts.size() == 1) return Node{data.parts[0]};
  data.size = Saturate(size);
  return impl_->Add(std::move(data));
}

Node Builder::Optional(Node part) { return Choice({Empty(), part}); }

Node Builder::Repeat(Node part, uint32_t min, uint32_t max) {
  const NodeData& p = impl_->Get(part);
  if (min > max) return Never();
  if (p.kind == NodeKind::kNever) return min == 0 ? Empty() : Never();
  if (max == 0 || p.kind == NodeKind::kEmpty) return Empty();
  if (min == 1 && max == 1) return part;
  NodeData data;
  data.kind = NodeKind::kRepeat;
  data.value = part.id;
  data.min = min;
  data.max = max;
  data.depth = p.depth + 1;
  const uint64_t copies = max == kNoLimit ? std::max<uint64_t>(min, 1) : max;
  const uint64_t size = (p.size + uint64_t{1}) * copies;
  data.counted = size > kUnrolled && !(max == kNoLimit && min <= 1);
  data.size = data.counted ? 2 : Saturate(size + 2);
  return impl_->Add(std::move(data));
}

Node Builder::Graph(uint32_t states, std::span<const Edge> edges, std::span<const uint32_t> finals) {
  GraphData graph;
  graph.states = states;
  graph.finals.assign(finals.begin(), finals.end());
  NodeData data;
  data.kind = NodeKind::kGraph;
  uint64_t size = states;
  for (const Edge& e : edges) {
    const NodeData& p = impl_->Get(e.label);
    HF_CHECKF(e.from < states && e.to < states, "an edge from {} to {} of {} states", e.from, e.to, states);
    size += p.size;
    data.depth = std::max(data.depth, p.depth + 1);
    graph.edges.push_back({e.from, e.to, e.label.id, 0, 0});
  }
  for (const uint32_t f : finals) HF_CHECK(f < states);
  data.size = Saturate(size);
  return impl_->AddGraph(std::move(data), std::move(graph));
}

Node Builder::Impl::AddGraph(NodeData data, GraphData graph) {
  graph_edges += graph.edges.size();
  if (graph_edges > 8 * uint64_t{store.limits.max_states}) {
    Fail(fmt::format("needs more than {} transitions", 8 * uint64_t{store.limits.max_states}));
    return Node{1};
  }
  data.value = static_cast<uint32_t>(store.graphs.size());
  store.graphs.push_back(std::move(graph));
  return Add(std::move(data));
}

Node Builder::Declare(std::string_view name) {
  NodeData data;
  data.kind = NodeKind::kRule;
  data.value = static_cast<uint32_t>(impl_->store.rules.size());
  impl_->store.rules.push_back({std::string(name), kNoNode});
  return impl_->Add(std::move(data));
}

void Builder::Define(Node declared, Node meaning) {
  const NodeData& data = impl_->Get(declared);
  if (data.kind != NodeKind::kRule) {  // Declare had failed
    HF_CHECK(!impl_->store.status.ok());
    return;
  }
  RuleData& rule = impl_->store.rules[data.value];
  HF_CHECKF(rule.meaning == kNoNode, "rule {} is defined twice", rule.name);
  rule.meaning = meaning.id;
}

absl::StatusOr<proto::Constraint> Builder::Build(Node root) {
  HF_CHECK(root.id < impl_->store.nodes.size());
  if (!impl_->store.status.ok()) return impl_->store.status;
  HF_ASSIGN_OR_RETURN(const PushdownAutomaton automaton, Determinise(impl_->store, root.id));
  HF_ASSIGN_OR_RETURN(std::string program, WriteProgram(automaton, impl_->store.limits.max_program_bytes));
  proto::Constraint out;
  out.set_program(std::move(program));
  return out;
}

}  // namespace holdfast::grammar
