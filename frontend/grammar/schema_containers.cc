// Arrays and objects of a schema.
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>

#include "frontend/grammar/char_automaton.h"
#include "frontend/grammar/regex.h"
#include "frontend/grammar/schema.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

using text::JsonValue;

constexpr uint64_t kMaxUnique = 20'000;
constexpr size_t kMaxTaken = 100'000;

uint32_t Bound(const JsonValue& schema, std::string_view key, uint32_t otherwise) {
  const JsonValue* v = schema.Find(key);
  return v == nullptr ? otherwise : static_cast<uint32_t>(std::min(v->AsDouble(), 4e9));
}

bool IsFalse(const JsonValue* v) { return v != nullptr && v->is_bool() && !v->AsBool(); }

}  // namespace

absl::StatusOr<Node> SchemaCompiler::Array(const JsonValue& schema, const std::string& path, int depth) {
  uint32_t min = Bound(schema, "minItems", 0), max = Bound(schema, "maxItems", Builder::kNoLimit);
  const JsonValue* items = schema.Find("items");
  const JsonValue* prefix = schema.Find("prefixItems");
  std::string prefix_name = "prefixItems";
  if (items != nullptr && items->is_array()) {  // how drafts before 2020-12 write it
    if (prefix != nullptr) return SchemaError(path + ".items", "must be a schema beside prefixItems");
    prefix = items;
    prefix_name = "items";
    items = schema.Find("additionalItems");
  } else if (schema.Find("additionalItems") != nullptr) {
    return SchemaError(path + ".additionalItems", "has no meaning without an array of items");
  }
  const auto fixed = static_cast<uint32_t>(prefix == nullptr ? 0 : prefix->AsArray().size());
  if (IsFalse(items)) max = std::min(max, fixed);
  if (const JsonValue* unique = schema.Find("uniqueItems"); unique != nullptr && unique->AsBool() && max > 1) {
    if (fixed == 0 && items != nullptr && items->is_object()) {
      HF_ASSIGN_OR_RETURN(const auto alternatives, algebra_.Expand(*items, path + ".items"));
      const JsonValue* values = alternatives.size() == 1 ? alternatives[0].Find("enum") : nullptr;
      if (values != nullptr) return UniqueArray(values->AsArray(), min, max, path);
    }
    return SchemaError(path + ".uniqueItems", "is supported for items of an enum only");
  }
  if (min > max) return SchemaError(path, fmt::format("minItems {} is greater than the {} items there can be", min, max));
  const uint32_t heads = std::min(fixed, max);
  std::vector<Node> head;
  for (uint32_t i = 0; i < heads; ++i) {
    HF_ASSIGN_OR_RETURN(const Node item, Any(prefix->AsArray()[i], fmt::format("{}.{}[{}]", path, prefix_name, i), depth + 1));
    head.push_back(item);
  }
  Node rest = b_.Never();
  if (max > fixed) {
    const std::string at = path + (prefix_name == "items" ? ".additionalItems" : ".items");
    HF_ASSIGN_OR_RETURN(rest, items == nullptr ? absl::StatusOr<Node>(v_.AnyValue()) : Any(*items, at, depth + 1));
  }
  // State i: so many items are there; an array of none has its own way.
  std::vector<Builder::Edge> edges;
  const uint32_t done = heads + 3, after_open = heads + 1, comma = heads + 2;
  std::vector<Node> open_close;
  edges.push_back({0, v_.Open('['), after_open});
  if (min == 0) edges.push_back({0, b_.Literal("[]"), done});
  for (uint32_t i = 0; i < heads; ++i) {
    edges.push_back({i == 0 ? after_open : i, i == 0 ? head[i] : b_.Seq({v_.Comma(), head[i]}), i + 1});
    if (i + 1 >= min) edges.push_back({i + 1, v_.Close(']'), done});
  }
  const uint32_t more_min = min > heads ? min - heads : 0;
  const uint32_t more_max = max == Builder::kNoLimit ? max : max - heads;
  if (more_max > 0 && rest.id != b_.Never().id) {
    if (heads == 0) {
      const Node tail = b_.Repeat(b_.Seq({v_.Comma(), rest}), more_min > 0 ? more_min - 1 : 0, more_max == Builder::kNoLimit ? more_max : more_max - 1);
      edges.push_back({after_open, b_.Seq({rest, tail, v_.Close(']')}), done});
    } else {
      edges.push_back({heads, b_.Repeat(b_.Seq({v_.Comma(), rest}), std::max(more_min, 1u), more_max), comma});
      edges.push_back({comma, v_.Close(']'), done});
    }
  }
  const uint32_t finals[] = {done};
  return b_.Graph(done + 1, edges, finals);
}

