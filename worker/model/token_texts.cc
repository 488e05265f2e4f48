#include "worker/model/token_texts.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace holdfast::model {
namespace {

enum Type { kUndefined = 0, kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

// The next character and its length; length 0: no valid character.
std::pair<char32_t, size_t> Next(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t c = at(0);
  const size_t n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
  if (n == 0 || n > s.size()) return {0, 0};
  char32_t out = n == 1 ? c : c & (0x7F >> n);
  for (size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {0, 0};
    out = out << 6 | (at(i) & 0x3F);
  }
  return {out, n};
}

// GPT-2 writes bytes that are printable in Latin-1 as themselves and the others as U+0100 and up, in order.
class Gpt2Alphabet final {
 public:
  Gpt2Alphabet() {
    byte_of_.fill(-1);
    size_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      byte_of_[printable ? b : next++] = static_cast<int16_t>(b);
    }
  }
  // Empty when the text is not written in the alphabet.
  std::string Decode(std::string_view stored) const {
    std::string out;
    while (!stored.empty()) {
      const auto [c, length] = Next(stored);
      if (length == 0 || c >= byte_of_.size() || byte_of_[c] < 0) return {};
      out.push_back(static_cast<char>(byte_of_[c]));
      stored.remove_prefix(length);
    }
    return out;
  }

 private:
  std::array<int16_t, 256 + 68> byte_of_{};
};

bool IsBlank(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000 || c == 0x2581;
}

bool OnlyBlanks(std::string_view s) {
  if (s.empty()) return false;
  while (!s.empty()) {
    const auto [c, length] = Next(s);
    if (length == 0 || !IsBlank(c)) return false;
    s.remove_prefix(length);
  }
  return true;
}

std::string WithSpaces(std::string_view s) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = s.find(kSpaceSymbol, at)) != std::string_view::npos; at = hit + kSpaceSymbol.size()) {
    out.append(s.substr(at, hit - at)).push_back(' ');
  }
  return out.append(s.substr(at));
}

int HexDigit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

std::string ByteToken(std::string_view s) {
  if (s.size() != 6 || !s.starts_with("<0x") || s[5] != '>') return {};
  const int high = HexDigit(s[3]), low = HexDigit(s[4]);
  return high < 0 || low < 0 ? std::string() : std::string(1, static_cast<char>(high * 16 + low));
}

}  // namespace

std::vector<std::string> TokenTexts(const proto::ModelCard& card) {
  const proto::Vocabulary& v = card.vocabulary();
  std::vector<std::string> out(card.vocab_size());
  const bool byte_level = v.model() == "gpt2";
  const Gpt2Alphabet alphabet;
  for (int i = 0; i < v.tokens_size() && static_cast<size_t>(i) < out.size(); ++i) {
    const int type = i < v.types_size() ? v.types(i) : kNormal;
    const std::string& stored = v.tokens(i);
    std::string& text = out[static_cast<size_t>(i)];
    if (type == kUserDefined) {
      if (OnlyBlanks(stored)) text = byte_level ? stored : WithSpaces(stored);
    } else if (type == kByte && !byte_level) {
      text = ByteToken(stored);
    } else if (type == kNormal || type == kUndefined || (byte_level && type == kByte)) {
      text = byte_level ? alphabet.Decode(stored) : WithSpaces(stored);
    }
  }
  return out;
}

}  // namespace holdfast::model
