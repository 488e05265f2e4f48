#pragma once
// What a Builder holds: the nodes of a grammar, as plain data, and the rules among them. Internal to frontend/grammar.
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/grammar/utf8_ranges.h"

namespace holdfast::grammar {

enum class NodeKind : uint8_t { kEmpty, kNever, kBytes, kUtf8, kSpecial, kSeq, kChoice, kRepeat, kGraph, kRule };

inline constexpr uint32_t kNoNode = UINT32_MAX;

struct NodeData {
  NodeKind kind = NodeKind::kEmpty;
  bool counted = false;                // kRepeat: too large to be written out, so it is run with a counter
  uint32_t size = 1;                   // states that it adds where it is written out, about; saturates
  uint32_t depth = 1;
  uint32_t min = 0, max = 0;           // kRepeat
  uint32_t value = 0;                  // kSpecial: the token; kGraph, kRule: index; kRepeat: the part
  std::string bytes;                   // kBytes
  std::vector<uint32_t> parts;         // kSeq, kChoice
  std::vector<Utf8Sequence> sequences; // kUtf8
};

struct GraphEdge {
  uint32_t from = 0, to = 0;
  uint32_t label = kNoNode;            // a node, or the bytes lo to hi
  uint8_t lo = 0, hi = 0;
};

struct GraphData {
  uint32_t states = 0;
  std::vector<GraphEdge> edges;
  std::vector<uint32_t> finals;
};

struct RuleData {
  std::string name;
  uint32_t meaning = kNoNode;
};

struct NodeStore {
  BuilderLimits limits;
  absl::Status status;                 // the first failure
  std::vector<NodeData> nodes;
  std::vector<GraphData> graphs;
  std::vector<RuleData> rules;
};

}  // namespace holdfast::grammar