// The values in the order of the enum, each at most once: every such array is unique.
absl::StatusOr<Node> SchemaCompiler::UniqueArray(const JsonValue::Array& values, uint32_t min, uint32_t max, const std::string& path) {
  // Each value is compared with those before it.
  if (uint64_t{values.size()} * values.size() > 64 * kMaxUnique) return SchemaError(path + ".uniqueItems", "is too large for an enum of so many values");
  std::vector<Node> items;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::any_of(values.begin(), values.begin() + static_cast<ptrdiff_t>(i), [&](const JsonValue& v) { return SameValue(v, values[i]); })) continue;
    items.push_back(v_.Constant(values[i]));
  }
  const auto n = static_cast<uint32_t>(items.size());
  max = std::min(max, n);
  if (min > max) return SchemaError(path, fmt::format("minItems {} cannot be reached with {} different items", min, n));
  // Counts matter only up to max, or up to min where max is no bound.
  const uint32_t counts = max < n ? max : min;
  if (uint64_t{n + 1} * (counts + 1) * 2 > kMaxUnique) return SchemaError(path + ".uniqueItems", "is too large with these bounds");
  const auto state = [&](uint32_t i, uint32_t count, bool comma) { return 1 + (i * (counts + 1) + count) * 2 + (comma ? 1 : 0); };
  const uint32_t done = state(n, counts, true) + 1;
  std::vector<Builder::Edge> edges{{0, v_.Open('['), state(0, 0, true)}};
  if (min == 0) edges.push_back({0, b_.Literal("[]"), done});
  for (uint32_t i = 0; i <= n; ++i) {
    for (uint32_t c = 0; c <= counts; ++c) {
      // Behind an item: another one, or the end. Before an item: this value, or a later one.
      if (c > 0 || counts == 0) {
        edges.push_back({state(i, c, false), v_.Comma(), state(i, c, true)});
        if (c >= min) edges.push_back({state(i, c, false), v_.Close(']'), done});
      }
      if (i == n || (c == counts && max < n)) continue;
      edges.push_back({state(i, c, true), items[i], state(i + 1, std::min(c + 1, counts), false)});
      edges.push_back({state(i, c, true), b_.Empty(), state(i + 1, c, true)});
    }
  }
  const uint32_t finals[] = {done};
  return b_.Graph(done + 1, edges, finals);
}

