#pragma once
// What is done with any bytes as a model file: everything that a worker does before it serves, short of large allocations.
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/ops.h"
#include "proto/base/check.h"
#include "tests/support/model_harness.h"
#include "worker/model/card.h"
#include "worker/model/gguf_file.h"
#include "worker/model/hparams.h"
#include "worker/model/tensor_plan.h"

namespace holdfast::test {

struct GgufOutcome {
  bool parsed = false, card = false, plan = false, stepped = false;
};

// With `step`, a file that passes every check also has its weights loaded and a few tokens computed: what validation lets through must
// not hit an HF_CHECK later.
inline GgufOutcome RunGgufBytes(std::string bytes, bool step, kernels::Ops* ops) {
  GgufOutcome out;
  auto file = model::GgufFile::FromBytes(std::move(bytes), "fuzz.gguf");
  if (!file.ok()) {
    HF_CHECK(file.status().message().size() > 10);
    return out;
  }
  out.parsed = true;
  for (const auto key : (*file)->keys()) {
    const model::GgufValue* value = (*file)->Find(key);
    HF_CHECK(value != nullptr);
    if (value->element_type() == model::GgufType::kString && value->size() > 0) HF_CHECK(value->String(value->size() - 1).size() < (1u << 30));
  }
  const auto card = model::MakeCard(**file);
  out.card = card.ok();
  if (card.ok()) HF_CHECK(static_cast<int>(card->vocab_size()) == card->vocabulary().tokens_size());
  const auto hparams = model::ReadHparams(**file);
  if (!hparams.ok()) return out;
  const auto plan = model::TensorPlan::Make(**file, *hparams);
  out.plan = plan.ok();
  if (!plan.ok() || !step) return out;
  auto harness = ModelHarness::Open(**file, ops, {kernels::KvDType::kF16, 16, 4});
  if (!harness.ok()) return out;
  const int s = (*harness)->NewSequence();
  const auto top = static_cast<uint32_t>((*harness)->hparams().vocab - 1);
  (*harness)->Step({{s, {0, top, 1}}});
  (*harness)->Step({{s, {top}}});
  out.stepped = true;
  return out;
}

}  // namespace holdfast::test
