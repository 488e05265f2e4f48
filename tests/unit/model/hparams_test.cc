// Hyper-parameters, tensor shapes, cards and page plans: what is accepted, and what is refused by name before anything is allocated.
#include "worker/model/hparams.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels/ops.h"
#include "worker/model/card.h"
#include "worker/model/kv_plan.h"
#include "worker/model/tensor_plan.h"
#include "worker/model/tools/make_model.h"

namespace holdfast::test {
namespace {

using model::GgufFile;
using model::GgufWriter;

std::string Message(const absl::Status& s) { return std::string(s.message()); }

// Rewrites the bytes of one metadata value of a made model, found by its key.
std::string Patch(std::string bytes, const std::string& key, uint32_t value) {
  const size_t at = bytes.find(key);
  REQUIRE(at != std::string::npos);
  memcpy(bytes.data() + at + key.size() + 4, &value, 4);
  return bytes;
}

// Renames a key (same length) so that it is absent.
std::string Drop(std::string bytes, const std::string& key) {
  const size_t at = bytes.find(key);
  REQUIRE(at != std::string::npos);
  bytes[at + key.size() - 1] = '?';
  return bytes;
}

absl::Status Check(std::string bytes) {
  auto file = GgufFile::FromBytes(std::move(bytes), "m.gguf");
  if (!file.ok()) return file.status();
  auto h = model::ReadHparams(**file);
  if (!h.ok()) return h.status();
  return model::TensorPlan::Make(**file, *h).status();
}

void CheckRefused(std::string bytes, const std::string& needle) {
  const absl::Status s = Check(std::move(bytes));
  CAPTURE(needle, Message(s));
  CHECK(!s.ok());
  CHECK(Message(s).find(needle) != std::string::npos);
}

}  // namespace

TEST_CASE("made models are accepted in every shape", "[hparams]") {
  for (const auto type : {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16, kernels::DType::kQ4_0, kernels::DType::kQ8_0}) {
    model::RandomModelOptions o;
    o.type = type;
    o.layers = 4;
    CHECK(Check(model::RandomLlama(o).Finish()).ok());
    CHECK(Check(model::RandomGemma4(o).Finish()).ok());
    o.experts = o.biases = o.rope_freqs = true;
    o.tied = false;
    o.per_layer = 32;
    CHECK(Check(model::RandomLlama(o).Finish()).ok());
    const absl::Status s = Check(model::RandomGemma4(o).Finish());
    CAPTURE(Message(s));
    CHECK(s.ok());
  }
}

TEST_CASE("a made gemma4 has the shape that was asked for, its vocabulary filled with unused tokens", "[hparams]") {
  model::RandomModelOptions o = model::Gemma4Large(12);
  CHECK(o.gemma4.experts * o.gemma4.expert_width * 3 * o.dim > 700'000'000);   // most of a layer's weights
  o.dim = 128;
  o.gemma4.vocabulary = 1001;
  o.gemma4.experts = 16;
  o.gemma4.expert_width = 32;
  o.gemma4.feed_forward = 96;
  const absl::Status s = Check(model::RandomGemma4(o).Finish());
  CAPTURE(Message(s));
  REQUIRE(s.ok());
  const auto file = GgufFile::FromBytes(model::RandomGemma4(o).Finish(), "m.gguf");
  REQUIRE(file.ok());
  const auto h = model::ReadHparams(**file);
  REQUIRE(h.ok());
  CHECK(h->vocab == 1024);
  CHECK(h->experts == 16);
  CHECK(h->experts_used == 8);
  CHECK(h->window == 1024);
  REQUIRE(h->layers.size() == 12);
  for (size_t i = 0; i < 12; ++i) {
    const model::LayerHparams& l = h->layers[i];
    CHECK(l.windowed == (i % 6 != 5));
    CHECK(l.heads == 16);
    CHECK(l.kv_heads == (l.windowed ? 8 : 2));
    CHECK(l.head_dim == (l.windowed ? 256 : 512));
    CHECK(l.feed_forward == 96);
  }
}

TEST_CASE("hyper-parameters that cannot be served are refused by key", "[hparams]") {
  const std::string llama = model::RandomLlama({}).Finish();
  const std::string gemma = model::RandomGemma4({}).Finish();
  for (const char* key : {"llama.context_length", "llama.embedding_length", "llama.block_count", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    std::string needle = key;
    CheckRefused(Drop(llama, needle), needle);
  }
  for (const char* key : {"gemma4.attention.key_length", "gemma4.attention.sliding_window", "gemma4.attention.sliding_window_pattern"}) {
    CheckRefused(Drop(gemma, key), key);
  }
  CheckRefused(Drop(llama, "general.architecture"), "general.architecture");
  CheckRefused(Patch(llama, "llama.block_count", 0), "block_count");
  CheckRefused(Patch(llama, "llama.block_count", 513), "block_count");
  CheckRefused(Patch(llama, "llama.block_count", 7), "blk.6.attn_norm.weight");
  CheckRefused(Patch(llama, "llama.embedding_length", 0), "embedding_length");
  CheckRefused(Patch(llama, "llama.embedding_length", 256), "rope.dimension_count");  // heads of 64 now
  CheckRefused(Patch(llama, "llama.attention.head_count", 0), "head_count");
  CheckRefused(Patch(llama, "llama.attention.head_count_kv", 3), "cannot share 3");
  CheckRefused(Patch(llama, "llama.attention.head_count_kv", 5), "head_count_kv");
  CheckRefused(Patch(llama, "llama.rope.dimension_count", 64), "rope.dimension_count");
  CheckRefused(Patch(llama, "llama.rope.dimension_count", 31), "must be even");
  CheckRefused(Patch(llama, "llama.rope.dimension_count", 16), "partial rotation");
  CheckRefused(Patch(llama, "llama.feed_forward_length", 128), "blk.0.ffn_gate.weight");
  CheckRefused(Patch(gemma, "gemma4.attention.value_length", 32), "differ");
  CheckRefused(Patch(gemma, "gemma4.attention.sliding_window", 0), "sliding_window");
  CheckRefused(Patch(gemma, "gemma4.attention.shared_kv_layers", 6), "shared_kv_layers");
  CheckRefused(Patch(gemma, "gemma4.attention.shared_kv_layers", 4), "layer");  // layers 0 and 1 are both windowed
  model::RandomModelOptions experts;
  experts.experts = true;
  const std::string moe = model::RandomGemma4(experts).Finish();
  CheckRefused(Patch(moe, "gemma4.expert_used_count", 9), "expert_used_count");
  CheckRefused(Patch(moe, "gemma4.expert_used_count", 0), "expert_used_count");
  CheckRefused(Patch(moe, "gemma4.expert_feed_forward_length", 32), "ffn_gate_up_exps.weight");
  GgufWriter other;
  other.String("general.architecture", "mamba");
  CheckRefused(other.Finish(), "llama, qwen2");
  GgufWriter vocab_only;
  vocab_only.String("general.architecture", "llama");
  for (const char* key : {"context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"}) {
    vocab_only.U32(std::string("llama.") + key, 8);
  }
  vocab_only.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  CheckRefused(vocab_only.Finish(), "holds no model weights");
}

TEST_CASE("a missing or misshapen tensor is named with the shape expected", "[hparams]") {
  std::string llama = model::RandomLlama({}).Finish();
  CheckRefused(Drop(llama, "blk.3.attn_k.weight"), "tensor \"blk.3.attn_k.weight\" of shape {128, 64} is missing");
  CheckRefused(Drop(llama, "output_norm.weight"), "tensor \"output_norm.weight\" of shape {128} is missing");
  // Two dims of one tensor swapped.
  const std::string name = "blk.1.ffn_down.weight";
  const size_t at = llama.find(name) + name.size() + 4;
  std::swap_ranges(llama.begin() + static_cast<ptrdiff_t>(at), llama.begin() + static_cast<ptrdiff_t>(at) + 8,
                   llama.begin() + static_cast<ptrdiff_t>(at) + 8);
  CheckRefused(llama, "tensor \"blk.1.ffn_down.weight\" has shape {128, 256}; the model's hyper-parameters make it {256, 128}");
}

TEST_CASE("page groups follow the layers", "[hparams]") {
  const auto ops = kernels::MakeReferenceOps();
  model::RandomModelOptions o;
  o.per_layer = 32;
  o.layers = 6;
  auto file = GgufFile::FromBytes(model::RandomGemma4(o).Finish(), "m.gguf");
  REQUIRE(file.ok());
  auto h = model::ReadHparams(**file);
  REQUIRE(h.ok());
  auto plan = model::MakeKvPlan(*h, *ops, kernels::KvDType::kF16, 16);
  REQUIRE(plan.ok());
  REQUIRE(plan->groups.size() == 2);
  CHECK(plan->groups[0].name == "full");
  CHECK(plan->groups[0].layers == std::vector<int32_t>{3});
  CHECK(plan->groups[1].name == "window-64");
  CHECK(plan->groups[1].layers == std::vector<int32_t>{0, 1, 2});
  CHECK(plan->layers[4].source == 2);
  CHECK(plan->layers[5].source == 3);
  CHECK(plan->layers[5].group == 0);
  // K and V of f16: at least 4 bytes an element pair, and pages add up.
  CHECK(plan->groups[0].page_bytes >= 16 * 1 * 64 * 4);
  CHECK(plan->groups[1].page_bytes == 3 * plan->layers[0].page_bytes);
  CHECK(Message(model::MakeKvPlan(*h, *ops, kernels::KvDType::kF16, 24).status()).find("page size 24") != std::string::npos);
  CHECK(*model::KvDTypeFromFlag("auto") == kernels::KvDType::kF16);
  CHECK(*model::KvDTypeFromFlag("q8_0") == kernels::KvDType::kQ8_0);
  CHECK(Message(model::KvDTypeFromFlag("int4").status()).find("fp8_e4m3") != std::string::npos);
}

TEST_CASE("cards carry the tokenizer, and refuse broken ones", "[card]") {
  auto file = GgufFile::FromBytes(model::RandomGemma4({}).Finish(), "dir/m.gguf");
  REQUIRE(file.ok());
  auto card = model::MakeCard(**file);
  INFO(card.status());
  REQUIRE(card.ok());
  CHECK(card->name() == "random-gemma4");
  CHECK(card->architecture() == "gemma4");
  CHECK(card->vocabulary().model() == "gemma4");
  CHECK(card->vocabulary().add_bos());
  CHECK(card->vocabulary().bos() == 2);
  CHECK(!card->vocabulary().has_eot());
  CHECK(card->vocab_size() == static_cast<uint32_t>(card->vocabulary().tokens_size()));
  CHECK(card->vocabulary().types_size() == card->vocabulary().tokens_size());
  REQUIRE(card->chat_templates_size() == 1);
  CHECK(card->chat_templates(0).name().empty());
  CHECK(card->sampling().top_k() == 64);
  CHECK(card->sampling().temperature() == 1.f);
  CHECK(card->quantization() == "q8_0");
  CHECK(card->context_length() == 4096);
  CHECK(card->parameter_count() > 100000);
  CHECK(card->fingerprint().size() == 32);

  const auto refused = [](const std::function<void(GgufWriter*)>& fill, const std::string& needle) {
    GgufWriter w;
    w.String("general.architecture", "llama");
    fill(&w);
    auto f = GgufFile::FromBytes(w.Finish(), "m.gguf");
    REQUIRE(f.ok());
    const auto made = model::MakeCard(**f);
    CAPTURE(needle, Message(made.status()));
    REQUIRE(!made.ok());
    CHECK(Message(made.status()).find(needle) != std::string::npos);
  };
  const auto base = [](GgufWriter* w) {
    w->String("tokenizer.ggml.model", "gpt2");
    w->Strings("tokenizer.ggml.tokens", {"a", "b", "ab"});
  };
  refused([](GgufWriter*) {}, "no tokenizer");
  refused([](GgufWriter* w) { w->String("tokenizer.ggml.model", "bert"); }, "gpt2, llama and gemma4");
  refused([](GgufWriter* w) { w->String("tokenizer.ggml.model", "gpt2"); }, "tokenizer.ggml.tokens");
  refused([](GgufWriter* w) { w->String("tokenizer.ggml.model", "gpt2"), w->Strings("tokenizer.ggml.tokens", {"a", "b", "a"}); }, "entries 0 and 2");
  refused([&](GgufWriter* w) { base(w); }, "merges");
  refused([&](GgufWriter* w) { base(w), w->Strings("tokenizer.ggml.merges", {"ab"}); }, "entry 0");
  refused([&](GgufWriter* w) { base(w), w->Strings("tokenizer.ggml.merges", {"a b", "b a"}); }, "\"ba\" is not a token");
  refused([&](GgufWriter* w) { base(w), w->I32s("tokenizer.ggml.token_type", {1, 1}); }, "has 2 entries");
  refused([&](GgufWriter* w) { base(w), w->I32s("tokenizer.ggml.token_type", {1, 1, 9}); }, "entry 2 is 9");
  refused([&](GgufWriter* w) { base(w), w->Strings("tokenizer.ggml.merges", {"a b"}), w->U32("tokenizer.ggml.eos_token_id", 3); }, "eos_token_id");
  refused([&](GgufWriter* w) { base(w), w->Strings("tokenizer.ggml.merges", {"a b"}), w->I32s("tokenizer.ggml.suppress_tokens", {5}); }, "suppress");
  refused([&](GgufWriter* w) { base(w), w->Strings("tokenizer.ggml.merges", {"a b"}), w->String("tokenizer.chat_template", "\xff"); }, "UTF-8");
  refused([](GgufWriter* w) { w->String("tokenizer.ggml.model", "llama"), w->Strings("tokenizer.ggml.tokens", {"a", "b"}); }, "scores");
}

TEST_CASE("script models are written as asked or refused", "[card]") {
  std::vector<model::Script> scripts;
  std::string error;
  REQUIRE(model::ParseScripts(R"([{"pieces": ["He", "llo", {"hex": "f09f"}], "end": "eos"}, {"pieces": ["x"], "end": "loop"}])", &scripts, &error));
  REQUIRE(scripts.size() == 2);
  CHECK(scripts[0].pieces[2] == "\xf0\x9f");
  CHECK(scripts[1].loop);
  CHECK(!model::ParseScripts("{}", &scripts, &error));
  CHECK(!model::ParseScripts("[{\"pieces\": [3]}]", &scripts, &error));
  CHECK(!model::ParseScripts("[{\"pieces\": [\"a\"], \"end\": \"now\"}]", &scripts, &error));
  model::ScriptModelOptions options;
  GgufWriter w;
  REQUIRE(model::ScriptModel(options, &w, &error));
  CHECK(Check(w.Finish()).ok());
  auto file = GgufFile::FromBytes(w.Finish(), "s.gguf");
  REQUIRE(file.ok());
  const auto card = model::MakeCard(**file);
  INFO(card.status());
  CHECK(card.ok());
  options.scripts = {{{"ab", "ab"}, false}};
  GgufWriter twice;
  CHECK(!model::ScriptModel(options, &twice, &error));
  CHECK(error.find("twice") != std::string::npos);
}

}  // namespace holdfast::test
