#pragma once
// Hyper-parameters of a model, from the file's metadata and tensor table: plain numbers, all validated against each other, so that no
// later code has to ask whether a head count divides or an expert count is sane.
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "worker/model/gguf_file.h"

namespace holdfast::model {

enum class Family : uint8_t { kLlama, kQwen2, kQwen3, kQwen3Moe, kGemma3, kGemma4, kGptOss };

// Rotary embedding of one kind of layer, without the vector of frequency factors (a weight).
struct RopeSpec {
  kernels::RopeKind kind = kernels::RopeKind::kNeox;
  int32_t dims = 0;
  float base = 10000.f;
  float scale = 1.f;                 // multiplies positions (linear scaling)
  float yarn_factor = 1.f;
  float yarn_original_context = 0.f;
  float yarn_beta_fast = 32.f;
  float yarn_beta_slow = 1.f;
  float attention_factor = 1.f;
};

struct LayerHparams {
  bool windowed = false;             // sliding-window attention
  int32_t heads = 0;                 // query heads; with several ranks, those of this one (shard.h)
  int32_t kv_heads = 0;
  int32_t head_dim = 0;              // of K and of V
  int32_t feed_forward = 0;          // rows of ffn_gate; 0 = no dense branch
  bool owns_kv = true;               // false: reads the cache of kv_source
  int32_t kv_source = 0;             // layer whose cache is read (itself when owns_kv)
};

struct Hparams {
  Family family = Family::kLlama;
  std::string architecture;
  int32_t dim = 0;                   // D
  int32_t heads = 0;                 // query heads of every layer, of all ranks together
  int64_t vocab = 0;                 // rows of the output matrix
  uint32_t context_length = 0;
  float eps = 1e-5f;
  uint32_t window = 0;               // of windowed layers, counting the token itself; 0 = none
  float attention_scale = 0.f;       // multiplies q.k
  float logit_softcap = 0.f;         // 0 = off
  float embedding_scale = 1.f;
  RopeSpec rope;                     // full layers
  RopeSpec rope_windowed;            // windowed layers
  bool rope_freqs = false;           // rope_freqs.weight is present (full layers only in gemma4; all layers in llama)
  int32_t experts = 0;               // 0 = dense
  int32_t experts_used = 0;
  int32_t expert_feed_forward = 0;
  float expert_weights_scale = 1.f;
  int32_t per_layer_input = 0;       // gemma4 P; 0 = none
  bool tied_embeddings = false;      // no output.weight
  std::vector<LayerHparams> layers;
};

// Names of the architectures that can be served, for messages.
std::string_view SupportedArchitectures();

// kInvalidArgument naming the key, what it holds and what would be right; kUnimplemented for an architecture we do not have.
absl::StatusOr<Hparams> ReadHparams(const GgufFile& file);

}  // namespace holdfast::model
