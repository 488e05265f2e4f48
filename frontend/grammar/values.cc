#include "frontend/grammar/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "frontend/text/utf8.h"
#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

constexpr uint32_t kMaxSpace = 16;
constexpr uint32_t kMaxDigits = 18;      // every integer of so many digits is an int64
constexpr uint32_t kMaxExponent = 2;

// What Once is asked for.
enum What : uint32_t { kSpace, kAnyString, kAnyChar, kAnyChars, kAnyEscape, kNumber, kInteger, kAnyValue, kAnyObject, kAnyArray };

std::string_view ShortEscape(uint32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return {};
  }
}

}  // namespace

bool Values::NeedsEscape(uint32_t c) const { return c < 0x20 || c == '"' || c == '\\' || (c == '<' && style_.no_close_tags); }

Node Values::Once(uint32_t what, uint32_t n, const std::function<Node()>& make) {
  const uint64_t key = uint64_t{style_.quote} << 32 | uint64_t{n} << 16 | what << 3 | (style_.no_close_tags ? 4u : 0u) | (style_.any_whitespace ? 2u : 0u) |
                       (json() ? 1u : 0u);
  return shared_(key, make);
}

Node Values::Byte(char lo, char hi) {
  const CodePointRange range{static_cast<uint8_t>(lo), static_cast<uint8_t>(hi)};
  return b_.CodePoints(std::span(&range, 1));
}

Node Values::Digits(uint32_t min, uint32_t max) { return b_.Repeat(Byte('0', '9'), min, max); }

Node Values::Space() {
  if (!json() || !style_.any_whitespace) return b_.Empty();
  return Once(kSpace, 0, [this] {
    const CodePointRange blanks[] = {{' ', ' '}, {'\n', '\n'}, {'\r', '\r'}, {'\t', '\t'}};
    return b_.Repeat(b_.CodePoints(Normalise(blanks)), 0, kMaxSpace);
  });
}

Node Values::Open(char bracket) { return b_.Seq({b_.Literal(std::string_view(&bracket, 1)), Space()}); }

Node Values::Close(char bracket) { return b_.Seq({Space(), b_.Literal(std::string_view(&bracket, 1))}); }

Node Values::Comma() {
  if (!json()) return b_.Literal(",");
  if (style_.any_whitespace) return b_.Seq({Space(), b_.Literal(","), Space()});
  return b_.Seq({b_.Literal(","), b_.Optional(b_.Literal(" "))});
}

Node Values::Chars(std::span<const CodePointRange> normal) {
  if (!json()) return b_.CodePoints(normal);
  std::vector<CodePointRange> plain;
  std::vector<Node> choices;
  for (auto [lo, hi] : normal) {
    for (uint32_t c = lo; c <= std::min(hi, uint32_t{'\\'}); ++c) {
      if (!NeedsEscape(c)) continue;
      const std::string_view brief = ShortEscape(c);
      choices.push_back(brief.empty() ? b_.Literal(fmt::format("\\u{:04x}", c)) : b_.Literal(brief));
    }
    const uint32_t angle = NeedsEscape('<') ? '<' : '\\';  // where it needs none, the range behind it is empty
    for (const CodePointRange& safe : {CodePointRange{0x20, '"' - 1}, CodePointRange{'"' + 1, angle - 1}, CodePointRange{angle + 1, '\\' - 1},
                                       CodePointRange{'\\' + 1, kMaxCodePoint}}) {
      if (safe.first > safe.second) continue;
      const uint32_t from = std::max(lo, safe.first), to = std::min(hi, safe.second);
      if (from <= to) plain.push_back({from, to});
    }
  }
  if (!plain.empty()) choices.push_back(b_.CodePoints(plain));
  return b_.Choice(choices);
}

// What stands for a character behind a backslash.
Node Values::AnyEscape() {
  return Once(kAnyEscape, 0, [this] {
    const CodePointRange brief[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}};
    const CodePointRange hex_ranges[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    const CodePointRange not_d_ranges[] = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
    const CodePointRange high_ranges[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}};
    const CodePointRange low_ranges[] = {{'C', 'F'}, {'c', 'f'}};
    const CodePointRange d_ranges[] = {{'D', 'D'}, {'d', 'd'}};
    const Node hex = b_.CodePoints(hex_ranges);
    const Node d = b_.CodePoints(d_ranges);
    // A code unit that is no surrogate, or a pair of them.
    const Node unit = b_.Choice({b_.Seq({b_.CodePoints(not_d_ranges), hex, hex, hex}), b_.Seq({d, Byte('0', '7'), hex, hex})});
    const Node pair = b_.Seq({d, b_.CodePoints(high_ranges), hex, hex, b_.Literal("\\u"), d, b_.CodePoints(low_ranges), hex, hex});
    return b_.Choice({b_.Seq({b_.Literal("\\"), b_.CodePoints(Normalise(brief))}), b_.Seq({b_.Literal("\\u"), b_.Choice({unit, pair})})});
  });
}

