#pragma once
// Small vocabularies made in code, one for each tokenizer model, so that tests of text need no file.
#include <string>
#include <utility>
#include <vector>

#include "proto/model_card.pb.h"

namespace holdfast::testing {

// GPT-2's printable text for bytes, as tokens and merges are stored in files.
std::string Gpt2Text(std::string_view bytes);

// Byte-level BPE, pre "qwen2": 256 byte tokens (ids 0-255 in the order of the bytes), one token for each merge, then the special
// tokens <|endoftext|> (control, eos), <|im_start|>, <|im_end|> (control, eot), <tool_call>, </tool_call> (user-defined).
// `merges` are pairs of byte strings; by default a few that make "hello", " world", "the", "in", "aaaa" and parts of an emoji.
proto::ModelCard TinyBpeCard(const std::vector<std::pair<std::string, std::string>>& merges = {
                                 {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}, {"o", "r"}, {" w", "or"}, {"l", "d"},
                                 {" wor", "ld"}, {"t", "h"}, {"th", "e"}, {"i", "n"}, {"a", "a"}, {"aa", "aa"}, {"\xF0", "\x9F"},
                                 {"\x98", "\x80"}});

// SentencePiece: <unk>, <s>, </s>, 256 byte tokens <0xXX> (3-258), then `pieces` with their scores. add_bos and add_space_prefix.
proto::ModelCard TinySpmCard(const std::vector<std::pair<std::string, float>>& pieces);
proto::ModelCard TinySpmCard();

// Gemma 4: <pad> <eos> <bos> <unk>, the markers <|tool_call> <tool_call|> <|tool_response> (user-defined), <|turn> <turn|> (control),
// "\n" "\n\n" "\n\n\n" (user-defined), </s> (user-defined), 256 byte tokens, `characters`, then one token for each merge whose result
// is not in `without_token`.
proto::ModelCard TinyGemma4Card(const std::vector<std::string>& characters, const std::vector<std::pair<std::string, std::string>>& merges,
                                const std::vector<std::string>& without_token = {});
proto::ModelCard TinyGemma4Card();

}  // namespace holdfast::testing
