#include "frontend/tools/tags.h"

#include "proto/base/check.h"

namespace holdfast::tools {

char Tags::Add(std::string_view text) {
  for (size_t i = 0; i < tags_.size(); ++i) {
    if (tags_[i].text == text) return static_cast<char>(0xF5 + i);
  }
  HF_CHECK(!text.empty() && tags_.size() < 11);
  TokenId token = vocabulary_.FindStored(text);
  // An ordinary token of that text is a way to spell it, not a marker.
  if (token != text::kNoToken && vocabulary_.IsOrdinary(token)) token = text::kNoToken;
  if (token == text::kNoToken) {
    starts_spelled_[static_cast<uint8_t>(text[0])] = true;
  } else {
    markers_.push_back(token);
  }
  tags_.push_back({std::string(text), token});
  return static_cast<char>(0xF5 + tags_.size() - 1);
}

char Tags::Find(TokenId id) const {
  for (size_t i = 0; i < tags_.size(); ++i) {
    if (tags_[i].token == id) return static_cast<char>(0xF5 + i);
  }
  return kNoSymbol;
}

void Tags::Expand(std::string_view symbols, std::string* out) const {
  for (const char c : symbols) {
    if (IsSymbol(c) && Index(c) < tags_.size()) {
      out->append(text(c));
    } else {
      out->push_back(c);
    }
  }
}

std::string Tags::FromPrompt(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    char symbol = kNoSymbol;
    for (size_t i = 0; i < tags_.size(); ++i) {
      if (tags_[i].text.size() > length && text.substr(at).starts_with(tags_[i].text)) {
        length = tags_[i].text.size();
        symbol = static_cast<char>(0xF5 + i);
      }
    }
    if (length != 0) {
      out.push_back(symbol);
      at += length;
    } else {
      out.push_back(IsSymbol(text[at]) ? '?' : text[at]);
      ++at;
    }
  }
  return out;
}

Tags::Match Tags::MatchSpelled(std::string_view s, char* symbol) const {
  Match best = Match::kNone;
  for (size_t i = 0; i < tags_.size(); ++i) {
    if (tags_[i].token != text::kNoToken || !std::string_view(tags_[i].text).starts_with(s)) continue;
    if (tags_[i].text.size() > s.size()) {
      if (best == Match::kNone) best = Match::kPrefix;
    } else {
      *symbol = static_cast<char>(0xF5 + i);
      best = Match::kWhole;  // no tag of a format begins with another one
    }
  }
  return best;
}

}  // namespace holdfast::tools
