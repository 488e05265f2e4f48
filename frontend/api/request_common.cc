#include "frontend/api/request_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "frontend/api/request_tools.h"

namespace holdfast::api {
namespace {

using text::JsonValue;

void ReadModel(FieldReader* in, const RequestContext& context, ValidRequest* out) {
  out->model = context.served_model;
  std::string model;
  in->String("model", 1u << 16, &model);
  if (in->failed() || !context.strict_model) return;
  if (model.empty()) return in->Fail("model", fmt::format("'model' is required; this server serves '{}'", context.served_model));
  const bool known = model == context.served_model || std::find(context.aliases.begin(), context.aliases.end(), model) != context.aliases.end();
  if (!known) in->Fail(ModelNotFound(model, context.served_model));
}

void ReadLogitBias(FieldReader* in, const RequestContext& context, Sampling* out) {
  const JsonValue* bias = in->Get("logit_bias");
  if (!bias || in->failed()) return;
  if (!bias->is_object()) {
    return in->Fail("logit_bias", fmt::format("'logit_bias' must be an object of token ids to numbers, not {}", KindName(*bias)));
  }
  const JsonValue::Object& members = bias->AsObject();
  if (members.size() > context.max_logit_bias) {
    return in->Fail("logit_bias", fmt::format("'logit_bias' has {} entries, the limit is {}", members.size(), context.max_logit_bias));
  }
  for (const auto& [key, value] : members) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool canonical = error == std::errc() && end == key.data() + key.size() && (key.size() == 1 || key[0] != '0');
    if (!canonical || (context.vocab_size > 0 && id >= context.vocab_size)) {
      return in->Fail("logit_bias", fmt::format("'logit_bias': '{}' is no token id of this model ({})", Quoted(key), TokenIdRange(context)));
    }
    const double number = value.is_number() ? value.AsDouble() : 1000;
    if (!(number >= -100 && number <= 100)) {
      return in->Fail("logit_bias", fmt::format("'logit_bias': the bias of token {} must be a number between -100 and 100", id));
    }
    out->logit_bias.emplace_back(id, static_cast<float>(number));
  }
}

void ReadSampling(FieldReader* in, const RequestContext& context, Sampling* out) {
  *out = context.defaults;
  in->Number("temperature", 0, 2, &out->temperature);
  in->Number("top_p", 0, 1, &out->top_p);
  in->Number("min_p", 0, 1, &out->min_p);
  in->Number("presence_penalty", -2, 2, &out->presence_penalty);
  in->Number("frequency_penalty", -2, 2, &out->frequency_penalty);
  in->Number("repetition_penalty", 0.01, 10, &out->repetition_penalty);
  int64_t top_k = out->top_k;
  in->Integer("top_k", -1, INT32_MAX, true, &top_k);  // -1 and 0: off
  out->top_k = static_cast<uint32_t>(std::max<int64_t>(top_k, 0));
  if (in->Get("seed")) {
    // Not clamped: two seeds that become one would be a trap. A number beyond int64 saturates in Integer, so it is looked at here.
    int64_t seed = 0;
    in->Integer("seed", INT64_MIN, INT64_MAX, false, &seed);
    const JsonValue& raw = *in->Get("seed");
    if (raw.kind() == JsonValue::Kind::kUint || (raw.kind() == JsonValue::Kind::kDouble && (seed == INT64_MAX || seed == INT64_MIN))) {
      in->Fail("seed", "'seed' must be between -9223372036854775808 and 9223372036854775807");
    }
    out->seed = static_cast<uint64_t>(seed);
  }
  ReadLogitBias(in, context, out);
}

void ReadStop(FieldReader* in, const RequestContext& context, ValidRequest* out) {
  const JsonValue* stop = in->Get("stop");
  if (!stop || in->failed()) return;
  const auto add = [&](const JsonValue& one, const std::string& path) {
    if (!one.is_string()) return in->Fail(InvalidRequest(fmt::format("'{}' must be a string, not {}", path, KindName(one)), path));
    const std::string& text = one.AsString();
    if (text.size() > context.max_stop_bytes) {
      return in->Fail(InvalidRequest(fmt::format("'{}' has {} bytes, the limit of a stop string is {}", path, text.size(), context.max_stop_bytes), path));
    }
    // An empty string would end every answer at once: it means no stop string.
    if (!text.empty() && std::find(out->stop.begin(), out->stop.end(), text) == out->stop.end()) out->stop.push_back(text);
  };
  if (stop->is_string()) return add(*stop, "stop");
  if (!stop->is_array()) {
    return in->Fail("stop", fmt::format("'stop' must be a string or an array of up to {} strings, not {}", context.max_stop, KindName(*stop)));
  }
  const JsonValue::Array& all = stop->AsArray();
  if (all.size() > context.max_stop) {
    return in->Fail("stop", fmt::format("'stop' has {} entries, the limit is {}", all.size(), context.max_stop));
  }
  for (size_t i = 0; i < all.size() && !in->failed(); ++i) add(all[i], fmt::format("stop[{}]", i));
}

void ReadStreaming(FieldReader* in, ValidRequest* out) {
  in->Bool("stream", &out->stream);
  const JsonValue* options = in->Get("stream_options");
  if (!options || in->failed()) return;
  if (!options->is_object()) return in->Fail("stream_options", fmt::format("'stream_options' must be an object, not {}", KindName(*options)));
  if (!out->stream) return in->Fail("stream_options", "'stream_options' is only allowed together with \"stream\": true");
  FieldReader inner(*options, "stream_options.");
  inner.Bool("include_usage", &out->include_usage);
  if (inner.failed()) in->Fail(inner.TakeError());
}

}  // namespace

std::string TokenIdRange(const RequestContext& context) {
  return context.vocab_size > 0 ? fmt::format("0 to {}", context.vocab_size - 1) : std::string("0 to 4294967295");
}

bool AsTokenId(const JsonValue& value, const RequestContext& context, uint32_t* out) {
  if (value.kind() != JsonValue::Kind::kInt) return false;
  const int64_t id = value.AsInt();
  const int64_t end = context.vocab_size > 0 ? static_cast<int64_t>(context.vocab_size) : int64_t{1} << 32;
  if (id < 0 || id >= end) return false;
  *out = static_cast<uint32_t>(id);
  return true;
}

void ReadCommon(FieldReader* in, const RequestContext& context, ValidRequest* out) {
  ReadModel(in, context, out);
  ReadSampling(in, context, &out->sampling);
  ReadStop(in, context, out);
  ReadStreaming(in, out);
  int64_t n = 1, best_of = 1;
  in->Integer("n", 1, context.max_n, false, &n);
  out->n = static_cast<uint32_t>(n);
  if (in->Get("best_of")) {
    in->Integer("best_of", 1, INT32_MAX, true, &best_of);
    if (best_of != 1) in->Fail(NotYetSupported("best_of", "only 1; n gives several choices"));
  }
  in->Bool("ignore_eos", &out->ignore_eos);
  bool cache = true;
  in->Bool("cache_prompt", &cache);
  out->no_cache = !cache;
  in->String("cache_salt", 256, &out->cache_salt);
  ReadResponseFormat(in, out);
}

}  // namespace holdfast::api
