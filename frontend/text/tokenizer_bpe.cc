#include "frontend/text/tokenizer_bpe.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "frontend/text/utf8.h"
#include "proto/base/check.h"
#include "proto/model_card.pb.h"

namespace holdfast::text {
namespace {

// The key that a text of the file's merge list has: see Vocabulary. GPT-2's alphabet is undone through the byte tokens' own texts.
class KeyReader final {
 public:
  explicit KeyReader(const Vocabulary& v) : v_(v) {}
  std::string Read(std::string_view stored) const {
    if (v_.model() != TokenizerModel::kBpe) return std::string(stored);
    // A half that is a token has its bytes ready.
    if (const TokenId id = v_.FindStored(stored); id != kNoToken) return std::string(v_.bytes(id));
    std::string out;
    for (size_t at = 0; at < stored.size();) {
      const Utf8Step step = DecodeUtf8(stored, at);
      const std::string_view one = stored.substr(at, step.length);
      const TokenId id = v_.FindStored(one);
      out.append(id == kNoToken ? one : v_.bytes(id));
      at += step.length;
    }
    return out;
  }

 private:
  const Vocabulary& v_;
};

bool After(const BpeMerger::Scratch::Candidate& a, const BpeMerger::Scratch::Candidate& b) { return a.order > b.order; }

}  // namespace

void EmitBytes(const Vocabulary& vocabulary, std::string_view bytes, std::vector<TokenId>* out) {
  for (const char c : bytes) {
    const TokenId id = vocabulary.byte_token(static_cast<uint8_t>(c));
    if (id != kNoToken) {
      out->push_back(id);
    } else if (vocabulary.model() != TokenizerModel::kBpe && vocabulary.unknown()) {
      // Byte-level vocabularies often name their end-of-text token as the unknown one: text must not be able to make that.
      out->push_back(*vocabulary.unknown());
    }
  }
}

absl::StatusOr<BpeMerger> BpeMerger::Create(const proto::ModelCard& card, const Vocabulary* vocabulary) {
  const auto& merges = card.vocabulary().merges();
  BpeMerger merger(vocabulary);
  merger.merges_.Reserve(static_cast<size_t>(merges.size()));
  const KeyReader keys(*vocabulary);
  std::unordered_map<std::string, uint32_t> virtual_ids;
  const auto base = static_cast<uint32_t>(vocabulary->size());
  const auto find = [&](const std::string& key) {
    if (const TokenId id = vocabulary->FindOrdinary(key); id != kNoToken) return id;
    if (virtual_ids.empty()) return kNoToken;
    const auto it = virtual_ids.find(key);
    return it == virtual_ids.end() ? kNoToken : it->second;
  };
  for (int rank = 0; rank < merges.size(); ++rank) {
    const std::string& text = merges[rank];
    const size_t space = text.find(' ', 1);
    if (space == std::string::npos || space + 1 >= text.size()) {
      return absl::InvalidArgumentError(fmt::format("model card: merge {} \"{}\" has no two halves with a space between", rank, text));
    }
    const std::string_view halves[2] = {std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1)};
    std::string key[2];
    uint32_t id[2];
    bool usable = true;
    for (int h = 0; h < 2; ++h) {
      key[h] = keys.Read(halves[h]);
      id[h] = find(key[h]);
      if (id[h] != kNoToken) continue;
      usable = false;  // a control token or a marker: no text can produce this half
      if (vocabulary->FindStored(halves[h]) == kNoToken) {
        return absl::InvalidArgumentError(fmt::format(
            "model card: merge {} \"{}\": \"{}\" is neither a token nor the result of an earlier merge", rank, text, halves[h]));
      }
    }
    if (!usable) continue;
    std::string whole = key[0] + key[1];
    uint32_t result = find(whole);
    if (result == kNoToken) {
      result = base + static_cast<uint32_t>(merger.virtual_.size());
      merger.virtual_.push_back({id[0], id[1]});
      virtual_ids.emplace(std::move(whole), result);
    }
    merger.merges_.Add(id[0], id[1], {static_cast<uint32_t>(rank), result});
  }
  return merger;
}

void BpeMerger::Encode(std::string_view piece, Scratch* scratch, std::vector<TokenId>* out, EncodeWork* work) const {
  if (piece.empty()) return;
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  const bool by_byte = vocabulary_->model() == TokenizerModel::kBpe;
  for (size_t at = 0; at < piece.size();) {
    const size_t length = by_byte ? 1 : DecodeUtf8(piece, at).length;
    const TokenId id = by_byte ? vocabulary_->byte_token(static_cast<uint8_t>(piece[at])) : vocabulary_->FindOrdinary(piece.substr(at, length));
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, static_cast<uint32_t>(at), static_cast<uint32_t>(at + length), index - 1, index + 1});
    at += length;
  }
  symbols.back().next = -1;

  uint64_t steps = symbols.size();
  const auto consider = [&](int32_t left) {
    if (left < 0) return;
    const int32_t right = symbols[left].next;
    if (right < 0) return;
    ++steps;
    const uint32_t left_id = symbols[left].id, right_id = symbols[right].id;
    const MergeTable::Merge merge = merges_.Find(left_id, right_id);
    if (merge.rank == UINT32_MAX) return;
    ++steps;
    heap.push_back({(uint64_t{merge.rank} << 32) | static_cast<uint32_t>(left), left_id, right_id});
    std::push_heap(heap.begin(), heap.end(), After);
  };
  for (int32_t i = 0; symbols[i].next >= 0; ++i) consider(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), After);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    const auto left = static_cast<int32_t>(best.order & UINT32_MAX);
    const int32_t right = symbols[left].next;
    // A symbol merged away keeps its place with an empty text; an entry whose symbols changed since is stale.
    if (symbols[left].begin == symbols[left].end || right < 0) continue;
    if (symbols[left].id != best.left_id || symbols[right].id != best.right_id) continue;
    symbols[left].id = merges_.Find(best.left_id, best.right_id).result;
    symbols[left].end = symbols[right].end;
    symbols[left].next = symbols[right].next;
    symbols[right].end = symbols[right].begin;
    if (symbols[left].next >= 0) symbols[symbols[left].next].previous = left;
    consider(symbols[left].previous);
    consider(left);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) Emit(piece, symbols[i], scratch, out);
  if (work != nullptr) work->steps += steps;
}

void BpeMerger::Emit(std::string_view piece, const Scratch::Symbol& symbol, Scratch* scratch, std::vector<TokenId>* out) const {
  if (symbol.id < vocabulary_->size()) {
    out->push_back(symbol.id);
  } else if (symbol.id == kNoToken) {
    EmitBytes(*vocabulary_, piece.substr(symbol.begin, symbol.end - symbol.begin), out);
  } else {
    // No token has this text: its halves do, or theirs.
    auto& parts = scratch->parts;
    parts.assign(1, symbol.id);
    while (!parts.empty()) {
      const uint32_t id = parts.back();
      parts.pop_back();
      if (id < vocabulary_->size()) {
        out->push_back(id);
      } else {
        const Parts halves = virtual_[id - vocabulary_->size()];
        parts.push_back(halves.right);
        parts.push_back(halves.left);
      }
    }
  }
}

}  // namespace holdfast::text
