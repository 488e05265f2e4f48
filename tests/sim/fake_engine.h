#pragma once
// An executor without a model: it stores, for every (page, offset) of every group, a tag of the token path that was computed there, as KV
// would be a function of that path, and checks that every position a query can see carries the tag of its own path. The oracle is content,
// not bookkeeping: it knows nothing of references, lists or nodes.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "proto/base/finding.h"
#include "proto/base/random.h"
#include "worker/sched/scheduler.h"

namespace holdfast::sim {

class FindingLog final : public FindingSink {
 public:
  void Report(Finding finding) override { findings.push_back(std::move(finding)); }
  size_t count(Severity severity) const {
    size_t n = 0;
    for (const Finding& f : findings) n += f.severity == severity;
    return n;
  }
  std::string Text() const {
    std::string out;
    for (const Finding& f : findings) out += std::string(SeverityName(f.severity)) + " " + f.kind + ": " + f.detail + "\n";
    return out;
  }
  std::vector<Finding> findings;
};

class FakeEngine {
 public:
  explicit FakeEngine(const kv::CacheShape& shape) : shape_(shape) {
    for (const kv::GroupShape& g : shape.groups) {
      content_.emplace_back(static_cast<size_t>(std::max(g.pages, g.reserve_pages)) * shape.page_size, 0);
    }
  }

  // Requests of different salts never share, so the salt is part of the path.
  void Know(RequestId request, uint64_t salt) { salts_[request.v] = salt; }
  void Forget(RequestId request) {
    salts_.erase(request.v);
    tags_.erase(request.v);
    drawn_.erase(request.v);
  }

  // What the entry, which samples, draws: a later step may await it.
  void Drew(const sched::StepEntry& e, TokenId token) { drawn_[e.request.v][e.start + static_cast<uint32_t>(e.tokens.size())] = token; }
  // The token that an entry with `awaits` takes. 0 when no step before it drew one.
  TokenId Awaited(const sched::StepEntry& e) const {
    const auto request = drawn_.find(e.request.v);
    if (request == drawn_.end()) return 0;
    const auto token = request->second.find(e.start);
    return token == request->second.end() ? 0 : token->second;
  }

  void Move(const std::vector<sched::PageMove>& moves) {
    for (const sched::PageMove& m : moves) {
      for (uint32_t i = 0; i < shape_.page_size; ++i) {
        content_[m.group][static_cast<size_t>(m.to) * shape_.page_size + i] = content_[m.group][static_cast<size_t>(m.from) * shape_.page_size + i];
      }
    }
  }

  // Runs the step; returns false and sets error() at the first wrong read.
  bool Run(const sched::StepPlan& plan) {
    const uint32_t ps = shape_.page_size;
    uint32_t total = 0;
    for (const sched::StepEntry& e : plan.entries) {
      total += static_cast<uint32_t>(e.tokens.size());
      if (e.tokens.empty()) return Fail(e, 0, 0, "a chunk of no tokens");
      if (e.awaits && (e.tokens.size() != 1 || e.history.size() > e.start)) return Fail(e, 0, e.start, "a token that is known is awaited");
      if (e.awaits && (drawn_.count(e.request.v) == 0 || drawn_[e.request.v].count(e.start) == 0)) return Fail(e, 0, e.start, "a token is awaited that nobody draws");
      const std::vector<uint64_t>& tags = Tags(e);
      for (size_t g = 0; g < content_.size(); ++g) {
        for (uint32_t i = e.start; i < e.start + e.tokens.size(); ++i) {
          const int32_t page = e.tables[g][i / ps];
          if (page < 0 || static_cast<size_t>(page) * ps >= content_[g].size()) return Fail(e, g, i, "no page to write");
          content_[g][static_cast<size_t>(page) * ps + i % ps] = tags[i];
        }
      }
    }
    if (total != plan.total_tokens) return Fail(plan.entries[0], 0, 0, "total_tokens is not the sum");
    for (const sched::StepEntry& e : plan.entries) {
      const std::vector<uint64_t>& tags = Tags(e);
      const uint32_t end = e.start + static_cast<uint32_t>(e.tokens.size());
      for (size_t g = 0; g < content_.size(); ++g) {
        const uint32_t w = shape_.groups[g].window;
        for (uint32_t i = w == 0 || e.start < w ? 0 : e.start - w + 1; i < end; ++i) {
          const int32_t page = e.tables[g][i / ps];
          const bool right = page >= 0 && content_[g][static_cast<size_t>(page) * ps + i % ps] == tags[i];
          if (right) continue;
          ++wrong_reads;
          if (!tolerant) return Fail(e, g, i, page < 0 ? "a visible position has no page" : "wrong KV");
        }
      }
    }
    return true;
  }

  // A token that depends on the whole path, as a model's would.
  TokenId Sample(const sched::StepEntry& e) {
    return static_cast<TokenId>(Mix64(Tags(e)[e.start + e.tokens.size() - 1] ^ 0x73) % 30000 + 10);
  }

  // Counts wrong reads instead of stopping at the first (fault injection).
  bool tolerant = false;
  uint64_t wrong_reads = 0;

  const std::string& error() const { return error_; }
  uint64_t position(size_t g, uint32_t page, uint32_t offset) const { return content_[g][static_cast<size_t>(page) * shape_.page_size + offset]; }

 private:
  bool Fail(const sched::StepEntry& e, size_t g, uint32_t position, const char* what) {
    error_ = std::string(what) + ": request " + std::to_string(e.request.v) + " group " + std::to_string(g) + " position " +
             std::to_string(position) + " of step at " + std::to_string(e.start) + "+" + std::to_string(e.tokens.size());
    return false;
  }

  const std::vector<uint64_t>& Tags(const sched::StepEntry& e) {
    std::vector<uint64_t>& tags = tags_[e.request.v];
    // What a step draws again (the request was restarted meanwhile) may be another token.
    if (e.awaits) tags.resize(std::min(tags.size(), e.history.size()));
    const size_t end = e.start + e.tokens.size();
    while (tags.size() < end) {
      const uint64_t previous = tags.empty() ? salts_[e.request.v] + 1 : tags.back();
      const size_t i = tags.size();
      const TokenId token = i < e.history.size() ? e.history[i] : drawn_[e.request.v][static_cast<uint32_t>(i)];
      tags.push_back(Mix64(previous ^ (token + 1ull)));
    }
    return tags;
  }

  kv::CacheShape shape_;
  std::vector<std::vector<uint64_t>> content_;  // [group][page * page_size + offset]
  std::unordered_map<uint64_t, uint64_t> salts_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> tags_;  // [request] tag of every position
  std::unordered_map<uint64_t, std::map<uint32_t, TokenId>> drawn_;  // [request] by position, as steps drew them
  std::string error_;
};

}  // namespace holdfast::sim