Node Values::AnyChar() {
  return Once(kAnyChar, 0, [this] {
    if (!json()) return b_.CodePoints({}, true);
    const uint32_t also = NeedsEscape('<') ? '<' : '\\';
    const CodePointRange refused[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {also, also}};
    return b_.Choice({b_.CodePoints(Normalise(refused), true), AnyEscape()});
  });
}

Node Values::Text(std::string_view text) {
  if (!json()) return b_.Literal(text);
  std::string out;
  for (const char ch : text) {
    const auto c = static_cast<uint8_t>(ch);
    if (c == '/' && style_.no_close_tags && out.ends_with('<')) {
      out += "\\/";
    } else if (c == '<' || !NeedsEscape(c)) {
      out += ch;
    } else if (const std::string_view brief = ShortEscape(c); !brief.empty()) {
      out += brief;
    } else {
      out += fmt::format("\\u{:04x}", c);
    }
  }
  return b_.Literal(out);
}

Node Values::Quoted(Node content) {
  const Node mark = json() ? b_.Literal("\"") : b_.Special(style_.quote);
  return b_.Seq({mark, content, mark});
}

Node Values::AnyChars() {
  const Node repeated = b_.Repeat(AnyChar(), 0, Builder::kNoLimit);
  if (!json() || !style_.no_close_tags) return repeated;
  // State 1: behind a '<', where no plain slash may follow.
  return Once(kAnyChars, 0, [this] {
    const CodePointRange slash[] = {{'/', '/'}};
    const CodePointRange refused[] = {{0, 0x1F}, {'"', '"'}, {'/', '/'}, {'<', '<'}, {'\\', '\\'}};
    const Node other = b_.Choice({b_.CodePoints(Normalise(refused), true), AnyEscape()});
    const Node angle = b_.Literal("<");
    const Builder::Edge edges[] = {{0, other, 0}, {0, b_.CodePoints(slash), 0}, {0, angle, 1}, {1, other, 0}, {1, angle, 1}};
    const uint32_t finals[] = {0, 1};
    return b_.Graph(2, edges, finals);
  });
}

Node Values::AnyString() {
  return Once(kAnyString, 0, [this] { return Quoted(AnyChars()); });
}

Node Values::Integer() {
  return Once(kInteger, 0, [this] {
    return b_.Seq({b_.Optional(b_.Literal("-")), b_.Choice({b_.Literal("0"), b_.Seq({Byte('1', '9'), Digits(0, kMaxDigits - 1)})})});
  });
}

Node Values::Number() {
  return Once(kNumber, 0, [this] {
    const CodePointRange e[] = {{'E', 'E'}, {'e', 'e'}}, sign[] = {{'+', '+'}, {'-', '-'}};
    return b_.Seq({Integer(), b_.Optional(b_.Seq({b_.Literal("."), Digits(1, kMaxDigits)})),
                   b_.Optional(b_.Seq({b_.CodePoints(e), b_.Optional(b_.CodePoints(sign)), Digits(1, kMaxExponent)}))});
  });
}

Node Values::Constant(const text::JsonValue& value) {
  switch (value.kind()) {
    case text::JsonValue::Kind::kString: return Quoted(Text(value.AsString()));
    case text::JsonValue::Kind::kArray: {
      std::vector<Node> parts{Open('[')};
      for (const text::JsonValue& item : value.AsArray()) {
        if (parts.size() > 1) parts.push_back(Comma());
        parts.push_back(Constant(item));
      }
      parts.push_back(value.AsArray().empty() ? b_.Literal("]") : Close(']'));
      return b_.Seq(parts);
    }
    case text::JsonValue::Kind::kObject: {
      std::vector<Node> parts{Open('{')};
      for (const auto& [name, member] : value.AsObject()) {
        if (parts.size() > 1) parts.push_back(Comma());
        parts.push_back(Key(name));
        parts.push_back(Constant(member));
      }
      parts.push_back(value.AsObject().empty() ? b_.Literal("}") : Close('}'));
      return b_.Seq(parts);
    }
    default: return b_.Literal(value.Dump());
  }
}

