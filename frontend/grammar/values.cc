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
enum What : uint32_t { kSpace, kAnyString, kAnyChar, kNumber, kInteger, kAnyValue, kAnyObject, kAnyArray };

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

bool NeedsEscape(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

}  // namespace

Node Values::Once(uint32_t what, uint32_t n, const std::function<Node()>& make) {
  const uint64_t key = uint64_t{style_.quote} << 32 | uint64_t{n} << 16 | what << 2 | (style_.any_whitespace ? 2u : 0u) | (json() ? 1u : 0u);
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
    for (const CodePointRange& safe : {CodePointRange{0x20, '"' - 1}, CodePointRange{'"' + 1, '\\' - 1}, CodePointRange{'\\' + 1, kMaxCodePoint}}) {
      const uint32_t from = std::max(lo, safe.first), to = std::min(hi, safe.second);
      if (from <= to) plain.push_back({from, to});
    }
  }
  if (!plain.empty()) choices.push_back(b_.CodePoints(plain));
  return b_.Choice(choices);
}

Node Values::AnyChar() {
  return Once(kAnyChar, 0, [this] {
    if (!json()) return b_.CodePoints({}, true);
    const CodePointRange refused[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
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
    return b_.Choice({b_.CodePoints(Normalise(refused), true), b_.Seq({b_.Literal("\\"), b_.CodePoints(Normalise(brief))}),
                      b_.Seq({b_.Literal("\\u"), b_.Choice({unit, pair})})});
  });
}

Node Values::Text(std::string_view text) {
  if (!json()) return b_.Literal(text);
  std::string out;
  for (const char ch : text) {
    const auto c = static_cast<uint8_t>(ch);
    if (!NeedsEscape(c)) {
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

Node Values::AnyString() {
  return Once(kAnyString, 0, [this] { return Quoted(b_.Repeat(AnyChar(), 0, Builder::kNoLimit)); });
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

absl::StatusOr<Node> Values::Constant(const text::JsonValue& value) {
  switch (value.kind()) {
    case text::JsonValue::Kind::kString: return Quoted(Text(value.AsString()));
    case text::JsonValue::Kind::kArray: {
      std::vector<Node> parts{Open('[')};
      for (const text::JsonValue& item : value.AsArray()) {
        if (parts.size() > 1) parts.push_back(Comma());
        HF_ASSIGN_OR_RETURN(const Node node, Constant(item));
        parts.push_back(node);
      }
      parts.push_back(value.AsArray().empty() ? b_.Literal("]") : Close(']'));
      return b_.Seq(parts);
    }
    case text::JsonValue::Kind::kObject: {
      std::vector<Node> parts{Open('{')};
      for (const auto& [name, member] : value.AsObject()) {
        if (parts.size() > 1) parts.push_back(Comma());
        HF_ASSIGN_OR_RETURN(const Node key, Key(name));
        HF_ASSIGN_OR_RETURN(const Node node, Constant(member));
        parts.push_back(key);
        parts.push_back(node);
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

absl::StatusOr<Node> Values::Key(std::string_view name) {
  if (!json()) {
    // What the reader of such a call would take for the end of the key, or for a string.
    const bool bad = name.empty() || name.find_first_of(":{}[],<\"") != std::string_view::npos || name.front() == ' ' || name.back() == ' ' ||
                     std::any_of(name.begin(), name.end(), [](char c) { return static_cast<uint8_t>(c) < 0x20; });
    if (bad) {
      return absl::InvalidArgumentError(fmt::format("the property name \"{}\" cannot be written in this model's tool calls (no : , quotes or brackets)", name));
    }
  }
  return KeyOf(Text(name));
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
    const Node key = json() ? KeyOf(b_.Repeat(AnyChar(), 0, Builder::kNoLimit)) : KeyOf(b_.Repeat(Chars(KeyCharacters()), 1, Builder::kNoLimit));
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
