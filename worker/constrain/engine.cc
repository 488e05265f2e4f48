#include "worker/constrain/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "proto/base/status_wire.h"

namespace holdfast::constrain {
namespace {

constexpr size_t kFew = 512;           // a list up to here, bits beyond
constexpr uint64_t kFewestMasks = 256; // of an era, unless it failed

size_t Words(const TokenTrie& trie) { return (size_t{trie.vocabulary()} + 63) / 64; }

void Set(std::vector<uint64_t>* bits, TokenId id) { (*bits)[id / 64] |= uint64_t{1} << (id % 64); }

// For each state the least one of its rule that tokens of up to `depth` bytes cannot tell from it. Empty when that would take too long, or
// when all differ. Rounds of refinement: after round n, two states are apart when n symbols tell them apart. A call is a symbol of one byte
// or more, so counting it as one errs on the safe side.
std::vector<uint32_t> AlikeStates(const Program& program, uint32_t depth) {
  constexpr uint64_t kMaxWork = 2'000'000;
  const uint32_t n = program.states();
  std::vector<uint32_t> klass(n, 0), next(n);
  uint64_t work = 0;
  size_t classes = 1;
  std::vector<uint64_t> sign;
  for (uint32_t rule = 0; rule < program.rules(); ++rule) {  // states of different rules are never compared
    const uint32_t end = rule + 1 < program.rules() ? program.start(rule + 1) : n;
    for (uint32_t s = program.start(rule); s < end; ++s) klass[s] = rule;
    classes = rule + 1;
  }
  for (uint32_t round = 0; round < depth; ++round) {
    absl::flat_hash_map<std::vector<uint64_t>, uint32_t> ids;
    for (uint32_t s = 0; s < n; ++s) {
      sign.assign({klass[s], program.final(s) ? uint64_t{1} : 0});
      for (const Program::ByteEdge& e : program.bytes(s)) sign.push_back(uint64_t{1} << 48 | uint64_t{e.lo} << 40 | uint64_t{e.hi} << 32 | klass[e.to]);
      uint64_t kind = uint64_t{2} << 48;
      for (const auto edges : {program.specials(s), program.calls(s), program.loops(s)}) {
        for (const Program::Edge& e : edges) {
          sign.push_back(kind | e.value);
          sign.push_back(klass[e.to]);
        }
        kind += uint64_t{1} << 48;
      }
      work += sign.size();
      next[s] = ids.try_emplace(sign, static_cast<uint32_t>(ids.size())).first->second;
    }
    klass.swap(next);
    if (ids.size() == classes) break;  // stable: they are alike for good
    classes = ids.size();
    if (work > kMaxWork) return {};
  }
  if (classes == n) return {};
  std::vector<uint32_t> first(classes, UINT32_MAX), out(n);
  for (uint32_t s = 0; s < n; ++s) {
    uint32_t& least = first[klass[s]];
    least = std::min(least, s);
    out[s] = least;
  }
  return out;
}

}  // namespace

bool Mask::Allows(TokenId id) const {
  if (!dense) return std::binary_search(few.begin(), few.end(), id);
  return id / 64 < bits.size() && (bits[id / 64] >> (id % 64) & 1) != 0;
}

Engine::Engine(Program program, std::shared_ptr<const TokenTrie> trie, const EngineLimits& limits)
    : program_(std::move(program)), trie_(std::move(trie)), limits_(limits), configurations_(program_, limits.configurations),
      alike_(AlikeStates(program_, trie_->max_depth() + 1)) {}

absl::Status Engine::Exhausted() const {
  return absl::ResourceExhaustedError(fmt::format("the constraint cannot be run: {}", configurations_.failed() ? configurations_.why() : "its masks take too long"));
}

void Engine::StartEra() {
  ++era_;
  era_began_at_ = masks_computed_;
  configurations_.Clear();
  parts_.clear();
  part_bytes_ = 0;
  masks_.clear();
  mask_of_.clear();
  mask_bytes_ = 0;
  seen_.clear();
}

SetId Engine::Token(SetId set, TokenId id) {
  if (id >= trie_->vocabulary()) return Configurations::kDead;
  // A token that a special edge names is that symbol; its text, should it have one, is not looked at.
  if (const SetId special = configurations_.Special(set, id); special != Configurations::kDead) return special;
  const std::string_view text = trie_->text(id);
  if (text.empty()) return Configurations::kDead;
  for (const char c : text) {
    set = configurations_.Byte(set, static_cast<uint8_t>(c));
    if (set == Configurations::kDead) break;
  }
  return set;
}

absl::Status Engine::Advance(std::span<const TokenId> history, Position* position) {
  // Not at every step: a program that fills the limits with one mask would compute everything for each token.
  const bool anew = configurations_.failed() || (configurations_.nearly_full() && masks_computed_ - era_began_at_ > kFewestMasks);
  if (anew) StartEra();
  const absl::Status status = Follow(history, position);
  if (anew || !configurations_.failed()) return status;
  // What other requests left may be what filled it: this one alone, then.
  StartEra();
  return Follow(history, position);
}

absl::Status Engine::Follow(std::span<const TokenId> history, Position* position) {
  if (position->era != era_ || position->tokens > history.size()) *position = {configurations_.Start(), era_, 0};
  while (position->tokens < history.size()) {
    const TokenId id = history[position->tokens];
    const SetId next = Token(position->set, id);
    if (configurations_.failed()) return Exhausted();
    if (next == Configurations::kDead) {
      return absl::InvalidArgumentError(fmt::format("token {} (id {}) of the answer is not what the constraint allows", position->tokens, id));
    }
    position->set = next;
    ++position->tokens;
  }
  if (configurations_.failed()) return Exhausted();
  return absl::OkStatus();
}

// Visits the nodes of [begin, end), a run of subtrees of equal depth, that `from` can follow.
template <class Visit>
void Engine::Walk(uint32_t begin, uint32_t end, SetId from, const Visit& visit) {
  if (begin >= end) return;
  const TokenTrie& trie = *trie_;
  const uint32_t base = trie.depth(begin) - 1;
  path_.resize(trie.max_depth() + 2);
  SetId* const path = path_.data();
  path[0] = from;
  uint64_t steps = 0;
  for (uint32_t node = begin; node < end;) {
    const uint32_t depth = trie.depth(node) - base;
    const SetId set = configurations_.Byte(path[depth - 1], trie.byte(node));
    ++steps;
    if (set == Configurations::kDead) {
      node = trie.skip(node);
      if (configurations_.failed()) break;
      continue;
    }
    path[depth] = set;
    visit(node, set);
    ++node;
  }
  steps_ += steps;
}

FrameId Engine::Seen(FrameId stack) {
  const uint32_t longest = trie_->max_depth() + 1;
  std::vector<FrameId> open;
  FrameId id = Configurations::kBottom;
  for (FrameId at = stack; at != Configurations::kBottom; at = configurations_.frame(at).parent) {
    if (seen_.size() <= at) seen_.resize(at + 1, kUnseen);
    if (seen_[at] != kUnseen) {
      id = seen_[at];
      break;
    }
    open.push_back(at);
  }
  while (!open.empty()) {
    Configurations::Frame f = configurations_.frame(open.back());
    if ((f.what & Configurations::kLoop) != 0) {
      // A turn takes a byte or more, so no token sees a difference beyond its own length.
      f.need = std::min(f.need, longest);
      if (f.left > longest) f.left = Configurations::kNoBound;
    } else {
      f.what = alike_.empty() ? f.what : alike_[f.what];
    }
    f.parent = id;
    id = configurations_.Intern(f);
    seen_[open.back()] = id;
    open.pop_back();
  }
  return id;
}

FrameId Engine::TopOf(FrameId stack, FrameId* below) {
  std::vector<Configurations::Frame> top{configurations_.frame(stack)};
  while (top.back().parent != Configurations::kBottom) {
    const Configurations::Frame& next = configurations_.frame(top.back().parent);
    if ((next.what & Configurations::kLoop) == 0) break;
    top.push_back(next);
  }
  *below = top.back().parent;
  FrameId id = Configurations::kBottom;
  for (size_t i = top.size(); i-- > 0;) {
    top[i].parent = id;
    id = configurations_.Intern(top[i]);
  }
  return id;
}

const Engine::Part* Engine::PartOf(FrameId top) {
  if (const auto it = parts_.find(top); it != parts_.end()) return it->second.get();
  auto part = std::make_unique<Part>();
  const SetId from = configurations_.SetOf(top);
  std::vector<TokenId> tokens;
  Walk(1, trie_->nodes(), from, [&](uint32_t node, SetId set) {
    if (configurations_.accepting(set)) part->exits.push_back(node);
    if (set == Configurations::kDone) return;
    const auto here = trie_->tokens(node);
    tokens.insert(tokens.end(), here.begin(), here.end());
  });
  if (configurations_.failed()) return nullptr;
  if (tokens.size() > kFew) {
    part->bits.assign(Words(*trie_), 0);
    for (const TokenId id : tokens) Set(&part->bits, id);
  } else {
    part->few = std::move(tokens);
  }
  if (part_bytes_ > limits_.max_mask_bytes) {
    parts_.clear();
    part_bytes_ = 0;
  }
  part_bytes_ += part->bytes();
  return parts_.emplace(top, std::move(part)).first->second.get();
}

Mask Engine::Compute(const Key& key) {
  Mask mask;
  mask.complete = key.back() != 0;
  std::vector<uint64_t> bits(Words(*trie_), 0);
  const auto add = [&](uint32_t node) {
    for (const TokenId id : trie_->tokens(node)) Set(&bits, id);
  };
  for (size_t i = 0; i + 1 < key.size(); ++i) {
    const auto stack = static_cast<FrameId>(key[i]);
    for (const Program::Edge& e : program_.specials(configurations_.frame(stack).what)) Set(&bits, e.value);
    if (program_.bytes(configurations_.frame(stack).what).empty()) continue;
    FrameId below = Configurations::kBottom;
    const FrameId top = TopOf(stack, &below);
    if (configurations_.failed()) return mask;
    const Part* part = PartOf(top);
    if (part == nullptr) return mask;
    for (size_t w = 0; w < part->bits.size(); ++w) bits[w] |= part->bits[w];
    for (const TokenId id : part->few) Set(&bits, id);
    if (part->exits.empty()) continue;
    const SetId rest = configurations_.SetOf(below);
    for (const uint32_t node : part->exits) {
      add(node);
      if (rest != Configurations::kDone) Walk(node + 1, trie_->skip(node), rest, [&](uint32_t inner, SetId) { add(inner); });
    }
    if (configurations_.failed() || steps_ > limits_.max_steps) return mask;
  }
  for (const uint64_t w : bits) mask.count += static_cast<uint64_t>(std::popcount(w));
  if (mask.count > kFew) {
    mask.dense = true;
    mask.bits = std::move(bits);
    return mask;
  }
  mask.few.reserve(mask.count);
  for (size_t w = 0; w < bits.size(); ++w) {
    for (uint64_t v = bits[w]; v != 0; v &= v - 1) mask.few.push_back(static_cast<TokenId>(w * 64 + static_cast<size_t>(std::countr_zero(v))));
  }
  return mask;
}

absl::StatusOr<const Mask*> Engine::MaskAt(const Position& position) {
  Key key;
  const auto tops = configurations_.stacks(position.set);
  const std::vector<FrameId> stacks(tops.begin(), tops.end());
  for (const FrameId stack : stacks) key.push_back(Seen(stack));
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  key.push_back(configurations_.accepting(position.set) ? 1 : 0);
  if (configurations_.failed()) return Exhausted();
  if (const auto it = mask_of_.find(key); it != mask_of_.end()) {
    ++masks_found_;
    masks_.splice(masks_.begin(), masks_, it->second);
    return &masks_.front().mask;
  }
  steps_ = 0;
  Mask mask = Compute(key);
  if (configurations_.failed() || steps_ > limits_.max_steps) return Exhausted();
  ++masks_computed_;
  masks_.push_front({key, std::move(mask)});
  mask_of_[std::move(key)] = masks_.begin();
  mask_bytes_ += masks_.front().bytes();
  while (mask_bytes_ > limits_.max_mask_bytes && masks_.size() > 1) {
    mask_bytes_ -= masks_.back().bytes();
    mask_of_.erase(masks_.back().key);
    masks_.pop_back();
  }
  return &masks_.front().mask;
}

size_t Engine::memory() const { return program_.memory() + configurations_.memory() + part_bytes_ + mask_bytes_; }

}  // namespace holdfast::constrain
