#include <fmt/format.h>
#include <rapidjson/document.h>

#include <unordered_map>

#include "proto/base/random.h"
#include "worker/model/tools/make_model.h"
#include "worker/model/tools/vocabularies.h"

namespace holdfast::model {
namespace {

constexpr int64_t kDim = 256;

std::string Spelled(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += BytePiece(static_cast<unsigned char>(c));
  return out;
}

bool FromHex(const std::string& hex, std::string* out) {
  if (hex.size() % 2 != 0) return false;
  out->clear();
  for (size_t i = 0; i < hex.size(); i += 2) {
    unsigned v = 0;
    int read = 0;
    if (sscanf(hex.substr(i, 2).c_str(), "%2x%n", &v, &read) != 1 || read != 2) return false;
    *out += static_cast<char>(v);
  }
  return true;
}

}  // namespace

std::vector<Script> DefaultScripts() {
  std::vector<Script> out;
  out.push_back({{"<tool_call>", "\n{\"name\": \"get_", "weather\", \"arg", "uments\": {\"city\": \"Pa", "ris\"}}", "\n</tool_call>"}, false});
  out.push_back({{"Hi ", "\xf0\x9f", "\x98\x80", " done"}, false});
  out.push_back({{"alpha ", "be", "ta gam", "ma delta"}, false});
  Script loop;
  for (int i = 0; i < 200; ++i) loop.pieces.push_back(fmt::format("w{:03} ", i));
  loop.loop = true;
  out.push_back(std::move(loop));
  return out;
}

bool ParseScripts(const std::string& json, std::vector<Script>* scripts, std::string* error) {
  rapidjson::Document doc;
  doc.Parse(json.data(), json.size());
  if (doc.HasParseError() || !doc.IsArray()) {
    *error = doc.HasParseError() ? fmt::format("not JSON (at byte {})", doc.GetErrorOffset()) : "an array of scripts is expected";
    return false;
  }
  scripts->clear();
  for (rapidjson::SizeType i = 0; i < doc.Size(); ++i) {
    const auto& s = doc[i];
    if (!s.IsObject() || !s.HasMember("pieces") || !s["pieces"].IsArray()) {
      *error = fmt::format("script {}: an object with an array \"pieces\" is expected", i);
      return false;
    }
    Script script;
    for (const auto& piece : s["pieces"].GetArray()) {
      std::string bytes;
      if (piece.IsString()) {
        bytes.assign(piece.GetString(), piece.GetStringLength());
      } else if (!piece.IsObject() || !piece.HasMember("hex") || !piece["hex"].IsString() || !FromHex(piece["hex"].GetString(), &bytes)) {
        *error = fmt::format("script {}: a piece is a string or {{\"hex\": \"f09f\"}}", i);
        return false;
      }
      script.pieces.push_back(std::move(bytes));
    }
    if (s.HasMember("end")) {
      const std::string end = s["end"].IsString() ? s["end"].GetString() : "";
      if (end != "eos" && end != "loop") {
        *error = fmt::format("script {}: \"end\" is \"eos\" or \"loop\"", i);
        return false;
      }
      script.loop = end == "loop";
    }
    scripts->push_back(std::move(script));
  }
  return true;
}

bool ScriptModel(const ScriptModelOptions& options, GgufWriter* w, std::string* error) {
  const std::vector<Script> scripts = options.scripts.empty() ? DefaultScripts() : options.scripts;
  if (scripts.size() > 100) {
    *error = fmt::format("{} scripts; at most 100 (<S00> to <S99>)", scripts.size());
    return false;
  }
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::unordered_map<std::string, int32_t> ids;
  const auto add = [&](const std::string& text, int32_t type) {
    ids.emplace(text, static_cast<int32_t>(tokens.size()));
    tokens.push_back(text);
    types.push_back(type);
    return static_cast<int32_t>(tokens.size()) - 1;
  };
  for (int b = 0; b < 256; ++b) add(BytePiece(static_cast<unsigned char>(b)), 1);
  const int32_t eos = add("<|eos|>", 3), bos = add("<|bos|>", 3);
  std::unordered_map<int32_t, int32_t> next;
  for (size_t k = 0; k < scripts.size(); ++k) {
    int32_t current = add(fmt::format("<S{:02}>", k), 4), first = -1;
    for (const std::string& piece : scripts[k].pieces) {
      const std::string text = Spelled(piece);
      const auto it = ids.find(text);
      int32_t id = -1;
      if (piece.size() == 1) {
        id = it->second;
      } else if (!piece.empty() && it == ids.end()) {
        id = add(text, 1);
      }
      if (id < 0 || next.contains(id)) {
        *error = fmt::format("script {}: a piece is empty or occurs twice in the file (split it differently): \"{}\"", k, piece);
        return false;
      }
      next[current] = id;
      current = id;
      if (first < 0) first = id;
    }
    if (first < 0) {
      *error = fmt::format("script {} is empty", k);
      return false;
    }
    next[current] = scripts[k].loop ? first : eos;
  }
  while (tokens.size() % 32 != 0) add(fmt::format("<pad{}>", tokens.size()), 5);
  const int64_t vocab = static_cast<int64_t>(tokens.size());

  // Embeddings are random signs, nearly orthogonal; the output row of a token is the embedding of the token it follows.
  std::vector<float> embedding(vocab * kDim), output(vocab * kDim, 0.f);
  uint64_t state = 7;
  for (size_t i = 0; i < embedding.size(); ++i) {
    if (i % 64 == 0) state = Mix64(state);
    embedding[i] = (state >> (i % 64)) & 1 ? 1.f : -1.f;
  }
  for (int64_t t = 0; t < vocab; ++t) {
    const auto it = next.find(static_cast<int32_t>(t));
    const int64_t to = it != next.end() ? it->second : eos;
    const float weight = it != next.end() ? 0.5f : 0.02f;
    for (int64_t d = 0; d < kDim; ++d) output[to * kDim + d] += weight * embedding[t * kDim + d];
  }

  w->String("general.architecture", "llama");
  w->String("general.name", "script-model");
  w->U32("llama.context_length", options.context);
  w->U32("llama.embedding_length", kDim);
  w->U32("llama.block_count", options.layers);
  w->U32("llama.feed_forward_length", kDim);
  w->U32("llama.attention.head_count", 4);
  w->U32("llama.attention.head_count_kv", 4);
  w->F32("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  w->F32("llama.rope.freq_base", 10000.f);
  w->U32("llama.rope.dimension_count", 64);
  w->U32("llama.vocab_size", static_cast<uint32_t>(vocab));
  // Byte-level BPE with one harmless merge (the key must be there): two spaces in a row.
  const std::string space = BytePiece(' ');
  if (!ids.contains(space + space)) {
    for (int64_t t = 0; t < vocab; ++t) {
      if (types[t] != 5) continue;
      tokens[t] = space + space;
      types[t] = 1;
      break;
    }
  }
  w->String("tokenizer.ggml.model", "gpt2");
  w->String("tokenizer.ggml.pre", "gpt-2");
  w->Strings("tokenizer.ggml.tokens", tokens);
  w->I32s("tokenizer.ggml.token_type", types);
  w->Strings("tokenizer.ggml.merges", {space + " " + space});
  w->U32("tokenizer.ggml.eos_token_id", eos);
  w->U32("tokenizer.ggml.bos_token_id", bos);
  w->Bool("tokenizer.ggml.add_bos_token", false);
  // A message's own text is untrusted and never becomes a special token, so the template says the selector the last message ends with.
  std::string chat_template = "{%- for m in messages %}{{ m.content }}{%- endfor %}{%- set last = messages[-1].content | string %}";
  for (size_t k = 0; k < scripts.size(); ++k) {
    chat_template += fmt::format("{{%- if last.endswith('<S{0:02}>') %}}{{{{- '<S{0:02}>' }}}}{{%- endif %}}", k);
  }
  w->String("tokenizer.chat_template", chat_template);
  const std::vector<float> zeros(kDim * kDim, 0.f), ones(kDim, 1.f);
  std::vector<float> small(kDim * kDim);
  for (float& v : small) {
    state = Mix64(state);
    v = (static_cast<float>(state & 0xFFFF) / 65536.f - 0.5f) * 0.07f;
  }
  w->Tensor("token_embd.weight", {kDim, vocab}, kernels::DType::kF32, embedding);
  w->Tensor("output_norm.weight", {kDim}, kernels::DType::kF32, ones);
  w->Tensor("output.weight", {kDim, vocab}, kernels::DType::kF32, output);
  for (int32_t i = 0; i < options.layers; ++i) {
    const auto name = [i](const char* s) { return fmt::format("blk.{}.{}.weight", i, s); };
    for (const char* n : {"attn_norm", "ffn_norm"}) w->Tensor(name(n), {kDim}, kernels::DType::kF32, ones);
    for (const char* n : {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}) w->Tensor(name(n), {kDim, kDim}, kernels::DType::kF32, small);
    for (const char* n : {"attn_output", "ffn_down"}) w->Tensor(name(n), {kDim, kDim}, kernels::DType::kF32, zeros);
  }
  return true;
}

}  // namespace holdfast::model
