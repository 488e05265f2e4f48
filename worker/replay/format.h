#pragma once
// The recording of a scheduler's life: what it was made with, every command and step result it got, in order, and its digest after each.
// `holdfast replay` runs scheduler and ledger from it without a model. Little-endian; varints are LEB128 of unsigned numbers.
//
//   header, kHeaderBytes bytes:
//     char[8]  magic "HldftR01"
//     u64      used: bytes that are written, header included. Set last, so what lies below it is whole even after SIGKILL
//     u64      generation
//     u32      rank
//     u32      config bytes
//     config   version (varint length, bytes), page size, groups (count, then window, pages, reserve pages of each), max running, prefill
//              chunk, max sequence length, max waiting, overlap depth, prefix cache, audit period, reserve tokens: varints
//     zeros
//     u64      at kHeaderBytes - 8: check of the header without `used`
//   entries: u8 kind, payload, u32 check. The check is of this entry and all before it (a chain), so a damaged or reordered file is noticed
//   before anything of it is run.
//     kSubmit       request, prompt tokens, max tokens, flags (1 no_cache, 2 prompt_logprobs, 4 run_ahead), salt (length, bytes), anchors (count, each),
//                   tokens (count, each)
//     kCancel       request
//     kResize       operation, full pages, window pages, cancel
//     kPlan         step, entries, total tokens, u64 digest
//     kIdle         u32 times, u64 digest: Plan gave nothing that often in a row
//     kApply        step, samples (count, then request, token, flags (1 stop, 2 failed) of each)
//     kDigest       u64: after the step result before it
//     kAudit        -
//     kSuspectPage  group, page
//     kFull         the recording has no more room; nothing follows
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "proto/base/random.h"

namespace holdfast::replay {

inline constexpr char kMagic[] = "HldftR01";
inline constexpr size_t kHeaderBytes = 4096;
inline constexpr size_t kUsedOffset = 8;           // of `used` in the header: who copies a recording needs no more of the format
inline constexpr size_t kConfigOffset = 32;
inline constexpr size_t kMaxConfigBytes = kHeaderBytes - kConfigOffset - 8;
inline constexpr size_t kCheckBytes = 4;

enum class EntryKind : uint8_t { kSubmit = 1, kCancel, kResize, kPlan, kIdle, kApply, kDigest, kAudit, kSuspectPage, kFull };

// Goes on from `chain` over the bytes.
inline uint64_t Check(uint64_t chain, const std::byte* data, size_t size) {
  uint64_t word;
  size_t at = 0;
  for (; at + sizeof word <= size; at += sizeof word) {
    std::memcpy(&word, data + at, sizeof word);
    chain = Mix64(chain ^ word);
  }
  word = 0;
  std::memcpy(&word, data + at, size - at);
  return Mix64(Mix64(chain ^ word) ^ size);
}

// Of a whole header.
inline uint64_t HeaderCheck(const std::byte* header) {
  const size_t after_used = kUsedOffset + sizeof(uint64_t);
  return Check(Check(0, header, kUsedOffset), header + after_used, kHeaderBytes - sizeof(uint64_t) - after_used);
}

}  // namespace holdfast::replay
