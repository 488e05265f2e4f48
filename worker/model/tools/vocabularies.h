#pragma once
// Tiny vocabularies with chat templates for made models: complete enough that any text can be tokenised and read back.
#include <cstdint>
#include <string>

#include "worker/model/tools/gguf_writer.h"

namespace holdfast::model {

// gemma4 tokenizer: control markers, 256 byte tokens, printable ASCII, U+2581, newlines, a few merges; unused tokens up to `least`. Returns
// the number of tokens (a multiple of 32).
int64_t WriteGemmaVocabulary(GgufWriter* w, int64_t least = 0);
// Byte-level BPE ("gpt2", pre "smollm") with chatml markers and a few hundred merges of common English words.
int64_t WriteChatmlVocabulary(GgufWriter* w);

// The printable form in which byte-level BPE vocabularies spell a byte (UTF-8).
std::string BytePiece(unsigned char byte);

}  // namespace holdfast::model
