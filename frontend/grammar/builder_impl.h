#pragma once
// The inside of Builder, for the files of frontend/grammar that implement it.
#include <absl/container/flat_hash_map.h>

#include <functional>
#include <string>

#include "frontend/grammar/builder.h"
#include "frontend/grammar/nodes.h"
#include "frontend/grammar/work.h"

namespace holdfast::grammar {

struct Builder::Impl {
  explicit Impl(const BuilderLimits& limits) : work(limits.max_schema_work) { store.limits = limits; }

  NodeStore store;
  WorkBudget work;                              // of all schemas together
  uint64_t graph_edges = 0;
  absl::flat_hash_map<uint64_t, Node> shared;   // parts that many values use (json_value.cc), by what they are

  // Keeps the first failure.
  void Fail(std::string message);
  Node Add(NodeData data);
  Node AddGraph(NodeData data, GraphData graph);
  const NodeData& Get(Node node) const;
  // Makes each shared part once.
  std::function<Node(uint64_t, const std::function<Node()>&)> Sharing() {
    return [this](uint64_t key, const std::function<Node()>& make) {
      const auto it = shared.find(key);
      if (it != shared.end()) return it->second;
      const Node node = make();  // may itself share parts, so the place is looked for again
      shared.emplace(key, node);
      return node;
    };
  }
};

}  // namespace holdfast::grammar
