#pragma once
// What the engine is asked for a choice: the same message whether it begins or goes on where it was lost.
#include <cstdint>
#include <string>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/constraint.h"
#include "frontend/model_view.h"

namespace holdfast::proto {
class GenerateRequest;
}

namespace holdfast::api {

// Of one prompt: what all its choices, and every resume of theirs, have in common.
struct EnginePrompt {
  PreparedPrompt prompt;
  uint32_t max_tokens = 0;         // after clamping; 0 = only the echo is wanted
  uint64_t fingerprint = 0;        // stable over retries of the same request by any client
};

struct EngineChoice {
  const std::vector<uint32_t>& received;   // ids it has already
  uint32_t n = 0;                          // among the choices of its prompt
  uint32_t resumes = 0;
  bool score_prompt = false;               // the prompt's own log-probabilities are wanted
};

uint64_t Fingerprint(const std::vector<uint32_t>& tokens, uint32_t max_tokens, const ConstraintPtr& constraint);

// Whether a stop token ends the answer. The end of what a constraint allows is one: it ends the answer in any case.
inline bool EndsByToken(const ValidRequest& request, const ConstraintPtr& constraint) { return !request.ignore_eos || constraint; }

proto::GenerateRequest MakeEngineRequest(const ValidRequest& request, const ModelView& view, const EnginePrompt& prompt, const EngineChoice& choice,
                                         const ConstraintPtr& constraint, uint64_t seed, const std::string& trace_id);

}  // namespace holdfast::api
