#include "worker/model/hparams.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "proto/base/status_wire.h"

namespace holdfast::model {
namespace {

constexpr struct {
  std::string_view name;
  Family family;
} kFamilies[] = {
    {"llama", Family::kLlama},       {"qwen2", Family::kQwen2},   {"qwen3", Family::kQwen3},   {"qwen3moe", Family::kQwen3Moe},
    {"gemma3", Family::kGemma3},     {"gemma4", Family::kGemma4}, {"gpt-oss", Family::kGptOss},
};

constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxContext = int64_t{1} << 30;
constexpr int64_t kMaxVocab = int64_t{1} << 26;

// Reads keys "<arch>.<name>" with their bounds; every error names the key, what it holds and what would do.
class Reader {
 public:
  Reader(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  std::string Key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  absl::Status Bad(std::string_view what) const { return absl::InvalidArgumentError(fmt::format("{}: {}", file_.path(), what)); }

  absl::Status Int(std::string_view name, int64_t low, int64_t high, std::optional<int64_t> fallback, int64_t* out) const {
    const std::string key = Key(name);
    HF_ASSIGN_OR_RETURN(const auto value, file_.Uint(key));
    if (!value) {
      if (!fallback) return Bad(fmt::format("metadata key \"{}\" is missing (an integer from {} to {})", key, low, high));
      *out = *fallback;
      return absl::OkStatus();
    }
    const int64_t v = static_cast<int64_t>(*value);
    if (v < low || v > high) return Bad(fmt::format("metadata key \"{}\" is {}; {} to {} can be served", key, v, low, high));
    *out = v;
    return absl::OkStatus();
  }

  absl::Status Float(std::string_view name, double low, double high, std::optional<float> fallback, float* out) const {
    const std::string key = Key(name);
    HF_ASSIGN_OR_RETURN(const auto value, file_.Float(key));
    if (!value) {
      if (!fallback) return Bad(fmt::format("metadata key \"{}\" is missing (a number from {} to {})", key, low, high));
      *out = *fallback;
      return absl::OkStatus();
    }
    if (!(*value >= low && *value <= high)) return Bad(fmt::format("metadata key \"{}\" is {}; {} to {} can be served", key, *value, low, high));
    *out = static_cast<float>(*value);
    return absl::OkStatus();
  }

  // A scalar for all layers, or an array of exactly one value a layer.
  absl::Status PerLayer(std::string_view name, int64_t layers, int64_t low, int64_t high, std::optional<int64_t> fallback,
                        std::vector<int64_t>* out) const {
    const std::string key = Key(name);
    const GgufValue* value = file_.Find(key);
    if (value == nullptr || value->type() != GgufType::kArray) {
      int64_t all = 0;
      HF_RETURN_IF_ERROR(Int(name, low, high, fallback, &all));
      out->assign(layers, all);
      return absl::OkStatus();
    }
    if (!value->is_integer()) {
      return Bad(fmt::format("metadata key \"{}\" is an array of {}; integers are expected", key, GgufTypeName(value->element_type())));
    }
    if (static_cast<int64_t>(value->size()) != layers) {
      return Bad(fmt::format("metadata key \"{}\" has {} elements, but the model has {} layers", key, value->size(), layers));
    }
    out->resize(layers);
    for (int64_t i = 0; i < layers; ++i) {
      (*out)[i] = value->Int(i);
      if ((*out)[i] < low || (*out)[i] > high) {
        return Bad(fmt::format("metadata key \"{}\": element {} is {}; {} to {} can be served", key, i, (*out)[i], low, high));
      }
    }
    return absl::OkStatus();
  }

  // Array of booleans (true = windowed), or the period p of a pattern whose layer l is full iff l % p == p - 1 (first_full: iff l % p
  // is not 0). Absent: that pattern with period `fallback`.
  absl::Status WindowPattern(int64_t layers, std::optional<int64_t> fallback, bool first_windowed_of_two, std::vector<bool>* out) const {
    constexpr std::string_view kName = "attention.sliding_window_pattern";
    const GgufValue* value = file_.Find(Key(kName));
    if (value != nullptr && value->type() == GgufType::kArray) {
      const bool boolean = value->element_type() == GgufType::kBool;
      if (!boolean && !value->is_integer()) return Bad(fmt::format("metadata key \"{}\": booleans are expected", Key(kName)));
      if (static_cast<int64_t>(value->size()) != layers) {
        return Bad(fmt::format("metadata key \"{}\" has {} elements, but the model has {} layers", Key(kName), value->size(), layers));
      }
      for (int64_t i = 0; i < layers; ++i) out->push_back(boolean ? value->Bool(i) : value->Int(i) != 0);
      return absl::OkStatus();
    }
    int64_t period = 0;
    HF_RETURN_IF_ERROR(Int(kName, 1, kMaxLayers, fallback, &period));
    for (int64_t i = 0; i < layers; ++i) out->push_back(first_windowed_of_two ? i % period == 0 : i % period != period - 1);
    return absl::OkStatus();
  }

  absl::Status Scaling(RopeSpec* rope) const {
    HF_ASSIGN_OR_RETURN(const auto type, file_.String(Key("rope.scaling.type")));
    if (!type || *type == "none") return absl::OkStatus();
    float factor = 1.f;
    HF_RETURN_IF_ERROR(Float("rope.scaling.factor", 1e-3, 1e6, 1.f, &factor));
    if (*type == "linear") {
      rope->scale = 1.f / factor;
      return absl::OkStatus();
    }
    if (*type != "yarn") {
      return absl::UnimplementedError(fmt::format("{}: rope scaling {} is not supported (none, linear and yarn are)", file_.path(), Quoted(*type)));
    }
    int64_t original = 0;
    HF_RETURN_IF_ERROR(Int("rope.scaling.original_context_length", 1, kMaxContext, std::nullopt, &original));
    float attention = 1.f;
    HF_RETURN_IF_ERROR(Float("rope.scaling.attn_factor", 1e-3, 1e3, 1.f, &attention));
    HF_RETURN_IF_ERROR(Float("rope.scaling.yarn_beta_fast", 0, 1e6, 32.f, &rope->yarn_beta_fast));
    HF_RETURN_IF_ERROR(Float("rope.scaling.yarn_beta_slow", 0, 1e6, 1.f, &rope->yarn_beta_slow));
    rope->yarn_factor = factor;
    rope->yarn_original_context = static_cast<float>(original);
    rope->attention_factor = factor > 1.f ? attention * (1.f + 0.1f * std::log(factor)) : attention;
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  std::string arch_;
};

absl::Status ReadVocab(const GgufFile& file, const Reader& reader, Hparams* h) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return reader.Bad("tensor \"token_embd.weight\" is missing: this file holds no model weights");
  h->vocab = embedding->dims[1];
  h->tied_embeddings = file.FindTensor("output.weight") == nullptr;
  h->rope_freqs = file.FindTensor("rope_freqs.weight") != nullptr;
  if (h->vocab < 2 || h->vocab > kMaxVocab) return reader.Bad(fmt::format("token_embd.weight has {} rows; 2 to {} can be served", h->vocab, kMaxVocab));
  int64_t declared = 0;
  HF_RETURN_IF_ERROR(reader.Int("vocab_size", 0, INT64_MAX, h->vocab, &declared));
  if (declared != h->vocab) {
    return reader.Bad(fmt::format("metadata key \"{}\" is {}, but token_embd.weight has {} rows", reader.Key("vocab_size"), declared, h->vocab));
  }
  const GgufValue* tokens = file.Find("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->type() == GgufType::kArray && static_cast<int64_t>(tokens->size()) != h->vocab) {
    return reader.Bad(fmt::format("tokenizer.ggml.tokens has {} entries, but token_embd.weight has {} rows", tokens->size(), h->vocab));
  }
  return absl::OkStatus();
}

absl::Status ReadExperts(const Reader& reader, bool required, int64_t feed_forward, Hparams* h) {
  int64_t experts = 0, used = 0, width = 0;
  HF_RETURN_IF_ERROR(reader.Int("expert_count", required ? 1 : 0, 65536, required ? std::nullopt : std::optional<int64_t>(0), &experts));
  h->experts = static_cast<int32_t>(experts);
  if (experts == 0) return absl::OkStatus();
  HF_RETURN_IF_ERROR(reader.Int("expert_used_count", 1, experts, std::nullopt, &used));
  HF_RETURN_IF_ERROR(reader.Int("expert_feed_forward_length", 1, kMaxWidth, feed_forward > 0 ? std::optional(feed_forward) : std::nullopt, &width));
  HF_RETURN_IF_ERROR(reader.Float("expert_weights_scale", 0, 1e6, 1.f, &h->expert_weights_scale));
  if (h->expert_weights_scale == 0.f) h->expert_weights_scale = 1.f;  // converters write 0 for "none"
  h->experts_used = static_cast<int32_t>(used);
  h->expert_feed_forward = static_cast<int32_t>(width);
  return absl::OkStatus();
}

// The rotated part of a head: even, at most the head; this is what every supported family uses as a whole.
absl::Status ReadRopeDims(const Reader& reader, std::string_view key, int32_t head_dim, int32_t* dims) {
  int64_t v = 0;
  HF_RETURN_IF_ERROR(reader.Int(key, 2, head_dim, head_dim, &v));
  if (v % 2 != 0) return reader.Bad(fmt::format("metadata key \"{}\" is {}; it must be even", reader.Key(key), v));
  *dims = static_cast<int32_t>(v);
  return absl::OkStatus();
}

absl::Status ReadHeadDim(const Reader& reader, std::string_view key_name, std::string_view value_name, std::optional<int64_t> fallback,
                         int32_t* head_dim) {
  int64_t k = 0, v = 0;
  HF_RETURN_IF_ERROR(reader.Int(key_name, 2, kMaxHeadDim, fallback, &k));
  HF_RETURN_IF_ERROR(reader.Int(value_name, 2, kMaxHeadDim, k, &v));
  if (k != v) {
    return reader.Bad(fmt::format("metadata keys \"{}\" = {} and \"{}\" = {} differ; they must be equal", reader.Key(key_name), k,
                                  reader.Key(value_name), v));
  }
  if (k % 2 != 0) return reader.Bad(fmt::format("metadata key \"{}\" is {}; a head must have an even size", reader.Key(key_name), k));
  *head_dim = static_cast<int32_t>(k);
  return absl::OkStatus();
}

absl::Status ReadCommon(const GgufFile& file, const Reader& reader, Hparams* h, int64_t* layer_count) {
  int64_t dim = 0, heads = 0, context = 0;
  HF_RETURN_IF_ERROR(reader.Int("block_count", 1, kMaxLayers, std::nullopt, layer_count));
  HF_RETURN_IF_ERROR(reader.Int("context_length", 1, kMaxContext, std::nullopt, &context));
  HF_RETURN_IF_ERROR(reader.Int("embedding_length", 1, kMaxWidth, std::nullopt, &dim));
  const std::string head_key = reader.Key("attention.head_count");
  std::vector<int64_t> head_counts;
  HF_RETURN_IF_ERROR(reader.PerLayer("attention.head_count", *layer_count, 1, 65536, std::nullopt, &head_counts));
  heads = head_counts[0];
  for (const int64_t n : head_counts) {
    if (n != heads) return reader.Bad(fmt::format("metadata key \"{}\" differs between layers ({} and {}), which is not supported", head_key, heads, n));
  }
  HF_RETURN_IF_ERROR(reader.Float("attention.layer_norm_rms_epsilon", 0, 1, std::nullopt, &h->eps));
  h->dim = static_cast<int32_t>(dim);
  h->heads = static_cast<int32_t>(heads);
  h->context_length = static_cast<uint32_t>(context);
  h->layers.resize(*layer_count);
  for (int64_t i = 0; i < *layer_count; ++i) h->layers[i].kv_source = static_cast<int32_t>(i);
  std::vector<int64_t> kv_heads;
  HF_RETURN_IF_ERROR(reader.PerLayer("attention.head_count_kv", *layer_count, 1, heads, heads, &kv_heads));
  for (int64_t i = 0; i < *layer_count; ++i) {
    if (heads % kv_heads[i] != 0) {
      return reader.Bad(fmt::format("layer {}: {} query heads cannot share {} key-value heads (no whole multiple)", i, heads, kv_heads[i]));
    }
    h->layers[i].heads = h->heads;
    h->layers[i].kv_heads = static_cast<int32_t>(kv_heads[i]);
  }
  return ReadVocab(file, reader, h);
}

absl::Status ReadGemma4(const Reader& reader, int64_t layer_count, const std::vector<int64_t>& feed_forward, Hparams* h) {
  int32_t full = 0, windowed = 0;
  HF_RETURN_IF_ERROR(ReadHeadDim(reader, "attention.key_length", "attention.value_length", std::nullopt, &full));
  HF_RETURN_IF_ERROR(ReadHeadDim(reader, "attention.key_length_swa", "attention.value_length_swa", full, &windowed));
  int64_t window = 0, shared = 0, per_layer = 0;
  HF_RETURN_IF_ERROR(reader.Int("attention.sliding_window", 1, kMaxContext, std::nullopt, &window));
  HF_RETURN_IF_ERROR(reader.Int("attention.shared_kv_layers", 0, layer_count - 1, 0, &shared));
  HF_RETURN_IF_ERROR(reader.Int("embedding_length_per_layer_input", 0, 65536, 0, &per_layer));
  HF_RETURN_IF_ERROR(reader.Float("final_logit_softcapping", 0, 1e6, 30.f, &h->logit_softcap));
  std::vector<bool> pattern;
  HF_RETURN_IF_ERROR(reader.WindowPattern(layer_count, std::nullopt, false, &pattern));
  HF_RETURN_IF_ERROR(ReadExperts(reader, false, 0, h));
  h->window = static_cast<uint32_t>(window);
  h->per_layer_input = static_cast<int32_t>(per_layer);
  h->attention_scale = 1.f;
  h->embedding_scale = std::sqrt(static_cast<float>(h->dim));
  HF_RETURN_IF_ERROR(reader.Float("rope.freq_base", 1, 1e12, 10000.f, &h->rope.base));
  HF_RETURN_IF_ERROR(reader.Float("rope.freq_base_swa", 1, 1e12, 10000.f, &h->rope_windowed.base));
  HF_RETURN_IF_ERROR(ReadRopeDims(reader, "rope.dimension_count", full, &h->rope.dims));
  HF_RETURN_IF_ERROR(ReadRopeDims(reader, "rope.dimension_count_swa", windowed, &h->rope_windowed.dims));
  const int64_t owners = layer_count - shared;
  for (int64_t i = 0; i < layer_count; ++i) {
    LayerHparams& layer = h->layers[i];
    layer.windowed = pattern[i];
    layer.head_dim = pattern[i] ? windowed : full;
    layer.feed_forward = static_cast<int32_t>(feed_forward[i]);
    layer.owns_kv = i < owners;
    if (layer.owns_kv) continue;
    const int64_t source = pattern[i] ? owners - 2 : owners - 1;
    if (source < 0 || pattern[source] != pattern[i]) {
      return reader.Bad(fmt::format("layer {} shares the cache of layer {}, but one is windowed and the other is not (of the {} layers that own "
                                    "a cache the last two must be windowed, then full)", i, source, owners));
    }
    layer.kv_source = static_cast<int32_t>(source);
    if (h->layers[source].kv_heads != layer.kv_heads) {
      return reader.Bad(fmt::format("layer {} with {} key-value heads cannot share the cache of layer {} with {}", i, layer.kv_heads, source,
                                    h->layers[source].kv_heads));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadStandard(const Reader& reader, int64_t layer_count, const std::vector<int64_t>& feed_forward, Hparams* h) {
  const Family family = h->family;
  std::optional<int64_t> natural;
  if (h->dim % h->heads == 0) natural = h->dim / h->heads;
  int32_t head_dim = 0;
  HF_RETURN_IF_ERROR(ReadHeadDim(reader, "attention.key_length", "attention.value_length", natural, &head_dim));
  HF_RETURN_IF_ERROR(reader.Float("rope.freq_base", 1, 1e12, 10000.f, &h->rope.base));
  HF_RETURN_IF_ERROR(ReadRopeDims(reader, "rope.dimension_count", head_dim, &h->rope.dims));
  if (h->rope.dims != head_dim) {
    return reader.Bad(fmt::format("metadata key \"{}\" is {}, but a head has {} dimensions; partial rotation is not supported for this architecture",
                                  reader.Key("rope.dimension_count"), h->rope.dims, head_dim));
  }
  HF_RETURN_IF_ERROR(reader.Scaling(&h->rope));
  h->rope.kind = family == Family::kLlama ? kernels::RopeKind::kInterleaved : kernels::RopeKind::kNeox;
  h->rope_windowed = h->rope;
  h->attention_scale = 1.f / std::sqrt(static_cast<float>(head_dim));
  float scale = 0.f;
  HF_RETURN_IF_ERROR(reader.Float("attention.scale", 0, 1e3, 0.f, &scale));
  if (scale > 0.f) h->attention_scale = scale;
  std::vector<bool> pattern(layer_count, false);
  int64_t window = 0;
  if (family == Family::kGemma3) {
    HF_RETURN_IF_ERROR(reader.Int("attention.sliding_window", 0, kMaxContext, 0, &window));
    pattern.clear();
    HF_RETURN_IF_ERROR(reader.WindowPattern(layer_count, 6, false, &pattern));
    if (window == 0) pattern.assign(layer_count, false);
    h->rope_windowed.scale = 1.f;
    HF_RETURN_IF_ERROR(reader.Float("rope.freq_base_swa", 1, 1e12, 10000.f, &h->rope_windowed.base));
    HF_RETURN_IF_ERROR(reader.Float("final_logit_softcapping", 0, 1e6, 0.f, &h->logit_softcap));
    h->embedding_scale = std::sqrt(static_cast<float>(h->dim));
    // The 27B alone scales by its embedding width.
    if (layer_count == 62) h->attention_scale = 1.f / std::sqrt(static_cast<float>(h->dim) / static_cast<float>(h->heads));
  } else if (family == Family::kGptOss) {
    HF_RETURN_IF_ERROR(reader.Int("attention.sliding_window", 1, kMaxContext, std::nullopt, &window));
    pattern.clear();
    HF_RETURN_IF_ERROR(reader.WindowPattern(layer_count, 2, true, &pattern));
  }
  const bool moe = family == Family::kQwen3Moe || family == Family::kGptOss;
  if (moe || family == Family::kLlama) {
    HF_RETURN_IF_ERROR(ReadExperts(reader, moe, family == Family::kLlama ? feed_forward[0] : 0, h));
  }
  h->window = static_cast<uint32_t>(window);
  for (int64_t i = 0; i < layer_count; ++i) {
    h->layers[i].windowed = pattern[i];
    h->layers[i].head_dim = head_dim;
    h->layers[i].feed_forward = h->experts > 0 ? 0 : static_cast<int32_t>(feed_forward[i]);
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view SupportedArchitectures() { return "llama, qwen2, qwen3, qwen3moe, gemma3, gemma4, gpt-oss"; }

absl::StatusOr<Hparams> ReadHparams(const GgufFile& file) {
  HF_ASSIGN_OR_RETURN(const auto arch, file.String("general.architecture"));
  if (!arch) return absl::InvalidArgumentError(file.path() + ": metadata key \"general.architecture\" is missing: not a model file");
  Hparams h;
  h.architecture = *arch;
  bool known = false;
  for (const auto& f : kFamilies) {
    if (f.name != *arch) continue;
    h.family = f.family;
    known = true;
  }
  if (!known) {
    return absl::UnimplementedError(fmt::format("{}: architecture {} is not supported; these are: {}", file.path(), Quoted(*arch),
                                                SupportedArchitectures()));
  }
  const Reader reader(file, h.architecture);
  int64_t layers = 0;
  HF_RETURN_IF_ERROR(ReadCommon(file, reader, &h, &layers));
  const bool moe_only = h.family == Family::kQwen3Moe || h.family == Family::kGptOss;
  std::vector<int64_t> feed_forward;
  HF_RETURN_IF_ERROR(reader.PerLayer("feed_forward_length", layers, moe_only ? 0 : 1, kMaxWidth, moe_only ? std::optional<int64_t>(0) : std::nullopt,
                                     &feed_forward));
  HF_RETURN_IF_ERROR(h.family == Family::kGemma4 ? ReadGemma4(reader, layers, feed_forward, &h) : ReadStandard(reader, layers, feed_forward, &h));
  return h;
}

}  // namespace holdfast::model
