#pragma once
// Makers of tiny complete models (weights, tokenizer, chat template) for tests and for a demo where no real model can be had.
// Everything is a function of the options: the same options make the same bytes.
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "worker/model/tools/gguf_writer.h"

namespace holdfast::model {

// The parts of a gemma4 beside its width and depth.
struct Gemma4Shape {
  int32_t heads = 4, head_dim = 32, head_dim_full = 64, kv_heads = 2, kv_heads_full = 1;
  int32_t feed_forward = 0;                      // 0: 2 * dim
  int32_t experts = 8, experts_used = 2, expert_width = 64;
  int32_t period = 3;                            // each so-manyth layer is full, the others have the window
  int64_t vocabulary = 0;                        // filled up to so many tokens with unused ones; 0: as small as it can be
};

struct RandomModelOptions {
  uint64_t seed = 1;
  kernels::DType type = kernels::DType::kQ8_0;   // of matrices; kernels::CanQuantize(type), blocks dividing dim
  int32_t layers = 6;
  int32_t dim = 128;                             // multiple of 32
  uint32_t context = 4096;
  uint32_t window = 64;                          // gemma4
  bool experts = false;                          // gemma4: 8 experts, 2 used
  Gemma4Shape gemma4;
  int32_t per_layer = 0;                         // gemma4: per-layer embedding width (then the last two layers share a cache)
  bool tied = true;                              // llama
  bool rope_freqs = false;                       // llama
  bool biases = false;                           // llama
};

// The gemma4 of 26 B parameters, 4 B of them active, cut to some layers (a multiple of 6, or the last is no full one): what its kernels and caches
// cost can be measured, the text is noise. About 0.5 GB a layer and 0.4 GB for the embedding in Q4_0.
RandomModelOptions Gemma4Large(int32_t layers);

// gemma4: windowed, windowed, full, ...; heads of 32 (window) and 64 (full), K = V on full layers; byte-level vocabulary with gemma's
// markers and template.
GgufWriter RandomGemma4(const RandomModelOptions& options);
// llama with a byte-level BPE vocabulary of ASCII words and a chatml template.
GgufWriter RandomLlama(const RandomModelOptions& options);

// A "script model": a llama whose greedy (and in practice sampled) output is a fixed token sequence. Attention and feed-forward add
// nothing, so the next token depends on the current one alone: token i of a script is followed by token i + 1. The last prompt token
// picks the script: <S00>, <S01>, ...; the chat template concatenates the messages' contents, so the last user message ends with the
// selector. Pieces are tokens: any split of a tool call, a stop string or a UTF-8 character can be forced.
struct Script {
  std::vector<std::string> pieces;               // bytes of each token; a piece may occur once in the whole file
  bool loop = false;                             // after the last piece begin again; else end of sequence
};
struct ScriptModelOptions {
  std::vector<Script> scripts;                   // empty: DefaultScripts()
  uint32_t context = 4096;
  int32_t layers = 1;                            // more layers make it slower and its cache bigger, nothing else
};
std::vector<Script> DefaultScripts();
// [{"pieces": ["text" | {"hex": "f09f"}, ...], "end": "eos" | "loop"}, ...]. False and *error when it is not that.
bool ParseScripts(const std::string& json, std::vector<Script>* scripts, std::string* error);
// False and *error when two pieces are equal or a script is empty.
bool ScriptModel(const ScriptModelOptions& options, GgufWriter* writer, std::string* error);

}  // namespace holdfast::model
