#include "worker/model/card.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>

#include "proto/base/status_wire.h"

namespace holdfast::model {
namespace {

constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;
constexpr int kMaxTokenType = 6;

absl::string_view Abseil(std::string_view s) { return {s.data(), s.size()}; }

class CardMaker {
 public:
  explicit CardMaker(const GgufFile& file) : file_(file) {}

  absl::StatusOr<proto::ModelCard> Make() {
    HF_ASSIGN_OR_RETURN(const std::string fingerprint, file_.Fingerprint());
    card_.set_fingerprint(fingerprint);
    card_.set_file_bytes(file_.file_bytes());
    HF_RETURN_IF_ERROR(General());
    HF_RETURN_IF_ERROR(Tokens());
    HF_RETURN_IF_ERROR(Merges());
    HF_RETURN_IF_ERROR(SpecialTokens());
    HF_RETURN_IF_ERROR(Templates());
    HF_RETURN_IF_ERROR(Sampling());
    return std::move(card_);
  }

 private:
  absl::Status Bad(std::string_view what) const { return absl::InvalidArgumentError(fmt::format("{}: {}", file_.path(), what)); }

  absl::Status General() {
    HF_ASSIGN_OR_RETURN(const auto arch, file_.String("general.architecture"));
    if (!arch) return Bad("metadata key \"general.architecture\" is missing: not a model file");
    card_.set_architecture(arch->data(), arch->size());
    HF_ASSIGN_OR_RETURN(const auto name, file_.String("general.name"));
    std::string text(name.value_or(""));
    if (text.empty()) {  // the file's stem
      text = file_.path().substr(file_.path().rfind('/') + 1);
      if (text.size() > 5 && text.ends_with(".gguf")) text.resize(text.size() - 5);
    }
    card_.set_name(Utf8(text));
    HF_ASSIGN_OR_RETURN(const auto license, file_.String("general.license"));
    card_.set_license(Utf8(license.value_or("")));
    HF_ASSIGN_OR_RETURN(const auto context, file_.Uint(fmt::format("{}.context_length", *arch)));
    card_.set_context_length(static_cast<uint32_t>(std::min<uint64_t>(context.value_or(0), UINT32_MAX)));
    uint64_t parameters = 0;
    std::map<kernels::DType, uint64_t> elements;
    for (const GgufTensor& t : file_.tensors()) {
      const uint64_t n = static_cast<uint64_t>(t.dims[0]) * t.dims[1] * t.dims[2] * t.dims[3];  // the loader checked the product
      parameters += n;
      elements[t.type] += n;
    }
    card_.set_parameter_count(parameters);
    const kernels::DType* most = nullptr;
    uint64_t best = 0;
    for (const auto& [type, n] : elements) {
      if (n > best) {
        best = n;
        most = &type;
      }
    }
    if (most != nullptr) card_.set_quantization(std::string(kernels::InfoOf(*most).name));
    return absl::OkStatus();
  }

  // Invalid bytes become '?': protobuf strings must be UTF-8, and these are labels only.
  static std::string Utf8(std::string_view s) {
    std::string out;
    for (size_t i = 0; i < s.size();) {
      const unsigned char c = static_cast<unsigned char>(s[i]);
      const size_t n = c < 0x80 ? 1 : c >= 0xF0 && c < 0xF5 ? 4 : c >= 0xE0 ? (c < 0xF0 ? 3 : 0) : c >= 0xC2 ? 2 : 0;
      bool good = n > 0 && i + n <= s.size();
      for (size_t k = 1; good && k < n; ++k) good = (static_cast<unsigned char>(s[i + k]) & 0xC0) == 0x80;
      if (good && n == 3) {  // surrogates and overlong forms
        const int second = static_cast<unsigned char>(s[i + 1]);
        good = !(c == 0xE0 && second < 0xA0) && !(c == 0xED && second > 0x9F);
      }
      if (good && n == 4) {
        const int second = static_cast<unsigned char>(s[i + 1]);
        good = !(c == 0xF0 && second < 0x90) && !(c == 0xF4 && second > 0x8F);
      }
      if (good) {
        out.append(s.substr(i, n));
        i += n;
      } else {
        out += '?';
        ++i;
      }
    }
    return out;
  }