absl::StatusOr<std::optional<Node>> SchemaCompiler::OtherMember(const JsonValue& schema, std::span<const std::string> taken, bool named,
                                                                const std::string& path, int depth) {
  const JsonValue* extra = schema.Find("additionalProperties");
  const JsonValue* patterns = schema.Find("patternProperties");
  const JsonValue* names = schema.Find("propertyNames");
  const SpellClass spell = [this](std::span<const CodePointRange> ranges) {
    const auto allowed = v_.KeyCharacters();
    return v_.Chars(Intersect(ranges, allowed));
  };
  if (patterns != nullptr && !patterns->AsObject().empty()) {
    if (names != nullptr) return SchemaError(path + ".propertyNames", "is not supported beside patternProperties");
    if (patterns->AsObject().size() > 1) return SchemaError(path + ".patternProperties", "is supported with one pattern only");
    const auto& [pattern, value] = patterns->AsObject()[0];
    const std::string at = fmt::format("{}.patternProperties[\"{}\"]", path, pattern);
    HF_ASSIGN_OR_RETURN(const Regex regex, Regex::Parse(pattern, Regex::Mode::kSearch, at));
    const std::vector<char32_t> characters = CharactersOf(taken);
    HF_ASSIGN_OR_RETURN(const CharAutomaton automaton, CharAutomaton::Create(regex, characters, at, work_));
    for (const std::string& name : taken) {
      if (automaton.Matches(name)) return SchemaError(at, fmt::format("matches the property \"{}\" too; the two cannot be combined", name));
    }
    HF_ASSIGN_OR_RETURN(const Node node, Any(value, at, depth + 1));
    // Names that are taken do not match anyhow; the empty one cannot be a bare key.
    HF_ASSIGN_OR_RETURN(const CharAutomaton usable, automaton.WithLength(v_.json() ? 0 : 1, Builder::kNoLimit, at, work_));
    return std::optional<Node>(b_.Seq({v_.KeyOf(usable.ToNode(b_, spell)), node}));
  }
  if (IsFalse(extra) || (extra == nullptr && named)) return std::optional<Node>();
  // A key that is none of these is told from them character by character.
  size_t bytes = 0;
  for (const std::string& name : taken) bytes += name.size();
  if (bytes > kMaxTaken) {
    return SchemaError(path + ".additionalProperties", fmt::format("is not supported beside properties whose names have {} bytes together; {} are", bytes, kMaxTaken));
  }
  const std::string at = path + ".additionalProperties";
  HF_ASSIGN_OR_RETURN(const Node node, extra == nullptr ? absl::StatusOr<Node>(v_.AnyValue()) : Any(*extra, at, depth + 1));
  if (names == nullptr) return std::optional<Node>(b_.Seq({v_.OtherKey(taken), node}));
  if (!taken.empty()) return SchemaError(path + ".propertyNames", "is not supported beside properties");
  HF_RETURN_IF_ERROR(SchemaAlgebra::CheckKeywords(*names, path + ".propertyNames"));
  if (names->is_bool()) return names->AsBool() ? std::optional<Node>(b_.Seq({v_.OtherKey(taken), node})) : std::optional<Node>();
  HF_ASSIGN_OR_RETURN(const auto alternatives, algebra_.Expand(*names, path + ".propertyNames"));
  std::vector<Node> keys;
  for (const JsonValue& flat : alternatives) {
    if (const JsonValue* values = flat.Find("enum"); values != nullptr) {
      for (const JsonValue& name : values->AsArray()) {
        if (!name.is_string() || algebra_.Rejects(flat, name)) continue;
        keys.push_back(v_.Key(name.AsString()));
      }
      continue;
    }
    if ((SchemaAlgebra::GeneratedTypes(flat) & kStringType) == 0) continue;
    if (!v_.json()) return SchemaError(path + ".propertyNames", "is supported with an enum only in this model's tool calls");
    HF_ASSIGN_OR_RETURN(const std::optional<Node> content, StringContent(flat, path + ".propertyNames"));
    keys.push_back(content ? v_.KeyOf(*content) : v_.OtherKey({}));
  }
  return std::optional<Node>(b_.Seq({b_.Choice(keys), node}));
}

