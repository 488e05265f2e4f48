#pragma once
// What each token of a vocabulary adds to a text, for constrained decoding.
#include <string>
#include <vector>

#include "proto/model_card.pb.h"

namespace holdfast::model {

// One for each logit. Empty for tokens that are no ordinary text: control, unknown and unused tokens, markers, names that a byte-level
// vocabulary cannot spell. The frontend's Vocabulary::IsOrdinary draws the same line (and counts byte tokens as text too).
std::vector<std::string> TokenTexts(const proto::ModelCard& card);

}  // namespace holdfast::model