Node Values::KeyOf(Node content) {
  if (!json()) return b_.Seq({content, b_.Literal(":")});
  const Node after = style_.any_whitespace ? Space() : b_.Optional(b_.Literal(" "));
  return b_.Seq({b_.Literal("\""), content, b_.Literal("\""), Space(), b_.Literal(":"), after});
}

std::vector<CodePointRange> Values::KeyCharacters() const {
  if (json()) return {{0, 0xD7FF}, {0xE000, kMaxCodePoint}};
  return Normalise(std::vector<CodePointRange>{{'$', '$'}, {'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0xA1, kMaxCodePoint}});
}

Node Values::Key(std::string_view name) {
  const bool bare = !json() && !name.empty() && name.find_first_of(":{}[](),<\"'=") == std::string_view::npos && name.front() != ' ' && name.back() != ' ' &&
                    std::all_of(name.begin(), name.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x20; });
  if (json() || bare) return KeyOf(Text(name));
  return b_.Seq({Quoted(Text(name)), b_.Literal(":")});
}

Node Values::OtherKey(std::span<const std::string> taken) {
  // The tree of all taken names; a key leaves it at some character, or ends where no name does. Names are compared character by character,
  // and a character has one spelling here.
  struct Branch {
    std::map<uint32_t, uint32_t> next;
    bool taken = false;
  };
  std::vector<Branch> tree(1);
  for (const std::string& name : taken) {
    uint32_t at = 0;
    for (size_t i = 0; i < name.size();) {
      const text::Utf8Step step = text::DecodeUtf8(name, i);
      i += step.length;
      const auto [it, fresh] = tree[at].next.emplace(step.code_point, static_cast<uint32_t>(tree.size()));
      at = it->second;
      if (fresh) tree.emplace_back();
    }
    tree[at].taken = true;
  }
  const std::vector<CodePointRange> all = KeyCharacters();
  const auto outside = static_cast<uint32_t>(tree.size());
  std::vector<Builder::Edge> edges;
  std::vector<uint32_t> finals{outside};
  for (uint32_t at = 0; at < tree.size(); ++at) {
    if (!b_.status().ok()) return b_.Never();  // too many nodes: Build says so
    std::vector<CodePointRange> inside;
    for (const auto& [c, to] : tree[at].next) {
      inside.push_back({c, c});
      const CodePointRange one{c, c};
      if (Contains(all, c)) edges.push_back({at, Chars(std::span(&one, 1)), to});
    }
    edges.push_back({at, Chars(Intersect(all, Complement(Normalise(inside)))), outside});
    if (!tree[at].taken && at != 0) finals.push_back(at);
  }
  edges.push_back({outside, Chars(all), outside});
  return KeyOf(b_.Graph(outside + 1, edges, finals));
}

Node Values::AnyObject(uint32_t depth) {
  return Once(kAnyObject, depth, [this, depth] {
    if (depth >= kAnyDepth) return b_.Seq({b_.Literal("{"), b_.Literal("}")});
    const Node key = json() ? KeyOf(AnyChars()) : KeyOf(b_.Repeat(Chars(KeyCharacters()), 1, Builder::kNoLimit));
    const Builder::Edge edges[] = {{0, Open('{'), 1}, {0, b_.Literal("{}"), 3}, {1, b_.Seq({key, AnyValue(depth + 1)}), 2}, {2, Comma(), 1}, {2, Close('}'), 3}};
    const uint32_t finals[] = {3};
    return b_.Graph(4, edges, finals);
  });
}

Node Values::AnyArray(uint32_t depth) {
  return Once(kAnyArray, depth, [this, depth] {
    if (depth >= kAnyDepth) return b_.Seq({b_.Literal("["), b_.Literal("]")});
    const Builder::Edge edges[] = {{0, Open('['), 1}, {0, b_.Literal("[]"), 3}, {1, AnyValue(depth + 1), 2}, {2, Comma(), 1}, {2, Close(']'), 3}};
    const uint32_t finals[] = {3};
    return b_.Graph(4, edges, finals);
  });
}

Node Values::AnyValue(uint32_t depth) {
  return Once(kAnyValue, depth, [this, depth] {
    std::vector<Node> choices{AnyString(), Number(), Bool(), Null()};
    if (depth <= kAnyDepth) {
      choices.push_back(AnyObject(depth));
      choices.push_back(AnyArray(depth));
    }
    return b_.Choice(choices);
  });
}

}  // namespace holdfast::grammar