absl::StatusOr<Node> SchemaCompiler::Object(const JsonValue& schema, const std::string& path, int depth) {
  struct Property {
    std::string name;
    Node member;
    bool required = false;
  };
  const JsonValue* properties = schema.Find("properties");
  const JsonValue* extra = schema.Find("additionalProperties");
  const JsonValue* names = schema.Find("required");
  std::vector<std::string> required;
  absl::flat_hash_set<std::string> is_required;
  if (names != nullptr) {
    for (const JsonValue& name : names->AsArray()) {
      if (is_required.insert(name.AsString()).second) required.push_back(name.AsString());
    }
  }
  const bool named = properties != nullptr && !properties->AsObject().empty();
  if (named && schema.Find("propertyNames") != nullptr) return SchemaError(path + ".propertyNames", "is not supported beside properties");
  if (const JsonValue* u = schema.Find("unevaluatedProperties"); u != nullptr && !u->is_bool()) {
    return SchemaError(path + ".unevaluatedProperties", "is supported as true or false only");
  }
  std::vector<Property> all;
  std::vector<std::string> taken;
  absl::flat_hash_set<std::string> is_taken;
  const auto add = [&](const std::string& name, absl::StatusOr<Node> value) -> absl::Status {
    if (!value.ok()) return value.status();
    taken.push_back(name);
    is_taken.insert(name);
    const bool must = is_required.contains(name);
    if (value->id == b_.Never().id && !must) return absl::OkStatus();
    all.push_back({name, b_.Seq({v_.Key(name), *value}), must});
    return absl::OkStatus();
  };
  if (properties != nullptr) {
    for (const auto& [name, value] : properties->AsObject()) {
      HF_RETURN_IF_ERROR(add(name, Any(value, fmt::format("{}.properties.{}", path, name), depth + 1)));
    }
  }
  for (const std::string& name : required) {
    if (is_taken.contains(name)) continue;
    if (IsFalse(extra) || schema.Find("patternProperties") != nullptr || schema.Find("propertyNames") != nullptr) {
      return SchemaError(path + ".required", fmt::format("\"{}\" is required but not among properties", name));
    }
    HF_RETURN_IF_ERROR(add(name, extra == nullptr ? absl::StatusOr<Node>(v_.AnyValue()) : Any(*extra, path + ".additionalProperties", depth + 1)));
  }
  // unevaluatedProperties: false refuses only what is not generated anyway, unless others are asked for.
  HF_ASSIGN_OR_RETURN(std::optional<Node> other, OtherMember(schema, taken, !taken.empty(), path, depth));
  if (IsFalse(schema.Find("unevaluatedProperties")) && extra == nullptr && schema.Find("patternProperties") == nullptr) other.reset();

  const auto n = static_cast<uint32_t>(all.size());
  const auto musts = static_cast<uint32_t>(std::count_if(all.begin(), all.end(), [](const Property& p) { return p.required; }));
  const uint32_t min = Bound(schema, "minProperties", 0), max = Bound(schema, "maxProperties", Builder::kNoLimit);
  const uint32_t least = std::max(min, musts);
  if (least > max) return SchemaError(path, fmt::format("needs {} properties, but maxProperties is {}", least, max));
  if (min > musts && min > 1) return SchemaError(path + ".minProperties", "is supported up to 1, or up to the number of required properties");
  const bool counts_others = other.has_value() && max != Builder::kNoLimit;
  if (max < n || (counts_others && n > 0)) {
    return SchemaError(path + ".maxProperties", "is supported only where it allows all properties, or where none is named");
  }
  if (max == 0) other.reset();

  // State i: before property i, nothing was written; n + 1 + i: something was; 2n + 2 + i: behind the comma.
  const uint32_t wrote = n + 1, comma = 2 * n + 2, done = comma + n + 1;
  std::vector<Builder::Edge> edges;
  for (uint32_t i = 0; i < n; ++i) {
    edges.push_back({i, b_.Empty(), comma + i});
    edges.push_back({wrote + i, v_.Comma(), comma + i});
    edges.push_back({comma + i, all[i].member, wrote + i + 1});
    if (all[i].required) continue;
    edges.push_back({i, b_.Empty(), i + 1});
    edges.push_back({wrote + i, b_.Empty(), wrote + i + 1});
  }
  if (other && counts_others) {
    edges.push_back({n, b_.Seq({*other, b_.Repeat(b_.Seq({v_.Comma(), *other}), 0, max - 1)}), wrote + n});
  } else if (other) {
    edges.push_back({n, b_.Empty(), comma + n});
    edges.push_back({wrote + n, v_.Comma(), comma + n});
    edges.push_back({comma + n, *other, wrote + n});
  }
  edges.push_back({wrote + n, v_.Close('}'), done});
  if (least == 0) edges.push_back({n, b_.Literal("}"), done});  // white space came with the bracket before it
  const uint32_t finals[] = {done};
  return b_.Seq({v_.Open('{'), b_.Graph(done + 1, edges, finals)});
}

}  // namespace holdfast::grammar
