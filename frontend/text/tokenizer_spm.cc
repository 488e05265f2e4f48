#include "frontend/text/tokenizer_spm.h"

#include <algorithm>

#include "frontend/text/utf8.h"

namespace holdfast::text {
namespace {

struct Symbol {
  uint32_t begin, end;  // empty when merged into its left neighbour
  int32_t previous, next;
};

struct Candidate {
  float score;
  int32_t left;
  uint32_t size;  // bytes of both symbols: another size now means that the entry is stale
};

bool Worse(const Candidate& a, const Candidate& b) { return a.score < b.score || (a.score == b.score && a.left > b.left); }

}  // namespace

void EncodeSpm(const Vocabulary& vocabulary, std::string_view text, std::vector<TokenId>* out, EncodeWork* work) {
  if (text.empty()) return;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  for (size_t at = 0; at < text.size();) {
    const size_t length = DecodeUtf8(text, at).length;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + length), index - 1, index + 1});
    at += length;
  }
  symbols.back().next = -1;

  uint64_t steps = symbols.size();
  const auto consider = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    ++steps;
    const uint32_t size = symbols[symbols[left].next].end - symbols[left].begin;
    const TokenId id = vocabulary.FindOrdinary(text.substr(symbols[left].begin, size));
    if (id == kNoToken) return;
    ++steps;
    heap.push_back({vocabulary.score(id), left, size});
    std::push_heap(heap.begin(), heap.end(), Worse);
  };
  for (int32_t i = 0; symbols[i].next >= 0; ++i) consider(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Worse);
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    if (left.begin == left.end || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (right.end - left.begin != best.size) continue;
    left.end = right.end;
    left.next = right.next;
    right.end = right.begin;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    const std::string_view symbol = text.substr(symbols[i].begin, symbols[i].end - symbols[i].begin);
    if (const TokenId id = vocabulary.FindOrdinary(symbol); id != kNoToken) {
      out->push_back(id);
    } else {
      EmitBytes(vocabulary, symbol, out);
    }
  }
  if (work != nullptr) work->steps += steps;
}

}  // namespace holdfast::text