  absl::Status Tokens() {
    proto::Vocabulary* v = card_.mutable_vocabulary();
    HF_ASSIGN_OR_RETURN(const auto model, file_.String("tokenizer.ggml.model"));
    if (!model) return Bad("metadata key \"tokenizer.ggml.model\" is missing: the file has no tokenizer");
    if (*model != "gpt2" && *model != "llama" && *model != "gemma4") {
      return absl::UnimplementedError(fmt::format("{}: tokenizer model {} is not supported (gpt2, llama and gemma4 are)", file_.path(), Quoted(*model)));
    }
    v->set_model(std::string(*model));
    HF_ASSIGN_OR_RETURN(const auto pre, file_.String("tokenizer.ggml.pre"));
    v->set_pre(Utf8(pre.value_or("")));
    HF_ASSIGN_OR_RETURN(const GgufValue* tokens, file_.Array("tokenizer.ggml.tokens"));
    if (tokens == nullptr) return Bad("metadata key \"tokenizer.ggml.tokens\" is missing");
    if (tokens->element_type() != GgufType::kString) return Bad("metadata key \"tokenizer.ggml.tokens\" must be an array of strings");
    const size_t n = tokens->size();
    if (n < 2) return Bad(fmt::format("tokenizer.ggml.tokens has {} entries; at least 2 are needed", n));
    ids_.reserve(n);
    v->mutable_tokens()->Reserve(static_cast<int>(n));
    for (size_t i = 0; i < n; ++i) {
      const std::string_view text = tokens->String(i);
      const auto [it, fresh] = ids_.emplace(Abseil(text), static_cast<uint32_t>(i));
      if (!fresh) return Bad(fmt::format("tokenizer.ggml.tokens: entries {} and {} are both {}", it->second, i, Quoted(text)));
      v->add_tokens(text.data(), text.size());
    }
    card_.set_vocab_size(static_cast<uint32_t>(n));
    // The logits' length is the output matrix's; both must agree where there is one.
    const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
    if (embedding != nullptr && embedding->dims[1] != static_cast<int64_t>(n)) {
      return Bad(fmt::format("tokenizer.ggml.tokens has {} entries, but token_embd.weight has {} rows", n, embedding->dims[1]));
    }
    HF_ASSIGN_OR_RETURN(const GgufValue* scores, SameLength("tokenizer.ggml.scores", n));
    if (scores != nullptr) {
      if (!scores->is_float()) return Bad("metadata key \"tokenizer.ggml.scores\" must be an array of f32");
      v->mutable_scores()->Reserve(static_cast<int>(n));
      for (size_t i = 0; i < n; ++i) v->add_scores(static_cast<float>(scores->Float(i)));
    } else if (*model == "llama") {
      return Bad("metadata key \"tokenizer.ggml.scores\" is missing; tokenizer model \"llama\" needs it");
    }
    HF_ASSIGN_OR_RETURN(const GgufValue* types, SameLength("tokenizer.ggml.token_type", n));
    if (types != nullptr) {
      if (!types->is_integer()) return Bad("metadata key \"tokenizer.ggml.token_type\" must be an array of integers");
      v->mutable_types()->Reserve(static_cast<int>(n));
      for (size_t i = 0; i < n; ++i) {
        const int64_t type = types->Int(i);
        if (type < 0 || type > kMaxTokenType) return Bad(fmt::format("tokenizer.ggml.token_type: entry {} is {}; 0 to {} exist", i, type, kMaxTokenType));
        v->add_types(static_cast<int32_t>(type));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const GgufValue*> SameLength(std::string_view key, size_t n) {
    HF_ASSIGN_OR_RETURN(const GgufValue* value, file_.Array(key));
    if (value != nullptr && value->size() != n) {
      return Bad(fmt::format("{} has {} entries, but tokenizer.ggml.tokens has {}", key, value->size(), n));
    }
    return value;
  }

  absl::Status Merges() {
    proto::Vocabulary* v = card_.mutable_vocabulary();
    HF_ASSIGN_OR_RETURN(const GgufValue* merges, file_.Array("tokenizer.ggml.merges"));
    if (merges == nullptr) {
      if (v->model() == "llama") return absl::OkStatus();
      return Bad(fmt::format("metadata key \"tokenizer.ggml.merges\" is missing; tokenizer model \"{}\" needs it", v->model()));
    }
    if (merges->element_type() != GgufType::kString) return Bad("metadata key \"tokenizer.ggml.merges\" must be an array of strings");
    v->mutable_merges()->Reserve(static_cast<int>(merges->size()));
    std::string joined;
    for (size_t i = 0; i < merges->size(); ++i) {
      const std::string_view text = merges->String(i);
      // A part may itself begin with a space only at index 0, so the separator is the first space after it.
      const size_t space = text.find(' ', 1);
      if (space == std::string_view::npos || space + 1 >= text.size()) {
        return Bad(fmt::format("tokenizer.ggml.merges: entry {} ({}) is not two parts with a space between", i, Quoted(text)));
      }
      joined.assign(text.substr(0, space));
      joined.append(text.substr(space + 1));
      for (const std::string_view part : {text.substr(0, space), text.substr(space + 1), std::string_view(joined)}) {
        if (!ids_.contains(Abseil(part))) {
          return Bad(fmt::format("tokenizer.ggml.merges: entry {} ({}): {} is not a token", i, Quoted(text), Quoted(part)));
        }
      }
      v->add_merges(text.data(), text.size());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<uint32_t>> Id(std::string_view key) {
    HF_ASSIGN_OR_RETURN(const auto id, file_.Uint(key));
    if (!id) return std::optional<uint32_t>();
    // Converters write -1 as 0xFFFFFFFF for "none".
    if (*id == UINT32_MAX) return std::optional<uint32_t>();
    if (*id >= card_.vocab_size()) return Bad(fmt::format("metadata key {} is {}, but the vocabulary has {} tokens", Quoted(key), *id, card_.vocab_size()));
    return std::optional<uint32_t>(static_cast<uint32_t>(*id));
  }

  absl::Status SpecialTokens() {
    proto::Vocabulary* v = card_.mutable_vocabulary();
    const std::pair<const char*, void (proto::Vocabulary::*)(uint32_t)> ids[] = {
        {"tokenizer.ggml.bos_token_id", &proto::Vocabulary::set_bos},         {"tokenizer.ggml.eos_token_id", &proto::Vocabulary::set_eos},
        {"tokenizer.ggml.eot_token_id", &proto::Vocabulary::set_eot},         {"tokenizer.ggml.eom_token_id", &proto::Vocabulary::set_eom},
        {"tokenizer.ggml.unknown_token_id", &proto::Vocabulary::set_unknown}, {"tokenizer.ggml.padding_token_id", &proto::Vocabulary::set_padding},
        {"tokenizer.ggml.seperator_token_id", &proto::Vocabulary::set_separator},
        {"tokenizer.ggml.mask_token_id", &proto::Vocabulary::set_mask},
    };
    for (const auto& [key, set] : ids) {
      HF_ASSIGN_OR_RETURN(const auto id, Id(key));
      if (id) (v->*set)(*id);
    }
    for (const char* key : {"tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"}) {
      HF_ASSIGN_OR_RETURN(const auto id, Id(key));
      if (id) v->add_fim_end(*id);
    }
    const bool spm = v->model() == "llama";
    if (spm) {  // the ids every SentencePiece vocabulary of this family has when the file is silent
      if (!v->has_bos() && card_.vocab_size() > 2) v->set_bos(1);
      if (!v->has_eos() && card_.vocab_size() > 2) v->set_eos(2);
      if (!v->has_unknown()) v->set_unknown(0);
    }
    HF_ASSIGN_OR_RETURN(const auto add_bos, file_.Bool("tokenizer.ggml.add_bos_token"));
    HF_ASSIGN_OR_RETURN(const auto add_eos, file_.Bool("tokenizer.ggml.add_eos_token"));
    HF_ASSIGN_OR_RETURN(const auto space, file_.Bool("tokenizer.ggml.add_space_prefix"));
    const bool gemma4 = v->model() == "gemma4";
    const bool default_bos = spm || v->pre() == "llama-bpe" || v->pre() == "llama3" || v->pre() == "llama-v3" || v->pre() == "tekken";
    // gemma4's files carry a wrong flag: the model was never trained without BOS.
    v->set_add_bos(v->has_bos() && (gemma4 || add_bos.value_or(default_bos)));
    v->set_add_eos(v->has_eos() && add_eos.value_or(false));
    v->set_add_space_prefix(space.value_or(spm));
    HF_ASSIGN_OR_RETURN(const GgufValue* suppress, file_.Array("tokenizer.ggml.suppress_tokens"));
    if (suppress != nullptr) {
      if (!suppress->is_integer()) return Bad("metadata key \"tokenizer.ggml.suppress_tokens\" must be an array of integers");
      for (size_t i = 0; i < suppress->size(); ++i) {
        const int64_t id = suppress->Int(i);
        if (id < 0 || id >= card_.vocab_size()) {
          return Bad(fmt::format("tokenizer.ggml.suppress_tokens: entry {} is {}, but the vocabulary has {} tokens", i, id, card_.vocab_size()));
        }
        v->add_suppress(static_cast<uint32_t>(id));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Templates() {
    constexpr std::string_view kKey = "tokenizer.chat_template";
    for (const std::string_view key : file_.keys()) {
      if (!key.starts_with(kKey)) continue;
      if (key.size() > kKey.size() && key[kKey.size()] != '.') continue;  // tokenizer.chat_templates: a list of names
      HF_ASSIGN_OR_RETURN(const auto source, file_.String(key));
      if (source->size() > kMaxTemplateBytes) {
        return Bad(fmt::format("chat template {} has {} bytes; at most {} are accepted", Quoted(key), source->size(), kMaxTemplateBytes));
      }
      const std::string text = Utf8(*source);
      if (text != *source) return Bad(fmt::format("chat template {} is not valid UTF-8", Quoted(key)));
      proto::ChatTemplate* t = card_.add_chat_templates();
      t->set_name(key.size() > kKey.size() ? Utf8(key.substr(kKey.size() + 1)) : "");
      t->set_source(text);
    }
    return absl::OkStatus();
  }

  absl::Status Sampling() {
    proto::SamplingDefaults* s = card_.mutable_sampling();
    HF_ASSIGN_OR_RETURN(const auto temperature, file_.Float("general.sampling.temp"));
    if (temperature && *temperature >= 0) s->set_temperature(static_cast<float>(*temperature));
    HF_ASSIGN_OR_RETURN(const auto top_p, file_.Float("general.sampling.top_p"));
    if (top_p && *top_p > 0 && *top_p <= 1) s->set_top_p(static_cast<float>(*top_p));
    HF_ASSIGN_OR_RETURN(const auto min_p, file_.Float("general.sampling.min_p"));
    if (min_p && *min_p >= 0 && *min_p <= 1) s->set_min_p(static_cast<float>(*min_p));
    const GgufValue* top_k = file_.Find("general.sampling.top_k");
    if (top_k != nullptr && top_k->type() != GgufType::kArray && top_k->is_integer() && top_k->Int() > 0) {
      s->set_top_k(static_cast<uint32_t>(std::min<int64_t>(top_k->Int(), UINT32_MAX)));
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  proto::ModelCard card_;
  absl::flat_hash_map<absl::string_view, uint32_t> ids_;
};

}  // namespace

absl::StatusOr<proto::ModelCard> MakeCard(const GgufFile& file) { return CardMaker(file).Make(); }

}  // namespace holdfast::model
