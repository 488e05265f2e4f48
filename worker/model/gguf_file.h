#pragma once
// A GGUF v2/v3 file (one or several parts), read by untrusting eyes: every size is compared with what is left of the file before it is
// used, every product is checked, and nothing is allocated in proportion to a number the file merely claims.
//
// The file is read with pread(2), never mapped: a file that is truncated or replaced while we hold it gives a Status with the tensor's
// name, where a mapping would give SIGBUS. Metadata is copied once (at most 1 GiB); tensor data is read where it is wanted.
//
// Errors: kNotFound / kPermissionDenied / kFailedPrecondition (not a regular file) for the path; kInvalidArgument for what the file says;
// kDataLoss when bytes that were there are gone; kResourceExhausted for memory. Messages name the file, the key or tensor, what was
// found and what was expected.
//
// Threads: immutable after Open; every const method may be called from any thread.
// Source of the format: the GGUF specification of the ggml project.
#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"
#include "proto/base/unique_fd.h"

namespace holdfast::model {

enum class GgufType : uint32_t {
  kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12,
};
std::string_view GgufTypeName(GgufType type);  // "u32", "string"

// One metadata value. Strings and arrays are views into the file object's copy of the metadata.
class GgufValue {
 public:
  GgufType type() const { return type_; }
  GgufType element_type() const { return element_; }            // of an array; else type()
  size_t size() const { return count_; }                        // elements of an array; 1 for a scalar
  bool is_integer() const;                                      // the element type is an integer (bool is not)
  bool is_float() const { return element_ == GgufType::kF32 || element_ == GgufType::kF64; }
  // Element i, i < size(); the element type must fit (HF_CHECK): callers ask is_integer()/is_float()/element_type() first.
  int64_t Int(size_t i = 0) const;                              // u64 above INT64_MAX saturates
  double Float(size_t i = 0) const;
  bool Bool(size_t i = 0) const;
  std::string_view String(size_t i = 0) const;                  // any bytes

 private:
  friend class GgufParser;
  GgufType type_ = GgufType::kU8;
  GgufType element_ = GgufType::kU8;
  size_t count_ = 1;
  const std::byte* data_ = nullptr;                             // first element; strings: see starts_
  const std::byte* base_ = nullptr;
  std::vector<uint32_t> starts_;                                // arrays of strings: offset from base_ of each length word
};

struct GgufTensor {
  std::string name;
  kernels::DType type{};
  int dims_count = 1;
  std::array<int64_t, 4> dims{1, 1, 1, 1};                      // fastest axis first; unused ones are 1
  uint64_t offset = 0;                                          // absolute, in its part
  uint64_t bytes = 0;
  uint32_t part = 0;
};

class GgufFile {
 public:
  // Opens path and, when it is the first part of a split file, its other parts (names derived from path alone).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same from memory (tests, fuzzers). Split files are refused.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromBytes(std::string bytes, std::string name);
  ~GgufFile();

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const;                                  // of all parts
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;    // null when absent

  // ---- metadata (of part 0). Absent keys give nullopt; a value of another type gives kInvalidArgument naming the key.
  const GgufValue* Find(std::string_view key) const;
  absl::StatusOr<std::optional<uint64_t>> Uint(std::string_view key) const;     // any integer type, not negative
  absl::StatusOr<std::optional<double>> Float(std::string_view key) const;      // f32 or f64, finite
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string_view>> String(std::string_view key) const;
  absl::StatusOr<const GgufValue*> Array(std::string_view key) const;           // null when absent
  std::vector<std::string_view> keys() const;                                   // in file order

  // Copies `bytes` bytes of the tensor from `offset` on. kDataLoss when the file has become shorter.
  absl::Status Read(const GgufTensor& tensor, uint64_t offset, uint64_t bytes, std::byte* dst) const;
  // kDataLoss when a part's size or modification time is no longer what it was at Open: what was read since may be a mixture.
  absl::Status Unchanged() const;
  uint64_t modified() const;  // a number over the parts' modification times: changes when a file is rewritten in place
  // Advises the kernel that the tensor will be read soon. Never fails.
  void Prefetch(const GgufTensor& tensor) const;

  // 128 bits over all metadata, the tensor table and samples of every tensor's data, as 32 hex digits: equal for equal files wherever
  // they lie, different when metadata, layout or (with near certainty) weights differ.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  friend class GgufParser;
  struct Part;
  GgufFile();
  static absl::StatusOr<std::unique_ptr<Part>> OpenPart(const std::string& path);
  absl::Status OpenOtherParts();

  std::string path_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::string> key_order_;
  absl::flat_hash_map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

// s in quotes, unprintable bytes escaped and cut after 100 bytes: for messages about untrusted names.
std::string Quoted(std::string_view s);

// "{576, 49152}": dims as error messages print them, fastest first.
std::string DimsText(std::span<const int64_t> dims);

}  // namespace holdfast::model
