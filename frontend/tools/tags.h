#pragma once
// The tags of a format ("<tool_call>", "<|channel>", ...) and how a parser sees them: each is one symbol, whether the vocabulary has a
// special token for it or the model spells it with ordinary tokens. A tag that has a special token is a tag only as that token: the same
// characters out of ordinary tokens are text.
//
// A symbol is one byte that UTF-8 never contains (0xF5..0xFF), so text and tags are one byte string. Output text never holds these bytes;
// where broken input does, they become U+FFFD.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/vocabulary.h"
#include "frontend/tools/format.h"

namespace holdfast::tools {

// No tag: compares unequal to every character of a symbol string.
inline constexpr char kNoSymbol = '\xC0';

class Tags final {
 public:
  explicit Tags(const text::Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // The symbol of this tag; the same text gives the same symbol. At most 11 different tags.
  char Add(std::string_view text);

  static bool IsSymbol(char c) { return static_cast<uint8_t>(c) >= 0xF5; }
  std::string_view text(char symbol) const { return tags_[Index(symbol)].text; }
  // The special token, or kNoToken for a tag that is spelled as text.
  TokenId token(char symbol) const { return tags_[Index(symbol)].token; }
  bool IsSpelled(char symbol) const { return token(symbol) == text::kNoToken; }
  // The symbol of a special token, or kNoSymbol.
  char Find(TokenId id) const;
  std::span<const TokenId> markers() const { return markers_; }
  size_t size() const { return tags_.size(); }

  // Appends text with its symbols written out.
  void Expand(std::string_view symbols, std::string* out) const;
  // Text as a symbol string, every tag recognised by its characters: for prompts, where the tags are known to be genuine.
  std::string FromPrompt(std::string_view text) const;

  // Feeds output pieces to `sink(char)` as a symbol string; what may still become a spelled tag is held back. The result depends on the
  // text and the markers only, not on the pieces.
  template <typename Sink>
  void Push(const Piece& piece, std::string* held, Sink&& sink) const;
  template <typename Sink>
  void Flush(std::string* held, Sink&& sink) const {
    const std::string rest = std::move(*held);
    held->clear();
    for (const char c : rest) sink(c);
  }

 private:
  struct Tag {
    std::string text;
    TokenId token;
  };
  static size_t Index(char symbol) { return static_cast<uint8_t>(symbol) - 0xF5u; }
  enum class Match : uint8_t { kNone, kPrefix, kWhole };
  Match MatchSpelled(std::string_view s, char* symbol) const;

  const text::Vocabulary& vocabulary_;
  std::vector<Tag> tags_;
  std::vector<TokenId> markers_;
  std::array<bool, 256> starts_spelled_{};  // first bytes of spelled tags
};

template <typename Sink>
void Tags::Push(const Piece& piece, std::string* held, Sink&& sink) const {
  if (piece.marker != text::kNoToken) {
    const char symbol = Find(piece.marker);
    if (symbol != kNoSymbol) {
      Flush(held, sink);
      sink(symbol);
      return;
    }
  }
  for (const char c : piece.text) {
    if (IsSymbol(c)) {
      Flush(held, sink);
      for (const char r : std::string_view("\xEF\xBF\xBD")) sink(r);
      continue;
    }
    if (held->empty() && !starts_spelled_[static_cast<uint8_t>(c)]) {
      sink(c);
      continue;
    }
    held->push_back(c);
    while (!held->empty()) {
      char symbol = kNoSymbol;
      const Match match = MatchSpelled(*held, &symbol);
      if (match == Match::kPrefix) break;
      if (match == Match::kWhole) {
        held->clear();
        sink(symbol);
        break;
      }
      const char first = held->front();
      held->erase(0, 1);
      sink(first);
    }
  }
}

}  // namespace holdfast::tools
